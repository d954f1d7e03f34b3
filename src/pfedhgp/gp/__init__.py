"""Gaussian-process mathematics that knows no client: kernels, features, noise, state space, scores."""
