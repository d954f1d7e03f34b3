"""Replies of dishonest sites: what cannot come from the model, and what does not fit the other sites.

`admissible` looks at one reply alone. `model_test`, `census_test` and `magnitudes` compare the replies of an
exchange. `judging` puts them together for a server.
"""
