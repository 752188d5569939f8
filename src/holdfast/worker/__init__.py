"""RUN: one supervisor for each worker owns the engine; its children only run handlers.

The supervisor leases, renews and settles for all its children, so that a handler that holds the
interpreter for minutes delays no renewal. Children receive calls over sockets and die with their
supervisor.
"""
