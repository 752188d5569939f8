"""The reference engine: plain Python, in this process, gone with it."""

from holdfast.engines.memory.engine import MemoryEngine

__all__ = ["MemoryEngine"]
