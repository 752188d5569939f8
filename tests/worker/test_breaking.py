"""The breakers of two workers on one store: what they share, who probes, what goes back."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from holdfast.core.breaker import HOST_PREFIX, KIND, PROBE_MS, Breaker, BreakerRecord
from holdfast.core.model import Failure, Job, Lease, Record
from holdfast.core.verdict import Release
from holdfast.engines.base import Engine, Saved
from holdfast.engines.url import open_engine
from holdfast.errors import EngineUnavailable
from holdfast.testing.clock import ManualClock
from holdfast.worker import breaking
from holdfast.worker.breaking import Breakers, Doors
from holdfast.worker.clock import boot_s
from holdfast.worker.hand import Held
from holdfast.worker.wire import AskedBury, AskedRetry, Ending, Raised, Returned, TaskInfo

POLICY = Breaker(failures=3, cooldown_ms=10_000, cooldown_ms_max=40_000)
BAD: Ending = Raised(Failure(type="OSError", message="no route"))
GOOD: Ending = Returned()
SECOND = 1_000


class Worker:
    """Doors that note what they are asked; `jobs` are there to be probed with."""

    def __init__(self, engine: Engine, id: str, hosts: Breaker | None = None) -> None:
        self.started: list[Held] = []
        self.given_back: list[Release] = []
        self.shut: frozenset[str] = frozenset()
        self.jobs: list[Held] = []
        self.has_room = True
        doors = Doors(
            lambda _: self.has_room,
            self.take_one,
            self.started.extend,
            self.give_back,
            self.shut_out,
        )
        self.breakers = Breakers(engine, id, doors, hosts)
        if hosts is None:
            self.breakers.learn({"t": TaskInfo("t", breaker=POLICY), "u": TaskInfo("u")})

    async def take_one(self, task: str) -> list[Held]:
        assert task == "t"
        return [self.jobs.pop()] if self.jobs else []

    def give_back(self, held: Held, release: Release) -> None:
        held.verdict = release
        self.given_back.append(release)

    def shut_out(self, tasks: frozenset[str]) -> None:
        self.shut = tasks

    def saw(self, *endings: Ending, task: str = "t") -> None:
        for ending in endings:
            self.breakers.ended(a_job(task), ending)


def a_job(task: str = "t", url: str = "") -> Held:
    payload = msgspec.json.encode({"url": url})
    job = Job(id="j", task=task, queue="default", payload=payload)
    return Held(Lease(job=job, token=1, lease_ms=30_000), boot_s(), "python")


def hook(host: str = "a.example") -> Held:
    return a_job("webhook", f"https://{host}/x")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match request.param:
        case "sqlite":
            return f"sqlite:///{tmp_path}/work.db"
        case "postgresql":
            dsn: str = request.getfixturevalue("pg_dsn")
            return dsn
        case _:
            return "memory:"


@pytest.fixture
async def engine(url: str, clock: ManualClock) -> AsyncIterator[Engine]:
    engine = open_engine(url, clock=clock)
    await engine.open()
    yield engine
    await engine.close()


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
        await worker.breakers.look()
    workers[0].saw(BAD, BAD, BAD)
    for worker in workers:
        await worker.breakers.look()
    assert await state(engine) == "open"


async def test_failures_of_several_workers_add_up_and_shut_all_of_them(engine: Engine) -> None:
    one, two = Worker(engine, "1"), Worker(engine, "2")
    await one.breakers.look()
    assert await state(engine) == "closed", "it is there to be seen before anything fails"
    one.saw(BAD)
    await one.breakers.look()
    await two.breakers.look()
    two.saw(BAD, BAD)
    assert two.breakers.sooner.is_set(), "what opens it is told at once"
    await two.breakers.look()
    assert (set(one.shut), set(two.shut)) == (set(), {"t"})
    await one.breakers.look()
    assert one.shut == {"t"}
    found = await record(engine)
    assert found is not None
    assert (found.last, found.open_ms) == ("OSError: no route", 10_000)


async def test_a_success_in_between_starts_the_count_anew(engine: Engine) -> None:
    one, two = Worker(engine, "1"), Worker(engine, "2")
    one.saw(BAD, BAD)
    await one.breakers.look()
    await two.breakers.look()
    two.saw(GOOD)
    await two.breakers.look()
    one.saw(BAD, BAD)
    await one.breakers.look()
    assert await state(engine) == "closed"


async def test_what_speaks_not_against_the_task_does_not_count(engine: Engine) -> None:
    worker = Worker(engine, "1")
    failure = Failure(type="ValueError")
    worker.saw(*[AskedRetry(failure, 1_000)] * 9, *[AskedBury(failure)] * 9)
    worker.saw(*[Raised(failure, fatal=True)] * 9)
    worker.saw(*[BAD] * 9, task="u")
    await worker.breakers.look()
    assert await state(engine) == "closed"
    worker.breakers.crashed(a_job(), Failure(type="SIGSEGV"))
    worker.saw(BAD, BAD)
    await worker.breakers.look()
    assert await state(engine) == "open", "a crash counts"


async def test_one_of_them_probes_with_one_job(engine: Engine, clock: ManualClock) -> None:
    one, two = Worker(engine, "1"), Worker(engine, "2")
    await opened(engine, one, two)
    one.jobs, two.jobs = [a_job(), a_job()], [a_job()]
    clock.advance(9 * SECOND)
    for worker in (one, two, one, two):
        await worker.breakers.look()
    assert one.started == two.started == []
    clock.advance(SECOND)
    for worker in (two, one, two, one):
        await worker.breakers.look()
    assert (len(one.started), len(two.started)) == (0, 1)
    assert await state(engine) == "half_open"
    two.breakers.ended(two.started[0], GOOD)
    await two.breakers.look()
    await one.breakers.look()
    assert await state(engine) == "closed"
    assert one.shut == two.shut == frozenset()


async def test_of_many_at_once_one_probes_and_no_failure_gets_lost(
    engine: Engine, clock: ManualClock
) -> None:
    workers = [Worker(engine, str(number)) for number in range(8)]
    await asyncio.gather(*(worker.breakers.look() for worker in workers))
    for worker in workers[:3]:
        worker.saw(BAD)
    await asyncio.gather(*(worker.breakers.look() for worker in workers))
    assert await state(engine) == "open"
    clock.advance(10 * SECOND)
    for worker in workers:
        worker.jobs = [a_job()]
    for _ in range(3):
        await asyncio.gather(*(worker.breakers.look() for worker in workers))
    assert sum(len(worker.started) for worker in workers) == 1


async def test_a_failed_probe_opens_it_for_longer(engine: Engine, clock: ManualClock) -> None:
    worker = Worker(engine, "1")
    await opened(engine, worker)
    for open_ms in (20_000, 40_000, 40_000):
        worker.jobs = [a_job()]
        known = await record(engine)
        assert known is not None
        clock.advance(known.open_ms)
        await worker.breakers.look()
        worker.breakers.ended(worker.started.pop(), BAD)
        await worker.breakers.look()
        found = await record(engine)
        assert found is not None
        assert (str(found.state), found.open_ms) == ("open", open_ms)


async def test_a_probe_that_says_nothing_is_followed_by_another(
    engine: Engine, clock: ManualClock
) -> None:
    worker = Worker(engine, "1")
    await opened(engine, worker)
    worker.jobs = [a_job(), a_job()]
    clock.advance(10 * SECOND)
    await worker.breakers.look()
    worker.breakers.ended(worker.started[0], AskedRetry(Failure(), 1_000))
    await worker.breakers.look()
    assert (len(worker.started), await state(engine)) == (2, "half_open")


async def test_a_worker_that_dies_with_the_probe_is_succeeded(
    engine: Engine, clock: ManualClock
) -> None:
    dead, other = Worker(engine, "1"), Worker(engine, "2")
    await opened(engine, dead, other)
    dead.jobs, other.jobs = [a_job()], [a_job()]
    clock.advance(10 * SECOND)
    await dead.breakers.look()
    clock.advance(PROBE_MS - 1)
    await other.breakers.look()
    assert other.started == []
    clock.advance(1)
    await other.breakers.look()
    assert len(other.started) == 1
    dead.breakers.ended(dead.started[0], BAD)
    await dead.breakers.look()
    assert await state(engine) == "half_open", "it is not the dead one's to decide any more"


async def test_a_long_probe_keeps_its_right(engine: Engine, clock: ManualClock) -> None:
    long, other = Worker(engine, "1"), Worker(engine, "2")
    await opened(engine, long, other)
    long.jobs, other.jobs = [a_job()], [a_job()]
    clock.advance(10 * SECOND)
    for _ in range(20):
        await long.breakers.look()
        await other.breakers.look()
        clock.advance(PROBE_MS // 2)
    assert (len(long.started), len(other.started)) == (1, 0)
    long.breakers.ended(long.started[0], GOOD)
    await long.breakers.look()
    assert await state(engine) == "closed"


async def test_who_finds_no_job_lets_others_try(
    engine: Engine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may not serve the queue that the jobs are in."""
    monkeypatch.setattr(breaking, "_HOLD_S", 0.0)
    without, other = Worker(engine, "1"), Worker(engine, "2")
    await opened(engine, without, other)
    clock.advance(10 * SECOND)
    await without.breakers.look()
    other.jobs = [a_job()]
    clock.advance(PROBE_MS)
    await without.breakers.look()
    await other.breakers.look()
    assert len(other.started) == 1


async def test_who_has_no_room_does_not_ask_for_the_right(
    engine: Engine, clock: ManualClock
) -> None:
    full, other = Worker(engine, "1"), Worker(engine, "2")
    await opened(engine, full, other)
    full.has_room, other.jobs = False, [a_job()]
    clock.advance(10 * SECOND)
    await full.breakers.look()
    await other.breakers.look()
    assert len(other.started) == 1


async def test_a_person_opens_and_closes_it(engine: Engine, clock: ManualClock) -> None:
    worker = Worker(engine, "1")
    await worker.breakers.look()
    [known] = await engine.load(KIND, limit=1)
    by_hand = msgspec.json.encode(BreakerRecord(policy=POLICY, state="open", by="me"))  # type: ignore[arg-type]
    await engine.save([Record(kind=KIND, key="task:t", value=by_hand, version=known.version)])
    worker.jobs = [a_job()]
    clock.advance(1_000 * SECOND)
    await worker.breakers.look()
    assert (set(worker.shut), worker.started) == ({"t"}, [])


async def test_what_was_leased_before_it_was_known_goes_back(engine: Engine) -> None:
    worker = Worker(engine, "1")
    await opened(engine, worker)
    worker.breakers.admit([a_job(), a_job("u")])
    assert [held.job.task for held in worker.started] == ["u"]
    [release] = worker.given_back
    assert release.unstarted, "however often it comes back, it costs nothing"
    assert release.delay_ms == 0
    assert release.text == (
        "the breaker of task t is open after 3 failures, last: OSError: no route"
    )


async def test_a_host_is_left_alone_and_others_are_not(engine: Engine, clock: ManualClock) -> None:
    worker = Worker(engine, "1", hosts=POLICY)
    await worker.breakers.look()
    worker.breakers.admit([hook()])
    for _ in range(3):
        worker.breakers.ended(hook(), BAD)
    await worker.breakers.look()
    assert await state(engine, HOST_PREFIX + "a.example:443") == "open"
    worker.breakers.admit([hook(), hook("b.example"), a_job("t")])
    assert len(worker.started) == 3
    [release] = worker.given_back
    assert 9_000 <= release.delay_ms <= 20_000, "it comes again after the cool-down"
    clock.advance(10 * SECOND)
    await worker.breakers.look()
    probe, second = hook(), hook()
    worker.breakers.admit([probe, second])
    assert probe not in worker.started, "first it must be known whose probe it is"
    assert second.verdict is not None
    await worker.breakers.look()
    assert worker.started[-1] is probe
    worker.breakers.ended(probe, GOOD)
    await worker.breakers.look()
    assert await engine.load(KIND, limit=10) == [], "nothing is kept of a host that is well"


async def test_an_answer_that_refuses_shows_that_the_host_is_well(engine: Engine) -> None:
    worker = Worker(engine, "1", hosts=POLICY)
    refused: Ending = Raised(Failure(type="HttpRefused", message="HTTP 404"))
    for ending in (BAD, BAD, refused, BAD, BAD):
        worker.breakers.ended(hook(), ending)
    await worker.breakers.look()
    assert await state(engine, HOST_PREFIX + "a.example:443") == "closed"


async def test_of_two_workers_one_sends_the_probe(engine: Engine, clock: ManualClock) -> None:
    one, two = Worker(engine, "1", hosts=POLICY), Worker(engine, "2", hosts=POLICY)
    for _ in range(3):
        one.breakers.ended(hook(), BAD)
    await one.breakers.look()
    clock.advance(10 * SECOND)
    await one.breakers.look()
    await two.breakers.look()
    one.breakers.admit([hook()])
    two.breakers.admit([hook()])
    await one.breakers.look()
    await two.breakers.look()
    assert (len(one.started), len(two.started)) == (1, 0)
    assert len(two.given_back) == 1


async def test_what_waits_here_at_the_end_is_given_up(engine: Engine, clock: ManualClock) -> None:
    worker = Worker(engine, "1", hosts=POLICY)
    for _ in range(3):
        worker.breakers.ended(hook(), BAD)
    await worker.breakers.look()
    clock.advance(10 * SECOND)
    await worker.breakers.look()
    held = hook()
    worker.breakers.admit([held])
    assert worker.breakers.close() == [held]
    await worker.breakers.look()
    assert worker.started == []


async def test_a_store_out_of_reach_keeps_what_waits_here(
    engine: Engine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker(engine, "1", hosts=POLICY)
    for _ in range(3):
        worker.breakers.ended(hook(), BAD)
    await worker.breakers.look()
    clock.advance(10 * SECOND)
    await worker.breakers.look()
    held = hook()
    worker.breakers.admit([held])

    async def away(*_: object) -> list[Saved]:
        raise EngineUnavailable("away")

    with monkeypatch.context() as broken:
        broken.setattr(engine, "save", away)
        with pytest.raises(EngineUnavailable):
            await worker.breakers.look()
    assert worker.started == []
    await worker.breakers.look()
    assert worker.started == [held]


async def test_a_task_that_has_no_breaker_any_more_is_let_go(engine: Engine) -> None:
    worker = Worker(engine, "1")
    await opened(engine, worker)
    worker.breakers.learn({"t": TaskInfo("t")})
    await worker.breakers.look()
    assert worker.shut == frozenset()


async def test_hosts_that_nobody_asks_for_are_forgotten(engine: Engine, clock: ManualClock) -> None:
    worker = Worker(engine, "1", hosts=POLICY)
    for number in range(3):
        for _ in range(3):
            worker.breakers.ended(hook(f"h{number}.example"), BAD)
    await worker.breakers.look()
    assert len(await engine.load(KIND, limit=10)) == 3
    clock.advance(3_611 * SECOND)
    await worker.breakers.look()
    assert await engine.load(KIND, limit=10) == []


async def test_without_breakers_the_store_is_not_asked(engine: Engine) -> None:
    worker = Worker(engine, "1")
    worker.breakers.learn({"t": TaskInfo("t")})

    async def never(*_: object, **__: object) -> list[Record]:
        raise AssertionError

    engine.load = never  # type: ignore[method-assign]
    await worker.breakers.look()
    worker.saw(BAD, BAD, BAD)
    worker.breakers.admit([a_job()])
    assert len(worker.started) == 1
