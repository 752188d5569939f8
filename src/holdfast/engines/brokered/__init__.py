"""The composition `brokered`: a ledger stores the jobs, a broker carries their ids."""

from holdfast.engines.brokered.engine import BrokeredEngine

__all__ = ["BrokeredEngine"]
