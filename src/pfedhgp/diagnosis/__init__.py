"""Fault diagnosis: which class a whole cycle belongs to, how surely, or none of these."""
