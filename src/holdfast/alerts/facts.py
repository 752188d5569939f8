"""The facts that alert rules are evaluated on, read from the store in bounded calls."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from time import monotonic
from typing import Final

import msgspec

from holdfast.core import bounds
from holdfast.core.model import QueueView
from holdfast.engines.base import Engine
from holdfast.engines.broker import BrokerStatus
from holdfast.engines.extras import Examinable, Examination, Partitioned, extra
from holdfast.ops.broker_status import read_broker_status
from holdfast.ops.unreadable import UnreadableRecord, find_unreadable
from holdfast.ops.workers import Workers, WorkerView
from holdfast.process import wall_ms
from holdfast.telemetry.accounts import FleetReader, FleetTotals
from holdfast.telemetry.meter import DEAD_MESSAGES, OTHER, QueueTotals

WINDOW_MS: Final = bounds.MINUTE_MS

_OBSERVED_MAX = 100
_RECORDS_S = 60
"""How often all records are read to find those that cannot be."""


class Growth(msgspec.Struct, frozen=True):
    """Jobs of a queue that died and that were leased within the last minute, and its messages that
    the broker gave up."""

    dead: int = 0
    leased: int = 0
    dead_messages: int = 0

    @classmethod
    def of(cls, totals: QueueTotals) -> Growth:
        """The counts of a queue since its first job."""
        counts = totals.counts
        given_up = sum(counts.get(each, 0) for each in DEAD_MESSAGES.values())
        return cls(counts.get("dead", 0), counts.get("leased", 0), given_up)

    def plus(self, other: Growth) -> Growth:
        """The sum."""
        return Growth(
            self.dead + other.dead,
            self.leased + other.leased,
            self.dead_messages + other.dead_messages,
        )

    def highest(self, other: Growth) -> Growth:
        """The higher of each."""
        return Growth(
            max(self.dead, other.dead),
            max(self.leased, other.leased),
            max(self.dead_messages, other.dead_messages),
        )

    def since(self, before: Growth) -> Growth:
        """The growth since an earlier state."""
        return Growth(
            max(0, self.dead - before.dead),
            max(0, self.leased - before.leased),
            max(0, self.dead_messages - before.dead_messages),
        )


class PartitionOut(msgspec.Struct, frozen=True):
    """A partition that is shut out."""

    name: str
    out_ms: int
    text: str = ""


class AlertFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a store. `grown` is by the counters' queue names; queues beyond their bound
    share one. It may be too low until a whole `minute` was observed. `unreadable` are the first
    records that cannot be read. `partial` is true while a part of the store is unreachable.
    `broker` is the state of the broker; None if there is none."""

    now: int
    views: Sequence[QueueView] = ()
    workers: Sequence[WorkerView] = ()
    grown: Mapping[str, Growth] = {}
    minute: bool = True
    out: Sequence[PartitionOut] = ()
    free_bytes: int | None = None
    unreadable: Sequence[UnreadableRecord] = ()
    partial: bool = False
    broker: BrokerStatus | None = None


class FactReader:
    """Reads the facts of one namespace.

    `store` is the engine without its wrappers. With `whole` false, another reader reports the
    store's disk and partitions. A server that reads queues and counts for other uses too passes
    its shared `views` and `fleet`.
    """

    def __init__(
        self,
        engine: Engine,
        store: object,
        *,
        whole: bool = True,
        views: Callable[[], Awaitable[list[QueueView]]] | None = None,
        fleet: Callable[[], Awaitable[FleetTotals]] | None = None,
        clock_s: Callable[[], float] = monotonic,
    ) -> None:
        self._engine = engine
        self._store = store
        self._whole = whole
        self._views = views or engine.queues
        self._fleet = fleet or FleetReader(engine, age_s_max=0).fleet
        self._clock_s = clock_s
        self._partitioned = extra(store, Partitioned)
        self._examinable = extra(store, Examinable)
        self._tracker = GrowthTracker()
        self._unreadable: Sequence[UnreadableRecord] = ()
        self._records_at = float("-inf")

    async def read(self) -> AlertFacts:
        """Read everything once."""
        found = Examination(now=wall_ms())
        if self._examinable is not None:
            found = await self._examinable.examine()
        out = self._partitions_out()
        at = round(self._clock_s() * 1000)
        grown = self._tracker.observe(at, await self._fleet(), [each.name for each in out])
        return AlertFacts(
            now=found.now,
            views=await self._views(),
            workers=await Workers(self._engine).all(),
            grown=grown,
            minute=self._tracker.minute,
            out=out if self._whole else (),
            free_bytes=found.free_bytes if self._whole else None,
            unreadable=await self._unreadable_records(),
            partial=bool(out),
            broker=await read_broker_status(self._store),
        )

    async def _unreadable_records(self) -> Sequence[UnreadableRecord]:
        """The records that cannot be read, as of the last minute. Those that were found before are
        looked for again at once, so that the alert ends when they are removed."""
        now = self._clock_s()
        if self._unreadable or now - self._records_at >= _RECORDS_S:
            self._unreadable = await find_unreadable(self._engine, most=bounds.PAGE_MAX)
            self._records_at = now
        return self._unreadable

    def _partitions_out(self) -> list[PartitionOut]:
        views = () if self._partitioned is None else self._partitioned.partitions()
        return [
            PartitionOut(view.name, view.out_ms, view.text)
            for view in views
            if view.out_ms is not None
        ]


class GrowthTracker:
    """Growth of the fleet's counts within the last minute, from repeated observations.

    Pure, and never too high: it starts with the oldest observation within the minute. A count that
    drops, because a part of the store is unreachable, has not grown when it is complete again.
    """

    def __init__(self) -> None:
        self._observed: deque[tuple[int, dict[str, Growth]]] = deque(maxlen=_OBSERVED_MAX)
        self._labels: set[str] = set()
        self._highest: dict[str, Growth] = {}
        self._basis: object = None
        self._since: int | None = None
        self.minute: bool = False
        """True once a whole minute was observed."""

    def observe(self, at: int, fleet: FleetTotals, out: object = None) -> dict[str, Growth]:
        """The growth by queue. `at` is a monotonic clock in milliseconds. Counts are not
        compared with earlier ones once `out`, the unreachable partitions, has changed."""
        if (fleet.epoch, out) != self._basis:
            self._basis = (fleet.epoch, out)
            self._observed.clear()
            self._highest = {}
            self._labels = set()
            self._since = None
        self._follow_labels(fleet)
        for queue, totals in fleet.totals.queues.items():
            self._highest[queue] = self._highest.get(queue, Growth()).highest(Growth.of(totals))
        self._since = at if self._since is None else self._since
        self.minute = at - self._since >= WINDOW_MS
        while self._observed and at - self._observed[0][0] > WINDOW_MS:
            self._observed.popleft()
        self._observed.append((at, dict(self._highest)))
        first = self._observed[0][1]
        # A queue that is missing in the first observation had counted nothing.
        return {
            queue: now.since(first.get(queue, Growth())) for queue, now in self._highest.items()
        }

    def _follow_labels(self, fleet: FleetTotals) -> None:
        """A queue that lost its label to a busier one now counts under OTHER, and one that got a
        label did before: neither has grown by that."""
        queues = fleet.totals.queues
        lost = [name for name in self._labels if name not in queues]
        other = Growth.of(queues.get(OTHER, QueueTotals()))
        left = other.highest(self._highest.get(OTHER, Growth())) != other
        new = [name for name in queues if name not in self._highest] if left else []
        for _, observed in self._observed:
            for name in lost:
                observed[OTHER] = observed.get(OTHER, Growth()).plus(self._highest[name])
            for name in new:
                observed[name] = Growth.of(queues[name])
        self._labels = {name for name in queues if name != OTHER}
