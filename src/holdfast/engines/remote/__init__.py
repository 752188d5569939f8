"""Another Holdfast, over its server."""

from holdfast.engines.remote.engine import RemoteEngine

__all__ = ["RemoteEngine"]
