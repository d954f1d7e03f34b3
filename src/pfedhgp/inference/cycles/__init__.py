"""The cycle layer: estimated from sums over cycles before training."""
