"""Benchmarks of Holdfast, compared with the limits of the machine and with other queues.

They print and record results. No test depends on a measured time.
"""
