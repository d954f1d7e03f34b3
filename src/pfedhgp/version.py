"""The version, where every package can read it."""

__version__ = "0.1.0"
