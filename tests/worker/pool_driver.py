"""A child pool whose children are doubles, and a listener that records its callbacks."""

from typing import Any

from holdfast.core.model import Failure, Job, Lease, Queue
from holdfast.process import boot_s
from holdfast.worker.supervisor.child_pool import ChildPool
from holdfast.worker.supervisor.held_leases import HeldLease, HeldLeases, RunnerKind
from holdfast.worker.supervisor.settle import EndedBatch
from holdfast.worker.wire import ChildSetup, Ending, TaskInfo
from tests.worker.doubles import FakeChild
from tests.worker.live_workers import until

SETUP = ChildSetup(worker="", worker_id="1", slots=2, target="a:app")
COMMANDS = ChildSetup(worker="", worker_id="1", slots=2)


class Recorder:
    """A listener of a child pool that records its calls."""

    def __init__(self) -> None:
        self.endings: dict[str, Ending] = {}
        self.crashes: dict[str, tuple[Failure, bool]] = {}
        self.tasks: dict[str, TaskInfo] = {}
        self.failure: Failure | None = None

    def ended(self, ended: list[EndedBatch]) -> None:
        for jobs, ending in ended:
            assert jobs
            for held in jobs:
                assert held.job.id not in self.endings
                self.endings[held.job.id] = ending

    def crashed(self, jobs: list[HeldLease], failure: Failure) -> None:
        for held in jobs:
            assert held.job.id not in self.crashes
            self.crashes[held.job.id] = (failure, len(jobs) == 1)

    def learned(self, tasks: dict[str, TaskInfo]) -> None:
        self.tasks = dict(tasks)

    def broken(self, failure: Failure) -> None:
        self.failure = failure


class PoolDriver:
    """A child pool of doubles."""

    def __init__(self, *, processes: int = 1, commands: bool = False, **fields: Any) -> None:
        self.listener = Recorder()
        self.children: list[FakeChild] = []
        self.held = HeldLeases()
        self.pool = ChildPool(
            self.listener,
            lambda name: Queue(name=name, **fields),
            python=SETUP,
            processes=processes,
            built_in=(COMMANDS,) if commands else (),
            make=FakeChild,
        )

    async def start(self, *tasks: TaskInfo) -> list[FakeChild]:
        await self.pool.start("w")
        self.children = [child for child in self.pool._children if isinstance(child, FakeChild)]
        for child in self.children:
            child.ready(*(tasks or (TaskInfo("work"), TaskInfo("many", batch=3))))
        return self.children

    def give(
        self, ids: str, task: str = "work", kind: RunnerKind = "python", **fields: Any
    ) -> list[HeldLease]:
        leased = self.hold(ids, task, kind, **fields)
        self.pool.add(leased)
        return leased

    def hold(
        self, ids: str, task: str = "work", kind: RunnerKind = "python", **fields: Any
    ) -> list[HeldLease]:
        leases = [
            Lease(job=Job(id=id_, task=task, queue="default", **fields), token=1, lease_ms=60_000)
            for id_ in ids
        ]
        leased = [HeldLease(lease, boot_s(), kind) for lease in leases]
        self.held.add(leased)
        return leased

    async def newest(self, count: int) -> FakeChild:
        """The newest child, once there are so many."""
        await until(lambda: len(self.pool._children) == count, "another child")
        child = list(self.pool._children)[-1]
        assert isinstance(child, FakeChild)
        return child


def ids_of(child: FakeChild) -> list[str]:
    """The ids of the jobs in each call that the child got."""
    return ["".join(given.id for given in call.jobs) for call in child.calls]
