"""The structured solver's client on the host: NumPy and LAPACK, hand-written adjoints, nothing compiled.

It computes what `inference.structured` computes, for clients whose rows are white and whose local layer has
inducing inputs (or is not there). All arrays have a leading axis of clients.
"""
