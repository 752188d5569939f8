"""IN AND OUT: gates move messages of brokers into queues, and jobs out to brokers."""

from holdfast.gates.runner import GateRunner

__all__ = ["GateRunner"]
