"""`make mutants`: a suite that has never failed has proved nothing.

Each guard of the service is taken out in turn, in a copy of the tree, and the tests that should notice are run: one has to go red.
"""
