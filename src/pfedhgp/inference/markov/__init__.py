"""A global layer at the rows' own times: Matérn 1/2 functions at knots, in O(M), with small messages."""
