"""The workers of a store: list them, send them orders, reroute their jobs, and end overdue leases.

An order is a record that the worker reads with its next heartbeat. The jobs that a worker runs are
found through the jobs, never here. Verdicts on overdue leases and expired jobs come from
`core.retry_policy`; the job's token and state decide races with a worker that settles at the same
time.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import asdict, replace

from holdfast.core import bounds, lifecycle, retry_policy, routing
from holdfast.core.explain import SeenWorker
from holdfast.core.model import Job, JobFilter, Lease, State
from holdfast.core.retry_policy import ttl_ms
from holdfast.core.verdict import BuryWaiting, Edit, Move, Outcome, Settlement
from holdfast.core.workers import (
    KIND,
    ORDER_KIND,
    UNATTENDED_KIND,
    Health,
    UnattendedQueues,
    WorkerOrder,
    WorkerRecord,
    addressee,
    unattended_workers,
    worker_queue,
)
from holdfast.engines.base import Engine
from holdfast.errors import Forbidden, NotFound, UsageError, WrongState
from holdfast.notation.durations import Duration, show_at, to_ms
from holdfast.ops.queues import queue_settings
from holdfast.ops.records import RecordKind, check_same


def _check_stored(key: str, worker: WorkerRecord) -> None:
    check_same("name", worker.name, key)


WORKERS = RecordKind(KIND, WorkerRecord, check=_check_stored)
ORDERS = RecordKind(ORDER_KIND, WorkerOrder, label="the order to worker")
UNATTENDED = RecordKind(UNATTENDED_KIND, UnattendedQueues, label="unattended queues")
UNATTENDED_KEY = "now"
_REROUTE_TRIES_MAX = 10
_PAGE = 200

OrderName = Literal["stop", "drain", "cordon", "uncordon"]


class OrderResult(NamedTuple):
    """The workers that got an order, and the requested names that have not registered."""

    workers: tuple[str, ...]
    missing: tuple[str, ...]


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's record, its age, for how long it has not received from its queue at the broker,
    and the health that follows."""

    record: WorkerRecord
    age_ms: int
    health: Health
    why: str
    unattended_ms: int = 0

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def seen(self) -> SeenWorker:
        """The worker as the pure rules take it."""
        return SeenWorker(record=self.record, age_ms=self.age_ms, unattended_ms=self.unattended_ms)


class Workers:
    """The workers of one store, and orders to them from anywhere."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def all(self) -> list[WorkerView]:
        """Every readable worker, by name."""
        orders = await self.orders()
        unattended = await read_unattended(self._engine)
        views: list[WorkerView] = []
        async for stored in WORKERS.read_all(self._engine):
            if stored.value is None:
                continue
            cordoned = orders.get(stored.value.name, WorkerOrder()).cordoned
            record = replace(stored.value, cordoned=cordoned)
            seen = SeenWorker(
                record=record,
                age_ms=stored.age_ms,
                unattended_ms=unattended.get(record.name, 0),
            )
            state, why = seen.health
            views.append(
                WorkerView(
                    record=record,
                    age_ms=seen.age_ms,
                    health=state,
                    why=why,
                    unattended_ms=seen.unattended_ms,
                )
            )
        return views

    async def get(self, name: str) -> WorkerView | None:
        """One worker; None if none with this name has registered."""
        return next((view for view in await self.all() if view.name == name), None)

    async def orders(self) -> dict[str, WorkerOrder]:
        """Every readable order by worker name."""
        return await ORDERS.values(self._engine)

    async def cordon(self, name: str, *, by: str = "") -> None:
        """Stop the worker from leasing, across restarts, until it is uncordoned."""
        await self._known(name)
        await self._order(name, cordoned=True, by=by)

    async def uncordon(self, name: str, *, by: str = "") -> None:
        """Let the worker lease again."""
        await self._known(name)
        await self._order(name, cordoned=False, by=by)

    async def stop(self, name: str, *, grace: Duration | None = None, by: str = "") -> None:
        """Make the worker finish its running jobs within `grace`, release the others and exit.
        Without it the worker's own grace period applies; 0 releases all jobs at once."""
        grace_ms = _grace_ms(grace)
        view = await self._known(name)
        await self._order(name, ending="stop", ending_id=view.record.id, grace_ms=grace_ms, by=by)

    async def drain(self, name: str, *, by: str = "") -> None:
        """Make the worker finish its jobs, however long that takes, and exit."""
        view = await self._known(name)
        await self._order(name, ending="drain", ending_id=view.record.id, grace_ms=None, by=by)

    async def order(
        self,
        order: OrderName,
        names: Iterable[str] | None = None,
        *,
        grace: Duration | None = None,
        by: str = "",
    ) -> OrderResult:
        """Send an order to these workers, or to all of them. `grace` applies to stop only."""
        if grace is not None and order != "stop":
            raise UsageError(f"{order} has no grace period: only stop has one")
        registered = [view.name for view in await self.all()]
        wanted = registered if names is None else list(dict.fromkeys(names))
        ordered = tuple(name for name in wanted if name in registered)
        for name in ordered:
            match order:
                case "stop":
                    await self.stop(name, grace=grace, by=by)
                case "drain":
                    await self.drain(name, by=by)
                case "cordon":
                    await self.cordon(name, by=by)
                case "uncordon":
                    await self.uncordon(name, by=by)
        return OrderResult(ordered, tuple(name for name in wanted if name not in registered))

    async def nudge(self, name: str, *, force: str | None = None) -> None:
        """Make the worker renew its leases at once, so that it sees a cancel request. With `force`,
        the id of a cancelled job, it also ends that job's attempt.
        """
        await ORDERS.update(
            self._engine, name, lambda order: (order or WorkerOrder()).nudged(force)
        )

    async def forget(self, name: str) -> None:
        """Remove the records of a worker that has ended."""
        await WORKERS.remove(self._engine, name)
        await ORDERS.remove(self._engine, name)

    async def _known(self, name: str) -> WorkerView:
        views = await self.all()
        for view in views:
            if view.name == name:
                return view
        names = ", ".join(view.name for view in views) or "none"
        raise UsageError(
            f'unknown worker "{name[:80]}": no worker with this name has registered; '
            f'there are: {names}; see "holdfast worker list"'
        )

    async def _order(self, name: str, **changes: object) -> None:
        await ORDERS.update(
            self._engine, name, lambda order: replace(order or WorkerOrder(), **changes)
        )


async def read_unattended(engine: Engine) -> dict[str, int]:
    """For how long workers have not received from their queues at the broker, by name, as far as
    that is known."""
    try:
        found = await UNATTENDED.read(engine, UNATTENDED_KEY)
    except Forbidden:
        # A server of an earlier version does not know the kind.
        return {}
    return {} if found is None else unattended_workers(found.value, found.age_ms)


def _grace_ms(grace: Duration | None) -> int | None:
    if grace is None:
        return None
    grace_ms = to_ms("grace", grace, UsageError)
    if grace_ms > bounds.DAY_MS:
        raise UsageError(f"grace {str(grace)[:40]} is out of range: expected at most 1d")
    return grace_ms


class WorkerChoice:
    """Chooses workers for jobs that are addressed to one; each choice counts for the next."""

    def __init__(self, workers: list[SeenWorker], waiting: dict[str, int]) -> None:
        self._workers = workers
        self._waiting = waiting

    @classmethod
    async def read(cls, engine: Engine) -> WorkerChoice:
        """The workers, and the number of jobs that wait in their own queues, as of now."""
        workers = [view.seen for view in await Workers(engine).all()]
        waiting = {
            name: view.ready + view.delayed + view.blocked
            for view in await engine.queues()
            if (name := addressee(view.queue.name)) is not None
        }
        return cls(workers, waiting)

    def next(self, job: Job, labels: Mapping[str, str]) -> str | None:
        """The name of another worker for the job; None if none fits."""
        name = routing.choose_worker(job, self._workers, labels, self._waiting)
        if name is not None:
            self._waiting[name] += 1
        return name


async def reroute(
    engine: Engine,
    id: str,
    *,
    to: str | None = None,
    labels: Mapping[str, str] | None = None,
    expires_ms: int | None = None,
    by: str = "",
) -> str:
    """Move a waiting job to another worker, and return that worker's name.

    It does not count against the job's own reroutes. UsageError explains why the job was not moved.
    """
    for _ in range(_REROUTE_TRIES_MAX):
        job = _check_addressed(await engine.get(id), id)
        policy = job.overrides.reroute
        wanted = labels if labels is not None else policy.labels if policy is not None else {}
        name = to or (await WorkerChoice.read(engine)).next(job, wanted)
        if name is None:
            raise UsageError("no other healthy worker knows the job's task and has these labels")
        act = Move(
            queue=worker_queue(name),
            by=by,
            text="rerouted",
            expires_ms=ttl_ms(job) if expires_ms is None else expires_ms,
        )
        still = JobFilter(ids=(id,), states=(State.WAITING,), version=job.version)
        if await engine.amend(still, act, limit=1):
            return name
    raise UsageError("it is being changed by others: try again")


def _check_addressed(job: Job | None, id: str) -> Job:
    if job is None:
        raise NotFound(f"no job has the id {id[:128]!r}")
    if job.state is not State.WAITING:
        raise WrongState(f"it is {job.state}, and must be waiting")
    if addressee(job.queue) is None:
        raise UsageError(
            f"it is in queue {job.queue}, and not addressed to a worker: "
            'move it with "holdfast job edit"'
        )
    return job


class ExpiryResult(NamedTuple):
    """Counts of ended leases, and of expired jobs that were buried or rerouted. `next_ms` is
    the time to the next deadline: 0 if there is more to do, None if not known."""

    overdue: int = 0
    buried: int = 0
    rerouted: int = 0
    next_ms: int | None = None


async def end_overdue_and_expired(engine: Engine, limit: int) -> ExpiryResult:
    """One batch of overdue leases and one of expired jobs."""
    overdue = await engine.overdue(limit)
    ended = await _end_leases(engine, overdue.leases) if overdue.leases else 0
    expired = await engine.expired(limit)
    done = await end_expired(engine, expired.jobs)
    ahead = [ms for ms in (overdue.next_ms, expired.next_ms) if ms is not None]
    next_ms = min(ahead, default=None)
    changed = ended or done.buried or done.rerouted or done.corrected
    if not changed and (overdue.leases or expired.jobs):
        # Other processes handled all of them first: look again later, not in a hot loop.
        next_ms = None
    return ExpiryResult(ended, done.buried, done.rerouted, next_ms)


async def _end_leases(engine: Engine, leases: Collection[Lease]) -> int:
    # Read after the leases, so that the queues of all of them are known.
    queues = await queue_settings(engine, {lease.job.queue for lease in leases})
    settlements = [
        Settlement(lease=lease, verdict=retry_policy.after_overdue(queue, lease.job))
        for lease in leases
        # A missing queue was just dropped, with its jobs.
        if (queue := queues.get(lease.job.queue)) is not None
    ]
    outcomes = await engine.settle(settlements)
    return outcomes.count(Outcome.SETTLED)


async def _without_outdated(engine: Engine, jobs: Sequence[Job]) -> Sequence[Job]:
    """Give the jobs whose queue has another `expires` by now the expiry that it gives them, and
    return the others. Declaring a queue does this, but may have been interrupted."""
    names = {job.queue for job in jobs if job.queue_expiry}
    queues = await queue_settings(engine, names) if names else {}
    outdated: dict[tuple[str, str], list[str]] = defaultdict(list)
    for job in jobs:
        queue = queues.get(job.queue)
        if job.queue_expiry and queue and lifecycle.with_queue_expiry(job, queue) is not job:
            outdated[job.queue, job.task].append(job.id)
    corrected: set[str] = set()
    for (name, task), ids in outdated.items():
        still = JobFilter(
            ids=tuple(ids), queue=name, task=task, states=(State.WAITING,), expired=True
        )
        correction = Edit(by="reaper", text="the expiry of its queue was changed")
        # A caller that may not edit the jobs of this task lets them expire.
        with contextlib.suppress(Forbidden):
            await engine.amend(still, correction, limit=len(ids))
            corrected.update(ids)
    return [job for job in jobs if job.id not in corrected] if corrected else jobs


class EndedJobs(NamedTuple):
    """Counts of expired jobs that were buried, rerouted, or given the new expiry of their queue.
    `buried_ids` and `rerouted_ids` are those that are known for sure; any other job was changed by
    another process, or has another expiry."""

    buried: int = 0
    rerouted: int = 0
    corrected: int = 0
    buried_ids: frozenset[str] = frozenset()
    rerouted_ids: frozenset[str] = frozenset()


async def end_expired(
    engine: Engine,
    jobs: Sequence[Job],
    *,
    by: str = "reaper",
    history: Mapping[str, str] | None = None,
) -> EndedJobs:
    """Reroute or bury expired jobs, each on the version that was read. `history` is what the broker
    recorded about their messages, by id. Rerouting comes last: it needs the workers' records,
    which may be slow to read."""
    left = await _without_outdated(engine, jobs)
    corrected = len(jobs) - len(left)
    burials = _Burials(engine, by, history or {})
    addressed = [job for job in left if is_rerouted(job)]
    await burials.bury([job for job in left if not is_rerouted(job)], {})
    moved, stuck = await reroute_expired(engine, addressed, by=by, history=history)
    await burials.bury([job for job in addressed if job.id in stuck], stuck)
    return EndedJobs(burials.count, len(moved), corrected, frozenset(burials.ids), frozenset(moved))


class _Burials:
    """Buries expired jobs; `ids` are those of calls that buried all jobs they named."""

    def __init__(self, engine: Engine, by: str, history: Mapping[str, str]) -> None:
        self._engine = engine
        self._by = by
        self._history = history
        self.count = 0
        self.ids: set[str] = set()

    async def bury(self, jobs: Iterable[Job], why: Mapping[str, str]) -> None:
        """`why` is by id."""
        alike: dict[tuple[str, str, int, BuryWaiting], list[str]] = defaultdict(list)
        for job in jobs:
            amendment = retry_policy.after_expiry(
                job, why.get(job.id, ""), by=self._by, history=self._history.get(job.id, "")
            )
            alike[job.queue, job.task, job.version, amendment].append(job.id)
        for (queue, task, version, amendment), ids in alike.items():
            # One call per queue and task, so that counters and events name them.
            still = JobFilter(
                ids=tuple(ids),
                queue=queue,
                task=task,
                states=(State.WAITING,),
                expired=True,
                version=version,
            )
            buried = await self._engine.amend(still, amendment, limit=len(ids))
            self.count += buried
            if buried == len(ids):
                self.ids.update(ids)


def is_rerouted(job: Job) -> bool:
    """True if the job goes to another worker when its own does not take it in time. In a queue
    that is no worker's own, the option has no effect."""
    return job.overrides.reroute is not None and addressee(job.queue) is not None


async def reroute_expired(
    engine: Engine,
    jobs: Iterable[Job],
    *,
    by: str = "reaper",
    history: Mapping[str, str] | None = None,
) -> tuple[list[str], dict[str, str]]:
    """Move expired jobs that are addressed to one worker to another.

    Returns the ids of those that were moved and, by id, why others could not be moved.
    """
    choice: WorkerChoice | None = None
    moved, stuck = [], {}
    for job in jobs:
        reroute = job.overrides.reroute
        if reroute is None or not is_rerouted(job):
            continue
        if choice is None:
            choice = await WorkerChoice.read(engine)
        name = choice.next(job, reroute.labels) if routing.reroutes_left(reroute) else None
        if name is None:
            stuck[job.id] = routing.why_not_rerouted(reroute)
            continue
        still = JobFilter(ids=(job.id,), states=(State.WAITING,), expired=True, version=job.version)
        act = routing.reroute_to(job, reroute, name, by=by, history=(history or {}).get(job.id, ""))
        if await engine.amend(still, act, limit=1):
            moved.append(job.id)
    return moved, stuck


async def reroute_unattended(
    engine: Engine, name: str, for_ms: int, *, now: int, by: str, limit: int
) -> int:
    """Move due jobs of a worker that does not receive from its queue at the broker to other
    workers, before they expire, where they allow it; returns how many were moved. A job that no
    other worker can take stays. Only the newest `limit` jobs are looked at."""
    why = f"worker {name} has not received from its queue at the broker for {for_ms // 1000} s"
    choice: WorkerChoice | None = None
    moved = 0
    for job in await _newest_waiting(engine, worker_queue(name), limit):
        policy = job.overrides.reroute
        if policy is None or job.due_at > now or not routing.reroutes_left(policy):
            continue
        choice = choice or await WorkerChoice.read(engine)
        to = choice.next(job, policy.labels)
        if to is None:
            continue
        still = JobFilter(
            ids=(job.id,), queue=job.queue, states=(State.WAITING,), version=job.version
        )
        act = routing.reroute_to(job, policy, to, by=by, why=why)
        moved += await engine.amend(still, act, limit=1)
    return moved


async def _newest_waiting(engine: Engine, queue: str, limit: int) -> list[Job]:
    wanted = JobFilter(queue=queue, states=(State.WAITING,))
    found: list[Job] = []
    after: int | None = None
    while len(found) < limit:
        page = await engine.find(wanted, limit=min(limit - len(found), _PAGE), after=after)
        found += page.jobs
        after = page.after
        if after is None:
            break
    return found


class WorkerDetails(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's record, which is `heartbeat_age_ms` old, and its health."""

    name: str
    id: str
    host: str
    pid: int
    started_at: str
    start_ticks: int
    version: str
    queues: dict[str, int]
    tasks: tuple[str, ...]
    labels: dict[str, str]
    capacity: int
    running: int
    prefetched: int
    done: int
    failed: int
    consecutive_failures: int
    failure_rate: float
    blocked: str
    cordoned: bool
    stopping: bool
    health: Health
    why: str
    heartbeat_age_ms: int


class Ordered(msgspec.Struct, frozen=True, kw_only=True):
    """The workers that got an order, and the requested names that have not registered."""

    workers: tuple[str, ...]
    missing: tuple[str, ...]


def worker_details(view: WorkerView) -> WorkerDetails:
    """A worker as people read it."""
    record = view.record
    return WorkerDetails(
        **{**asdict(record), "started_at": show_at(record.started_at)},
        health=view.health,
        why=view.why,
        heartbeat_age_ms=view.age_ms,
    )
