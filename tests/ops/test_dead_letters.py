"""Dead letters grouped by fingerprint, and those that crashed their workers."""

from collections.abc import AsyncIterator

import pytest

from holdfast.core.model import (
    Failure,
    FailureKind,
    Job,
    JobFilter,
    LeaseRequest,
    NewJob,
    Note,
    Queue,
    Reason,
    State,
)
from holdfast.core.verdict import Bury, Complete, Redrive, Retry, Settlement, Verdict
from holdfast.engines.memory import MemoryEngine
from holdfast.ops import dead_letters
from holdfast.ops.dead_letters import (
    BUCKETS,
    DeadGroup,
    dead_groups,
    group_of,
    is_quarantined,
    quarantined,
)
from holdfast.testing.clock import ManualClock

ALL = JobFilter()
MINUTE = 60_000


@pytest.fixture
async def engine(clock: ManualClock) -> AsyncIterator[MemoryEngine]:
    engine = MemoryEngine(clock=clock)
    await engine.open()
    await engine.declare(Queue(name="mail"))
    yield engine
    await engine.close()


def no_user(name: str) -> Failure:
    return Failure(type="shop.NoUser", message=f"no user {name!r}")


FULL = Failure(type="OSError", message="[Errno 28] No space left on device")


async def die(engine: MemoryEngine, new: NewJob, failure: Failure, worker: str = "w1") -> None:
    await live(engine, new, Bury(failure=failure), worker)


async def live(
    engine: MemoryEngine,
    new: NewJob,
    verdict: Verdict,
    worker: str = "w1",
    note: Note | None = None,
) -> None:
    await engine.enqueue([new])
    [lease] = await engine.lease(LeaseRequest(queues=(new.queue,), ids=(), worker=worker))
    await engine.settle([Settlement(lease=lease, verdict=verdict, note=note)])


async def test_jobs_with_the_same_failure_are_one_group(
    engine: MemoryEngine, clock: ManualClock
) -> None:
    start = clock.wall_ms()
    for number, (tenant, worker) in enumerate([("a", "w1"), ("b", "w2"), ("a", "w1")]):
        new = NewJob(id=f"u{number}", task="greet", tenant=tenant)
        await die(engine, new, no_user(f"user{number}"), worker)
        clock.advance(MINUTE)
    await die(engine, NewJob(id="f", task="save", queue="mail"), FULL)
    await live(engine, NewJob(id="done", task="save"), Complete())
    clock.advance(MINUTE)
    found = await dead_groups(engine, ALL, now=clock.wall_ms())
    assert (found.total, found.hidden, found.estimated) == (4, 0, False)
    users, full = found.groups
    assert users == DeadGroup(
        fingerprint=users.fingerprint,
        count=3,
        type="shop.NoUser",
        text="no user 'user2'",
        first_at=start,
        last_at=start + 2 * MINUTE,
        tasks={"greet": 3},
        queues={"default": 3},
        reasons={"explicit": 3},
        tenants={"a": 2, "b": 1},
        workers={"w1": 2, "w2": 1},
        trend=users.trend,
        ids=("u2", "u1", "u0"),
    )
    assert (full.count, full.type, full.queues) == (1, "OSError", {"mail": 1})
    assert sum(users.trend) == 3
    assert len(users.trend) == BUCKETS
    assert found.trend_from + BUCKETS * found.bucket_ms == clock.wall_ms() + 1
    assert users.trend[0] == 1, "the trend begins with the first"
    only = await dead_groups(engine, JobFilter(queue="mail"), now=clock.wall_ms())
    assert [group.fingerprint for group in only.groups] == [full.fingerprint]


async def test_the_largest_groups_are_listed_and_the_others_counted(
    engine: MemoryEngine, clock: ManualClock
) -> None:
    for number in range(6):
        failure = Failure(type="ABC"[number // 2 if number < 5 else 0], message="x")
        await die(engine, NewJob(id=f"j{number}", task="t"), failure)
    found = await dead_groups(engine, ALL, now=clock.wall_ms(), limit=2)
    assert [(group.type, group.count) for group in found.groups] == [("A", 3), ("B", 2)]
    assert (found.total, found.hidden) == (6, 1)


async def test_too_many_dead_letters_are_counted_and_sampled(
    engine: MemoryEngine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(8):
        failure = Failure(type="old" if number < 4 else "new", message="x")
        await die(engine, NewJob(id=f"j{number}", task="t"), failure)
        clock.advance(MINUTE)
    monkeypatch.setattr(dead_letters, "WALK_MAX", 3)
    monkeypatch.setattr(dead_letters, "_SAMPLES", 2)
    found = await dead_groups(engine, ALL, now=clock.wall_ms())
    groups = {group.type: group for group in found.groups}
    assert [groups[name].count for name in ("old", "new")] == [4, 4]
    assert groups["new"].estimated
    assert groups["old"].estimated
    assert (groups["new"].ids, groups["old"].ids) == (("j7", "j6"), ("j3", "j2"))


async def test_redriven_dead_letters_are_counted(engine: MemoryEngine, clock: ManualClock) -> None:
    await die(engine, NewJob(id="a", task="t"), FULL)
    await engine.amend(ALL, Redrive(), limit=1)
    assert (await dead_groups(engine, ALL, now=clock.wall_ms())).groups == ()
    [lease] = await engine.lease(LeaseRequest(queues=("default",)))
    await engine.settle([Settlement(lease=lease, verdict=Bury(failure=FULL))])
    [group] = (await dead_groups(engine, ALL, now=clock.wall_ms())).groups
    assert (group.count, group.redriven) == (1, 1)


def test_a_clock_set_back_loses_no_dead_letter() -> None:
    jobs = [Job(id="a", task="t", queue="q", finished_at=at) for at in (1, 5_000, 99_000)]
    group = group_of(jobs, None, now=6_000, bucket_ms=500)
    assert sum(group.trend) == 3
    assert group.trend[-1] == 1


async def test_a_quarantined_job_shows_its_crashes(
    engine: MemoryEngine, clock: ManualClock
) -> None:
    def crash(words: str) -> Failure:
        return Failure(
            kind=FailureKind.CRASH, type="SIGSEGV", message="killed", trace=words, signal=11
        )

    await engine.enqueue([NewJob(id="a", task="resize")])
    for worker, last in (("w1", False), ("w2", True)):
        [lease] = await engine.lease(LeaseRequest(queues=("default",), worker=worker))
        verdict = Bury(Reason.CRASHED, crash("Fatal\n")) if last else Retry(0, crash("first"))
        note = Note(output=b"resizing 1.png\n")
        await engine.settle([Settlement(lease=lease, verdict=verdict, note=note)])
    job = await engine.get("a")
    assert job is not None
    assert is_quarantined(job)
    quarantine = quarantined(job)
    assert (quarantine.signal, quarantine.type, quarantine.crashes, quarantine.workers) == (
        11,
        "SIGSEGV",
        2,
        ("w1", "w2"),
    )
    assert (quarantine.words, quarantine.output) == ("Fatal\n", "resizing 1.png\n")
    assert await engine.amend(ALL, Redrive(), limit=1) == 1
    again = await engine.get("a")
    assert again is not None
    assert (again.state, again.alone, again.runs_alone) == (State.WAITING, True, True)
