"""The default solver: client weights integrated out exactly, the server on a surrogate of the bound."""
