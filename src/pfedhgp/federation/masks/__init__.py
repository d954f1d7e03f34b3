"""Secure aggregation: the server learns the sum of the sites' replies and nothing else of them."""
