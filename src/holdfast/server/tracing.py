"""Requests inside spans, where tracing is on: as part of the trace that they name."""

from __future__ import annotations

from functools import partial
from typing import Any

from holdfast.server.calls import AsgiScope, Receive, Send
from holdfast.server.endpoint import Endpoint, Shared
from holdfast.server.operations import Operation
from holdfast.tracing import PARENT, STATE
from holdfast.tracing.spans import answered, serving

_NAMES = {name.encode(): name for name in (PARENT, STATE)}


class TracedEndpoint(Endpoint):
    """What waits or streams is no span: it says more about its caller than about the work. Nor is
    a verb of the remote engine that belongs to no trace."""

    def __init__(self, operation: Operation, shared: Shared) -> None:
        super().__init__(operation, shared)
        self._requested = partial(_noted, self._requested)

    async def __call__(
        self, scope: AsgiScope, receive: Receive, send: Send, given: dict[str, Any]
    ) -> None:
        operation = self.operation
        headers = {
            _NAMES[name]: value.decode("latin-1")
            for name, value in scope["headers"]
            if name in _NAMES
        }
        alone = operation.internal and PARENT not in headers
        if alone or operation.needs is None or operation.waits or operation.streams:
            await super().__call__(scope, receive, send, given)
            return
        with serving(operation.method, operation.path, headers):
            await super().__call__(scope, receive, send, given)


def _noted(count: Any, status: int, ms: float) -> None:
    answered(status)
    count(status, ms)
