"""Zones: which clients behave alike, from what they are willing to send."""
