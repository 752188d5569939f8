"""Rerouting: a job that its worker did not take moves to another one, exactly once."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from holdfast.core.model import (
    EventKind,
    Job,
    JobFilter,
    LeaseRequest,
    NewJob,
    Queue,
    Reason,
    Record,
    Reroute,
    State,
)
from holdfast.core.verdict import Edit
from holdfast.core.workers import KIND, ORDER_KIND, WorkerOrder, WorkerRecord
from holdfast.engines.base import Engine
from holdfast.errors import InvalidJob, UnknownQueue, UsageError
from holdfast.events import Reaped
from holdfast.notation.options import new_job
from holdfast.ops.workers import reroute, reroute_expired
from holdfast.testing.clock import ManualClock
from holdfast.upkeep import Reaper
from tests.upkeep.faulty_engine import RecordingListener

MINUTE = 60_000


async def workers(engine: Engine, *names: str, **fields: Any) -> None:
    """Register workers, or refresh their heartbeats."""
    for name in names:
        plain: dict[str, Any] = {"tasks": ("t",), "capacity": 10}
        record = WorkerRecord(
            name=name, id=name, host="h", pid=1, started_at=0, **{**plain, **fields}
        )
        known = {each.key: each.version for each in await engine.load(KIND, limit=100)}
        value = msgspec.json.encode(record)
        await engine.save([Record(kind=KIND, key=name, value=value, version=known.get(name, 0))])
        await engine.declare(Queue(name=f"worker.{name}"))


async def read(engine: Engine, id: str = "j") -> Job:
    job = await engine.get(id)
    assert job is not None
    return job


def addressed(id: str = "j", **options: Any) -> NewJob:
    given: Any = {"id": id, "to": "a", "reroute": True, **options}
    return new_job("t", None, given)


async def test_an_expired_job_goes_to_another_worker_with_a_reason(
    engine: Engine, clock: ManualClock
) -> None:
    listener = RecordingListener()
    await workers(engine, "a", "b")
    await engine.enqueue([addressed()])
    clock.advance(5 * MINUTE)
    await workers(engine, "b")
    await Reaper(engine, tell=listener).once()
    job = await read(engine)
    assert (job.state, job.queue, job.origin) == (State.WAITING, "worker.b", "worker.a")
    assert job.expires_at == job.created_at + 10 * MINUTE
    [event] = job.events
    assert (event.kind, event.by) == (EventKind.MOVED, "reaper")
    assert event.text == "from worker.a to worker.b: not taken within its TTL of 5m"
    assert listener.events == [Reaped(overdue=0, expired=0, rerouted=1)]
    [lease] = await engine.lease(LeaseRequest(queues=("worker.b",)))
    assert lease.id == "j"


async def test_a_job_dies_after_its_last_reroute(engine: Engine, clock: ManualClock) -> None:
    await workers(engine, "a", "b")
    await engine.enqueue([addressed(reroute=Reroute(most=2))])
    for _ in range(3):
        clock.advance(5 * MINUTE)
        await workers(engine, "a", "b")
        await Reaper(engine).once()
    job = await read(engine)
    assert (job.state, job.reason) == (State.DEAD, Reason.EXPIRED)
    assert [event.kind for event in job.events] == [EventKind.MOVED] * 2 + [EventKind.BURIED]
    [last] = [event.failure for event in job.failures]
    assert last is not None
    assert last.message == (
        "worker a did not take it within its TTL of 5m; "
        "it was already rerouted 2 times, the maximum"
    )


async def test_without_another_worker_the_job_dies(engine: Engine, clock: ManualClock) -> None:
    await workers(engine, "a")
    await workers(engine, "b", labels={"zone": "us"})
    await engine.enqueue([addressed(reroute={"zone": "eu"})])
    clock.advance(5 * MINUTE)
    await workers(engine, "b", labels={"zone": "us"})
    await Reaper(engine).once()
    job = await read(engine)
    assert (job.state, job.reason) == (State.DEAD, Reason.EXPIRED)
    assert job.failures[-1].failure is not None
    assert "no other worker with zone=eu could take it" in job.failures[-1].failure.message


async def test_a_cordoned_worker_gets_no_rerouted_job(engine: Engine, clock: ManualClock) -> None:
    await workers(engine, "a", "b", "c")
    order = msgspec.json.encode(WorkerOrder(cordoned=True))
    await engine.save([Record(kind=ORDER_KIND, key="b", value=order)])
    await engine.enqueue([addressed()])
    clock.advance(5 * MINUTE)
    await workers(engine, "b", "c")
    await Reaper(engine).once()
    assert (await read(engine)).queue == "worker.c"


async def test_rerouted_jobs_are_spread(engine: Engine, clock: ManualClock) -> None:
    await workers(engine, "a", "b", "c")
    await engine.enqueue([addressed(f"j{number}") for number in range(20)])
    clock.advance(5 * MINUTE)
    await workers(engine, "b", "c")
    await Reaper(engine).once()
    queues = [(await read(engine, f"j{number}")).queue for number in range(20)]
    assert sorted(queues) == ["worker.b"] * 10 + ["worker.c"] * 10


async def test_of_two_reapers_one_moves_the_job(engine: Engine, clock: ManualClock) -> None:
    """Both read the same job, like a reaper killed before its write and its successor."""
    await workers(engine, "a", "b", "c")
    await engine.enqueue([addressed()])
    clock.advance(5 * MINUTE)
    await workers(engine, "b", "c")
    jobs: Sequence[Job] = (await engine.expired(10)).jobs
    assert await reroute_expired(engine, jobs) == (["j"], {})
    assert await reroute_expired(engine, jobs) == ([], {})
    job = await read(engine)
    assert (job.queue, len(job.events)) == ("worker.b", 1)
    assert job.overrides.reroute is not None
    assert job.overrides.reroute.done == 1


async def test_a_job_taken_or_changed_meanwhile_stays(engine: Engine, clock: ManualClock) -> None:
    await workers(engine, "a", "b")
    await engine.enqueue([addressed()])
    clock.advance(5 * MINUTE)
    await workers(engine, "b")
    jobs = (await engine.expired(10)).jobs
    await engine.amend(JobFilter(ids=("j",)), Edit(expires_ms=MINUTE), limit=1)
    assert await reroute_expired(engine, jobs) == ([], {})
    assert (await read(engine)).queue == "worker.a"


async def test_without_a_reroute_policy_the_job_dies(engine: Engine, clock: ManualClock) -> None:
    await workers(engine, "a", "b")
    await engine.enqueue([addressed(reroute=None)])
    clock.advance(5 * MINUTE)
    await workers(engine, "b")
    await Reaper(engine).once()
    assert (await read(engine)).state is State.DEAD


async def test_an_operator_reroutes_a_waiting_job(engine: Engine, clock: ManualClock) -> None:
    await workers(engine, "a", "b")
    await workers(engine, "c", labels={"zone": "eu"})
    await engine.enqueue([addressed(reroute=None)])
    clock.advance(MINUTE)
    assert await reroute(engine, "j", labels={"zone": "eu"}, by="me") == "c"
    job = await read(engine)
    assert (job.queue, job.expires_at) == ("worker.c", job.created_at + 6 * MINUTE)
    assert (job.events[-1].by, job.events[-1].text) == (
        "me",
        "from worker.a to worker.c: rerouted",
    )
    assert await reroute(engine, "j", to="a", expires_ms=MINUTE) == "a"
    assert await reroute(engine, "j") == "b"
    with pytest.raises(UnknownQueue):
        await reroute(engine, "j", to="nobody")
    with pytest.raises(UsageError, match="no other healthy worker"):
        await reroute(engine, "j", labels={"zone": "mars"})
    with pytest.raises(UsageError, match="no job has the id"):
        await reroute(engine, "missing")


async def test_an_operator_cannot_reroute_running_or_unaddressed_jobs(engine: Engine) -> None:
    await workers(engine, "a", "b")
    await engine.enqueue([addressed(), NewJob(id="plain", task="t")])
    with pytest.raises(UsageError, match="not addressed to a worker"):
        await reroute(engine, "plain")
    await engine.lease(LeaseRequest(queues=("worker.a",)))
    with pytest.raises(UsageError, match="it is leased, and must be waiting"):
        await reroute(engine, "j")


def test_a_reroute_policy_without_an_address_is_refused() -> None:
    with pytest.raises(InvalidJob, match='set "to" as well'):
        new_job("t", None, {"reroute": True})
    with pytest.raises(InvalidJob, match="reroute is a str"):
        new_job("t", None, {"to": "a", "reroute": "yes"})  # type: ignore[typeddict-item]
    assert new_job("t", None, {"to": "a", "reroute": False}).overrides.reroute is None


@pytest.mark.parametrize("policy", [Reroute(most=0), Reroute(most=101), Reroute(ttl_ms=-1)])
async def test_a_policy_out_of_bounds_is_refused(engine: Engine, policy: Reroute) -> None:
    await workers(engine, "a")
    [receipt] = await engine.enqueue([addressed(reroute=policy)])
    assert receipt.code == "invalid_job"
