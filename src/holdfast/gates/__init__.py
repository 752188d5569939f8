"""IN AND OUT: gates turn messages of a broker into jobs, and jobs into messages."""

from holdfast.gates.distributor import MessageDistributor
from holdfast.gates.runner import GateRunner

__all__ = ["GateRunner", "MessageDistributor"]
