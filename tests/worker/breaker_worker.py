"""Workers reduced to their breaker check and the actions that it calls."""

import msgspec

from holdfast.core.breaker import KIND, Breaker, BreakerRecord
from holdfast.core.model import Failure, Job, Lease
from holdfast.core.verdict import Release
from holdfast.engines.base import Engine
from holdfast.process import boot_s
from holdfast.testing.clock import ManualClock
from holdfast.worker.supervisor.breaker_check import BreakerActions, BreakerCheck
from holdfast.worker.supervisor.held_leases import HeldLease
from holdfast.worker.supervisor.settle import EndedBatch
from holdfast.worker.wire import Ending, Raised, Returned, TaskInfo

POLICY = Breaker(failures=3, cooldown_ms=10_000, cooldown_ms_max=40_000)
BAD: Ending = Raised(Failure(type="OSError", message="no route"))
GOOD: Ending = Returned()
SECOND = 1_000


class Worker:
    """Actions that record their calls; `jobs` are there to be leased as probes."""

    def __init__(self, engine: Engine, id: str, hosts: Breaker | None = None) -> None:
        self.started: list[HeldLease] = []
        self.given_back: list[Release] = []
        self.shut: frozenset[str] = frozenset()
        self.jobs: list[HeldLease] = []
        self.has_room = True
        actions = BreakerActions(
            lambda _: self.has_room,
            self.take_one,
            self.started.extend,
            self.give_back,
            self.shut_out,
        )
        self.breakers = BreakerCheck(engine, id, actions, hosts)
        if hosts is None:
            self.breakers.learn({"t": TaskInfo("t", breaker=POLICY), "u": TaskInfo("u")})

    async def take_one(self, task: str) -> list[HeldLease]:
        assert task == "t"
        return [self.jobs.pop()] if self.jobs else []

    def give_back(self, held: HeldLease, release: Release) -> None:
        held.verdict = release
        self.given_back.append(release)

    def shut_out(self, tasks: frozenset[str]) -> None:
        self.shut = tasks

    def saw(self, *endings: Ending, task: str = "t") -> None:
        for ending in endings:
            self.breakers.record([EndedBatch([a_job(task)], ending)])


def a_job(task: str = "t", url: str = "") -> HeldLease:
    payload = msgspec.json.encode({"url": url})
    job = Job(id="j", task=task, queue="default", payload=payload)
    return HeldLease(Lease(job=job, token=1, lease_ms=30_000), boot_s(), "python")


def hook(host: str = "a.example") -> HeldLease:
    return a_job("webhook", f"https://{host}/x")


async def record(engine: Engine, key: str = "task:t") -> BreakerRecord | None:
    for each in await engine.load(KIND, limit=100):
        if each.key == key:
            return msgspec.json.decode(each.value or b"", type=BreakerRecord)
    return None


async def state(engine: Engine, key: str = "task:t") -> str:
    found = await record(engine, key)
    return "" if found is None else str(found.state)


async def opened(engine: Engine, *workers: Worker) -> None:
    for worker in workers:
        await worker.breakers.sync()
    workers[0].saw(BAD, BAD, BAD)
    for worker in workers:
        await worker.breakers.sync()
    assert await state(engine) == "open"


async def probed(worker: Worker, clock: ManualClock) -> HeldLease:
    """A job for a host after its cool-down: it is kept until it is known which worker may probe."""
    for _ in range(3):
        worker.breakers.record([EndedBatch([hook()], BAD)])
    await worker.breakers.sync()
    clock.advance(10 * SECOND)
    await worker.breakers.sync()
    held = hook()
    worker.breakers.admit([held])
    return held
