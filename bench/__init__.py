"""Timings of one client's structured bound and gradient, as ratios within one run: `make bench`."""
