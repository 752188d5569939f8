"""Chaos: kills and freezes its own workers while they run real jobs, and verifies the outcome.

`holdfast chaos` runs it for users; the project's crash tests run it harder. It ends only processes
that it started and touches no database that it did not start.
"""
