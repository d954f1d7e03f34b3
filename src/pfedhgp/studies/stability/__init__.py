"""How stable the split between global and deviation is."""
