"""Federations of hundreds of made-up sites, to see what a server does with them: `pfedhgp simulate`."""
