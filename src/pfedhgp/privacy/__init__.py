"""Differential privacy by one release: its noise, what it costs, and a posterior that knows the noise."""
