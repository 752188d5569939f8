"""The engine of a Holdfast server, over HTTP."""

from holdfast.engines.remote.engine import RemoteEngine

__all__ = ["RemoteEngine"]
