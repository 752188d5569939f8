"""Leases that wait: when the next job becomes due, notifications that end a wait, and outages.

Notifications only save time: a waiting lease also polls, so that without them no job is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from holdfast.core.model import Lease, LeaseRequest
from holdfast.engines.lease import Bell
from holdfast.engines.postgres.lease import requested_names
from holdfast.engines.postgres.pool import FAILURES, PostgresPool
from holdfast.engines.postgres.script import CallContext, Script, Statement
from holdfast.errors import EngineClosed, EngineError, EngineUnavailable, OutcomeUnknown

PING_S = 10.0
PONG_S_MAX = 5.0
PAUSE_S_MAX = 2.0
READY_S_MAX = 1.0

_NEXT_DUE = """
SELECT now_, next_ms, fresh
FROM $schema.linger($1::int, $2::bigint, $3::text[], $4::text[], $5::boolean, $6::bigint)
"""


class NextDue(NamedTuple):
    """The instant of the answer, the time to the next due job, and whether no call was registered
    as waiting before: then the notification of an enqueue may have been missed."""

    at: int
    next_ms: int | None
    is_fresh: bool


def next_due(
    context: CallContext, request: LeaseRequest, since: int | None, *, listens: bool
) -> Script[NextDue]:
    """When to look again. A job that became due after `since` counts as due at once. A caller that
    listens for notifications is registered as waiting."""
    names = requested_names(request)
    values = (
        context.ns, context.given_ms, [] if request.ids else names, names if request.ids else [],
        listens, since,
    )  # fmt: skip
    (row,) = yield Statement(_NEXT_DUE, values, alone=True)
    return NextDue(*row)


class LeaseWait:
    """One waiting lease. It keeps waiting while the server cannot be reached; `failure` is the
    error of the last attempt, for the caller to raise when the wait is over."""

    def __init__(
        self,
        lease: Callable[[LeaseRequest], Awaitable[tuple[list[Lease], int | None]]],
        next_due: Callable[[LeaseRequest, int | None], Awaitable[NextDue]],
    ) -> None:
        self._lease = lease
        self._next_due = next_due
        self._checked_at: int | None = None
        self.failure: EngineError | None = None

    async def attempt(self, request: LeaseRequest) -> tuple[list[Lease], int | None]:
        """Leases, or the milliseconds after which to try again; None: when notified."""
        try:
            leases, _ = await self._lease(request)
            next_ms = None
            if not leases:
                # A job that became due between the two statements is covered, because `next_due`
                # counts from the instant of the one before. The first has none before it, so the
                # lease is tried again after it.
                due = await self._next_due(request, self._checked_at)
                next_ms = due.next_ms
                if due.is_fresh or self._checked_at is None:
                    leases, _ = await self._lease(request)
                self._checked_at = due.at
        except (EngineUnavailable, OutcomeUnknown, EngineClosed) as error:
            self.failure = error
            return [], None
        self.failure = None
        return leases, next_ms


class NotifyListener:
    """A connection that rings the bell at each notification of another engine.

    Started by the first wait: an engine that only enqueues needs none.
    """

    def __init__(self, pool: PostgresPool, bell: Bell) -> None:
        self._pool = pool
        self._bell = bell
        self._task: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()

    async def start(self, signal: str) -> None:
        """Start if necessary, and return when it listens, or after a moment if it cannot."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._listen_forever(signal))
        await _is_set_within(self._ready, READY_S_MAX)

    async def stop(self) -> None:
        """Stop listening and close the connection."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _listen_forever(self, signal: str) -> None:
        while True:
            with contextlib.suppress(EngineError, *FAILURES):
                await self._listen(signal)
            self._ready.clear()
            await asyncio.sleep(random.uniform(0, PAUSE_S_MAX))

    async def _listen(self, signal: str) -> None:
        connection = await self._pool.connect()
        gone = asyncio.Event()
        connection.add_termination_listener(lambda _: gone.set())
        try:
            await connection.add_listener(signal, self._ring)
            self._ready.set()
            # Earlier notifications were missed: make waiting leases look again.
            self._bell.ring()
            while not await _is_set_within(gone, PING_S):
                await connection.fetchval("SELECT 1", timeout=PONG_S_MAX)
        finally:
            connection.terminate()

    def _ring(self, *_: Any) -> None:
        self._bell.ring()


async def _is_set_within(event: asyncio.Event, timeout_s: float) -> bool:
    """Whether the event is set within that time."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()
    return event.is_set()
