"""The other queues of the benchmark `drain`: one small program for each, and their shared code.

The programs run in a separate environment that is created on demand.
"""
