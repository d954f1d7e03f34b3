"""A diagnosis whose runs lie at several sites: the exchanges of its training, of which only sums cross."""
