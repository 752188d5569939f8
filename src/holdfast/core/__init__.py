"""DECIDE: what a job is and what happens to it, as pure values and functions.

Never does I/O, reads a clock, draws a random number or logs.
"""
