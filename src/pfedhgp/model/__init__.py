"""The model: what it is made of, what the server owns, what a client owns, and files of both."""
