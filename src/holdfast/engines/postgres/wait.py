"""Leases that wait: when the next job becomes due, notifications that end a wait, and outages.

Notifications only save time: a waiting lease also polls, so that without them no job is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any, NamedTuple

from holdfast.core.model import Lease, LeaseRequest
from holdfast.engines.lease import LONG_ATTEMPT_S, SKIPPED_MANY, Bell, LeaseAttempt
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
FROM $schema.wait_for_jobs($1::int, $2::bigint, $3::text[], $4::text[], $5::boolean, $6::bigint)
"""
_SKIPPED = """
WITH RECURSIVE ranks AS (
    SELECT q.number AS queue, f.rank
    FROM $schema.queues q
    CROSS JOIN LATERAL (
        SELECT j.rank FROM $schema.jobs j
        WHERE j.queue = q.number AND j.state = 0 AND j.holds = 0
        ORDER BY j.rank LIMIT 1
    ) f
    WHERE q.ns = $1::int AND q.name = ANY ($2::text[]) AND NOT q.paused
    UNION ALL
    SELECT r.queue, n.rank
    FROM ranks r
    CROSS JOIN LATERAL (
        SELECT j.rank FROM $schema.jobs j
        WHERE j.queue = r.queue AND j.state = 0 AND j.holds = 0 AND j.rank > r.rank
        ORDER BY j.rank LIMIT 1
    ) n
)
SELECT count(*) FROM (
    SELECT d.task
    FROM ranks r
    CROSS JOIN LATERAL (
        SELECT j.task FROM $schema.jobs j
        WHERE j.queue = r.queue AND j.state = 0 AND j.holds = 0 AND j.rank = r.rank
          AND j.due_at <= $3::bigint
        ORDER BY j.due_at LIMIT $5::int
    ) d
    LIMIT $5::int
) s
WHERE s.task <> ALL ($4::text[])
"""
_RECHECKS_MS = (25, 100, 400)
"""After a lease registers as waiting: when it looks for jobs of transactions that began before and
therefore did not notify it."""


_NEXT_DEAD = """
SELECT l.now_, greatest(0, $schema.next_dead(
    $1::int, least($6::bigint, l.now_), $3::text[], $4::text[]) - l.now_), l.fresh
FROM $schema.wait_for_jobs($1::int, $2::bigint, '{}', '{}', $5::boolean, $6::bigint) l
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
    (row,) = yield Statement(_NEXT_DEAD if request.dead else _NEXT_DUE, values, alone=True)
    return NextDue(*row)


def count_skipped(context: CallContext, request: LeaseRequest, now: int) -> Script[int]:
    """Due jobs of other tasks, among the first due ones."""
    assert request.tasks is not None
    values = (context.ns, requested_names(request), now, sorted(request.tasks), 2 * SKIPPED_MANY)
    (row,) = yield Statement(_SKIPPED, values, alone=True)
    return int(row[0])


class LeaseWait:
    """One waiting lease. It keeps waiting while the server cannot be reached; `failure` is the
    error of the last attempt, for the caller to raise when the wait is over."""

    def __init__(
        self,
        lease: Callable[[LeaseRequest], Awaitable[list[Lease]]],
        next_due: Callable[[LeaseRequest, int | None], Awaitable[NextDue]],
        skipped: Callable[[LeaseRequest, int], Awaitable[int]],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._lease = lease
        self._next_due = next_due
        self._skipped = skipped
        self._clock = clock
        self._checked_at: int | None = None
        self._rechecks_ms: list[int] = []
        self.failure: EngineError | None = None

    async def attempt(self, request: LeaseRequest) -> LeaseAttempt:
        """Lease; if nothing is due, learn when to try again and register as waiting."""
        try:
            found = await self._attempt(request)
        except (EngineUnavailable, OutcomeUnknown, EngineClosed) as error:
            self.failure = error
            return LeaseAttempt([])
        self.failure = None
        return found

    async def _attempt(self, request: LeaseRequest) -> LeaseAttempt:
        began = self._clock()
        if leases := await self._lease(request):
            return LeaseAttempt(leases)
        is_long = self._clock() - began > LONG_ATTEMPT_S
        # A job that became due between the two statements is covered, because `next_due` counts
        # from the instant of the one before. The first has none before it, so the lease is tried
        # again after it.
        checked_at = self._checked_at
        due = await self._next_due(request, checked_at)
        self._checked_at = due.at
        if due.is_fresh:
            self._rechecks_ms = list(_RECHECKS_MS)
        if (due.is_fresh or checked_at is None) and (leases := await self._lease(request)):
            return LeaseAttempt(leases)
        next_ms = due.next_ms
        if self._rechecks_ms:
            recheck_ms = self._rechecks_ms.pop(0)
            next_ms = recheck_ms if next_ms is None else min(next_ms, recheck_ms)
        skipped = 0
        if is_long and checked_at is not None and request.tasks is not None and request.queues:
            skipped = await self._skipped(request, due.at)
        return LeaseAttempt([], next_ms, skipped)


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
