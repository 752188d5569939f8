"""How much room there is for each kind of job, and so what the intake asks for.

All kinds that have room are asked for in one call: looking for one kind alone may lead past any
number of the others. A kind that is full is left out, so it never keeps out another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from time import monotonic

from holdfast.core import limits
from holdfast.core.model import Job, Lease
from holdfast.core.workers import Health, room, worker_queue
from holdfast.engines.base import Engine
from holdfast.worker.clock import boot_s
from holdfast.worker.crew import Crew
from holdfast.worker.hand import KINDS, Hand, Held, Kind
from holdfast.worker.intake import Intake, Pace
from holdfast.worker.options import WorkerOptions
from holdfast.worker.sequences import Sequences
from holdfast.worker.wire import TaskInfo

_HAND_MAX = 4_000
_ALONE_MAX = 256
"""Jobs that must run alone come with the others; so many may wait before no others are taken."""
_SHARE_MIN = 0.02


class Rooms:
    """`taken` gets what was leased and may start; `sequences` keeps the others. Closed, nothing
    is leased."""

    def __init__(
        self,
        engine: Engine,
        options: WorkerOptions,
        hand: Hand,
        crew: Crew,
        taken: Callable[[list[Held]], None],
    ) -> None:
        self.sequences = Sequences()
        self.intake = Intake(engine, self.wanted, self._take, taken)
        self.shut: frozenset[str] = frozenset()
        self._options = options
        self._hand = hand
        self._crew = crew
        self._paces = {kind: Pace(options.prefetch) for kind in KINDS}
        self._shares = dict.fromkeys(KINDS, 0.0)
        self._tasks: dict[Kind, frozenset[str]] = dict.fromkeys(KINDS, frozenset())
        self._left_out: set[Kind] = set()
        self._batch_max = 1
        self._closed = False
        self._health = Health.HEALTHY
        self._broken = False

    def learn(self, worker: str, tasks: Mapping[str, TaskInfo]) -> None:
        """What may be leased, and from where: the queues asked for, or those the tasks name."""
        self._batch_max = max((info.batch for info in tasks.values()), default=1)
        before = dict(self._tasks)
        for kind in KINDS:
            of_kind = (name for name, info in tasks.items() if self._crew.kind_of(info) == kind)
            self._tasks[kind] = frozenset(of_kind)
        served = {worker_queue(worker): 1, **self.queues(tasks)}
        if self.intake.serve(worker, served) or before != self._tasks:
            self.intake.interrupt()

    def queues(self, tasks: Mapping[str, TaskInfo]) -> dict[str, int]:
        named = {info.queue: 1 for info in tasks.values()}
        return self._options.queues or {"default": 1, **named}

    def set(self, *, closed: bool, health: Health, broken: bool = False) -> None:
        """`broken` is about the application: commands need none. What is being waited for is given
        up only when all or nothing changed, because what it just leased would be released."""
        before = (self._closed, self._broken, self._health is Health.UNHEALTHY)
        self._closed, self._health, self._broken = closed, health, broken
        if before != (closed, broken, health is Health.UNHEALTHY):
            self.intake.interrupt()

    def ended(self, kind: Kind) -> None:
        """A job of this kind ended, and made room."""
        self._paces[kind].ended()
        self.freed(kind)

    def freed(self, kind: Kind) -> None:
        """One of this kind is not in hand any more, however it left."""
        if kind in self._left_out:
            self.intake.interrupt()
        else:
            self.intake.look()

    def measure(self) -> None:
        for pace in self._paces.values():
            pace.measure()

    def wanted(self) -> tuple[int, frozenset[str]]:
        """How many at most, of which tasks. As many as will, by the shares of late, not overfill
        the kind with the least room."""
        rooms = {kind: self.room(kind) for kind in KINDS if self._tasks[kind]}
        open_ = {kind: free for kind, free in rooms.items() if free > 0}
        self._left_out = set(rooms) - set(open_)
        if not open_:
            return 0, frozenset()
        likely = (free / max(self._shares[kind], _SHARE_MIN) for kind, free in open_.items())
        limit = max(1, min(int(min(likely)), max(open_.values()), limits.BATCH_MAX))
        tasks = frozenset().union(*(self._tasks[kind] for kind in open_)) - self.shut
        return (limit if tasks else 0), tasks

    def shut_out(self, tasks: frozenset[str]) -> None:
        """Of these nothing is leased until it is said otherwise, but one by one."""
        self.shut = tasks
        self.intake.interrupt()

    def has_room(self, task: str) -> bool:
        return any(self.room(kind) > 0 for kind in KINDS if task in self._tasks[kind])

    async def take_one(self, task: str) -> list[Held]:
        """A job of a task that is shut out, if there is room and such a job."""
        if not self.has_room(task):
            return []
        asked = boot_s()
        leases = await self.intake.lease_one(task)
        return self._take(leases, asked) if leases else []

    def room(self, kind: Kind) -> int:
        """Free slots and what is leased ahead; less when not well, nothing when closed."""
        if self._closed or (self._broken and kind in ("python", "solo")):
            return 0
        busy = self._hand.unjudged[kind] - self.sequences.idle(kind)
        free = self._crew.capacity_of(kind) + self.ahead(kind) - busy
        free = min(free, _HAND_MAX - len(self._hand))
        if kind == "python" and self._hand.unjudged["solo"] >= _ALONE_MAX:
            free = 0
        return room(max(0, free), self._health)

    def ahead(self, kind: Kind) -> int:
        """A batch task wants a whole batch at once."""
        return max(self._paces[kind].ahead(), self._batch_max - 1 if kind == "python" else 0)

    def idle_s(self) -> float:
        """How long nothing has been leased although there was room."""
        return monotonic() - self.intake.leased_at

    def _take(self, leases: list[Lease], asked: float) -> list[Held]:
        """All are in hand from now on; those that may start."""
        taken = self._hand.take(leases, asked, self._kind_of)
        kinds = Counter(held.kind for held in taken)
        for kind, share in self._shares.items():
            self._shares[kind] = share + (kinds[kind] / len(taken) - share) * 0.3
        return self.sequences.take(taken)

    def _kind_of(self, job: Job) -> Kind:
        info = self._crew.tasks.get(job.task) or TaskInfo(job.task)
        return self._crew.kind_of(info, alone=job.runs_alone)
