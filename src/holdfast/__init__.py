"""Holdfast: a durable work queue that holds every job fast until it is done."""

__version__ = "0.1.0"
