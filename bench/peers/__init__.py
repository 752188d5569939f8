"""Other queues beside Holdfast: one small program for each, and what they all share.

The programs run in an environment of their own, made on demand. Nothing of the product needs them.
"""
