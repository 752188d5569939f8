"""RUN: one supervisor per worker owns the engine; its children only run handlers.

The supervisor leases, renews and settles for all its children, so a handler that holds the
interpreter for minutes starves nobody's lease. Children are fed over sockets and die with it.
"""
