"""Settings: what they are called, what they may be, and where they come from."""
