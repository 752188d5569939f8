"""The embedded default: one file on one machine, shared by any number of its processes."""

from holdfast.engines.sqlite.engine import SQLiteEngine

__all__ = ["SQLiteEngine"]
