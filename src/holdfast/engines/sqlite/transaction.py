"""One transaction, and the caches of queues and lanes that outlive it.

Statements run through `Transaction.run`; the clocks are read once. Changes outside the
job's own row (lanes, slots, tenants, children) collect in `DeferredEffects`, and
`flow.effects.apply_deferred` writes them before the commit.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import apsw
import msgspec

from holdfast.core.model import Queue, State
from holdfast.engines.clock import Clock
from holdfast.engines.sqlite import schema

if TYPE_CHECKING:
    from holdfast.engines.sqlite.flow.fairness import TenantUsage

LaneKey = tuple[int, str, str, int]
"""(queue id, tenant, lane name, rank): unique among lanes."""

LANES_MAX = 2_048
JOBS_MAX = 32
"""The cache holds this many lanes with this many jobs each: a few megabytes."""

LANE_COLUMNS = "id, turn, due_at, place, tenant, task, slots, bar"
ID, TURN, DUE_AT, PLACE, TENANT, TASK, SLOTS, BAR = range(8)

WaitingJob = tuple[int, int, int, int | None]
"""(due_at, place, seq, expires_at)"""

_QUEUE_DECODER = msgspec.json.Decoder(Queue)


class Transaction:
    """One read or write transaction, in the thread that owns its connection.

    The clocks are read once: after a writer has the lock, so a call that waited is not early, and
    before a reader's snapshot, so that a lease renewed since the snapshot does not seem overdue.
    """

    __slots__ = (
        "_cached_lanes",
        "_lane_cache",
        "_last",
        "_used",
        "boot",
        "boot_id",
        "connection",
        "deferred",
        "expired_held_at",
        "has_lost_parents",
        "is_dropping",
        "namespace_id",
        "notifies",
        "now",
        "queue_names",
        "queues",
        "run",
    )

    def __init__(
        self,
        connection: apsw.Connection,
        queue_cache: QueueCache,
        clock: Clock,
        lane_cache: LaneCache | None = None,
    ) -> None:
        self.now: int = clock.wall_ms()
        self.boot: int = clock.boot_ms()
        # Rows come back as plain tuples whose types the schema fixes.
        self.run: Callable[..., Any] = connection.execute
        meta = self.run(
            "SELECT schema, revision, boot, number, forsaken, aside_at FROM hf_meta"
        ).fetchone()
        if meta is None:
            raise apsw.CorruptError("hf_meta has no row")
        self.boot_id: str
        self.has_lost_parents: int
        self.expired_held_at: int
        found, revision, self.boot_id, number, self.has_lost_parents, self.expired_held_at = meta
        if found != len(schema.MIGRATIONS):
            # A newer version migrated the file while this process had it open.
            raise schema.mismatch(connection, found)
        if revision != queue_cache.revision:
            queue_cache.reload(connection)
        self.connection: apsw.Connection = connection
        self.namespace_id: Any = queue_cache.namespace_id
        self.queues: dict[str, QueueRow] = queue_cache.rows
        self.queue_names: dict[int, str] = queue_cache.names
        self.is_dropping: bool = queue_cache.is_dropping
        self.notifies: bool = False
        """True to wake waiting leases of all processes after the commit."""
        self.deferred: DeferredEffects | None = None
        self._used: int = number
        self._last: int = number
        self._cached_lanes = lane_cache
        self._lane_cache: LaneCache | None = None

    @property
    def lane_cache(self) -> LaneCache:
        """The writer's lane cache, checked once per transaction; an empty one for readers."""
        if self._lane_cache is None:
            if self._cached_lanes is None:
                self._lane_cache = LaneCache()
            else:
                self._lane_cache = self._cached_lanes
                self._lane_cache.validate(self.run("PRAGMA data_version").get)
        return self._lane_cache

    @property
    def effects(self) -> DeferredEffects:
        """The deferred effects, created on first use."""
        if self.deferred is None:
            self.deferred = DeferredEffects()
        return self.deferred

    def allocate(self, count: int) -> int:
        """Allocate `count` numbers that were never used before; returns the first."""
        first = self._last + 1
        self._last += count
        return first

    def finish(self) -> None:
        """Before the commit: store the last allocated number."""
        if self._last != self._used:
            self.run("UPDATE hf_meta SET number = ?", (self._last,))
            self._used = self._last

    def note_expired(self) -> None:
        """Record that jobs expired by now were held, in case the clock is set back."""
        if self.expired_held_at < self.now:
            self.run("UPDATE hf_meta SET aside_at = ?", (self.now,))
            self.expired_held_at = self.now

    def changes(self) -> int:
        """The number of rows the last statement changed."""
        return self.connection.changes()

    def bump_revision(self) -> None:
        """Make every queue cache, in all processes, reload the queues."""
        self.run("UPDATE hf_meta SET revision = revision + 1")


class DeferredEffects:
    """Flow-control changes of one transaction that are written together before the commit."""

    __slots__ = ("busy", "cascaded", "ended", "freed", "lane_ids", "lanes")

    def __init__(self) -> None:
        self.lanes: set[int] = set()
        """Lanes whose first job may have changed."""
        self.ended: list[tuple[int, str, State | None]] = []
        """(seq, id, state) of ended jobs with children; None if the job was deleted unfinished."""
        self.cascaded: int = 0
        """Dependency edges followed so far, bounded by `bounds.CASCADE_MAX`."""
        self.freed: dict[int, int] = {}
        """The number of ended leases, by lane."""
        self.busy: dict[tuple[int, str], list[int]] = {}
        """[ended leases, their total duration in ms], by (queue id, tenant)."""
        self.lane_ids: dict[LaneKey, int] = {}
        """Lanes looked up or created in this transaction."""


class QueueRow(NamedTuple):
    """A queue's settings and its number in the store."""

    id: int
    settings: Queue
    has_lanes: bool
    """Limits or fairness put its jobs, some or all, into lanes."""
    needs_relane: bool
    """Its settings changed and not all jobs are in the right lane yet."""


class QueueCache:
    """The queues of one namespace as of `revision`, held by each connection.

    `hf_meta.revision` grows with every change of a queue, so comparing one number shows whether the
    cache is current. A queue row without a name is being dropped; its jobs count as gone.
    """

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self.revision: Any = -1
        self.namespace_id: Any = 0
        self.rows: dict[str, QueueRow] = {}
        self.names: dict[int, str] = {}
        self.is_dropping: bool = False

    def reload(self, connection: apsw.Connection) -> None:
        """Read the queues. A change between the statements shows as a new revision later."""
        self.revision = connection.execute("SELECT revision FROM hf_meta").get
        self.namespace_id = connection.execute(
            "SELECT id FROM hf_namespaces WHERE name = ?", (self._namespace,)
        ).get
        found: Any = connection.execute(
            "SELECT q.id, q.name, q.settings, f.sorting FROM hf_queues q"
            " LEFT JOIN hf_flows f ON f.queue = q.id WHERE q.ns = ?",
            (self.namespace_id,),
        ).fetchall()
        rows = [
            _queue_row(id_, settings, sorting) for id_, name, settings, sorting in found if name
        ]
        self.rows = {row.settings.name: row for row in rows}
        self.names = {row.id: row.settings.name for row in rows}
        self.is_dropping = len(rows) < len(found)

    def invalidate(self) -> None:
        """Reload at the next transaction: the last one may have been rolled back."""
        self.revision = -1


def _queue_row(id: int, settings: bytes, sorting: str | None) -> QueueRow:
    queue = _QUEUE_DECODER.decode(settings)
    has_lanes = bool(queue.limits) or queue.fairness != "off"
    return QueueRow(id, queue, has_lanes, sorting is not None)


class LaneCache:
    """Write-side cache: lanes with their first jobs, slots by lane, and tenants' usage by queue.

    Valid until another process writes to the file or a transaction is rolled back. Code that
    changes a lane's jobs other than by leasing from its front drops that lane from the cache.
    """

    __slots__ = ("_version", "lane_slots", "lanes", "tenants")

    def __init__(self) -> None:
        self._version = 0
        self.lanes: dict[int, LaneCursor] = {}
        self.lane_slots: dict[int, tuple[int, ...]] = {}
        self.tenants: dict[int, TenantUsage] = {}

    def clear(self) -> None:
        """Empty the cache."""
        self.lanes.clear()
        self.lane_slots.clear()
        self.tenants.clear()

    def validate(self, version: int) -> None:
        """Clear the cache if SQLite's data version shows that another connection wrote."""
        if version != self._version:
            self.clear()
            self._version = version

    def keep(self, lane: LaneCursor) -> None:
        """Cache a lane as this call leaves it."""
        if len(self.lanes) >= LANES_MAX:
            self.lanes.clear()
        end = lane.at + JOBS_MAX
        lane.more = lane.more or len(lane.jobs) > end
        lane.jobs = lane.jobs[lane.at : end]
        lane.at = 0
        self.lanes[lane.id] = lane

    def keep_slots(self, lane: int, slots: tuple[int, ...]) -> None:
        """Cache a lane's slots, which never change; lane ids are never reused."""
        if len(self.lane_slots) >= LANES_MAX:
            self.lane_slots.clear()
        self.lane_slots[lane] = slots

    def forget_lane(self, lane: int) -> None:
        """Drop a lane whose jobs changed."""
        self.lanes.pop(lane, None)

    def recall(self, row: tuple[Any, ...]) -> LaneCursor:
        """The lane of this row of `hf_lanes`, with its cached jobs if they are still first."""
        lane = self.lanes.get(row[ID])
        if lane is None or lane.jobs[0][:2] != row[DUE_AT : PLACE + 1]:
            return LaneCursor(row)
        lane.turn, lane.bar = row[TURN], row[BAR]
        lane.first = lane.time = row[DUE_AT : PLACE + 1]
        lane.is_done = False
        return lane


class LaneCursor:
    """A lane and how far a call has read it. Lane 0 stands for the jobs that need no lane."""

    __slots__ = (
        *("at", "bar", "first", "id", "is_done", "jobs", "more", "slots", "tenant", "time"),
        "turn",
    )

    def __init__(self, row: tuple[Any, ...]) -> None:
        self.id: int = row[ID]
        self.turn: int = row[TURN]
        self.first: tuple[int, int] = row[DUE_AT : PLACE + 1]
        self.tenant: str = row[TENANT]
        self.slots: tuple[int, ...] = read_slots(row[SLOTS])
        self.bar: int = row[BAR]
        self.jobs: list[WaitingJob] = []
        self.at: int = 0
        self.more = True
        self.is_done = False
        self.time: tuple[int, int] = self.first
        """(due_at, place) of the first job left, as far as known."""

    def advance(self) -> None:
        """Go to the next job."""
        self.at += 1
        if self.at < len(self.jobs):
            self.time = self.jobs[self.at][:2]


@lru_cache(maxsize=4096)
def read_slots(text: str) -> tuple[int, ...]:
    """Decode the `slots` column of a lane."""
    return msgspec.json.decode(text, type=tuple[int, ...])
