"""Is the server alive, and should it be sent requests? For whoever starts and balances servers."""

from __future__ import annotations

from typing import Literal

import msgspec

from holdfast import __version__
from holdfast.errors import EngineUnavailable
from holdfast.server.calls import Call
from holdfast.server.operations import Operation, operation
from holdfast.server.readiness import PartitionState, partitions_of
from holdfast.server.refusals import Stopping


class Alive(msgspec.Struct, frozen=True, kw_only=True):
    status: Literal["alive"] = "alive"
    version: str = __version__


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """`partitions` is null where the store is in one piece. With one shut out the server is ready
    all the same: the others serve."""

    status: Literal["ready"] = "ready"
    partitions: list[PartitionState] | None = None


class NotReady(EngineUnavailable):
    """The store does not answer: the server's log says why; others may be able to."""

    code = "not_ready"

    def __init__(self, code: str, partitions: list[PartitionState] | None) -> None:
        super().__init__("the store does not answer: the server's log says more")
        self.detail = {"code": code}
        if partitions is not None:
            self.detail["partitions"] = msgspec.to_builtins(partitions)


@operation("GET", "/healthz", needs=None)
async def healthz(call: Call) -> Alive:  # noqa: ARG001 (all take it)
    """Whether the process answers at all; the store is not asked. Restart it when it does not."""
    return Alive()


@operation("GET", "/readyz", needs=None)
async def readyz(call: Call) -> Ready:
    """Whether to send requests here: the store answers, and the server is not about to end.

    Partitions that are shut out are listed with how long they have been, in seconds.
    """
    server = call.server
    if server.stopping.is_set():
        raise Stopping("the server is stopping")
    # The server's own, and not the caller's: whoever probes may see no queue, and need not.
    trouble = await server.readiness.trouble(server.app)
    partitions = partitions_of(server.app)
    if trouble is not None:
        raise NotReady(trouble.code, partitions)
    return Ready(partitions=partitions)


OPERATIONS: tuple[Operation, ...] = (healthz, readyz)
