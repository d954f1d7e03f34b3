"""Helpers of the tests: made-up data, naive twins, processes, a browser."""
