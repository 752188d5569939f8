"""Benchmarks of Holdfast beside the physical limit of the machine they run on.

They print and record; they never judge whether a change is right, and no test depends on a time.
"""
