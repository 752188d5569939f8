"""The reference engine: plain Python objects in this process."""

from holdfast.engines.memory.engine import MemoryEngine

__all__ = ["MemoryEngine"]
