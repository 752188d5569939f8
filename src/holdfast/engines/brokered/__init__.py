"""A ledger that knows the jobs and a broker that delivers: the composition `brokered`."""

from holdfast.engines.brokered.engine import BrokeredEngine

__all__ = ["BrokeredEngine"]
