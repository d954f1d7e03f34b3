"""What a site allows a server: its policy, what it has counted so far, and the checks that follow."""
