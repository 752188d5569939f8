"""Leases through the application: how a lease ends, and the effect on its job."""

import asyncio
from typing import Any

import pytest

from holdfast import Holdfast, JobFilter, NewJob
from holdfast.core.model import KeyPolicy, Reason, State, Status
from holdfast.core.verdict import Complete, Outcome, Settlement
from holdfast.errors import InvalidJob, UnknownQueue, UsageError


async def test_how_a_lease_ends(app: Holdfast) -> None:
    await app.declare("once", max_attempts=1)
    await app.declare("other")
    ids = ["fail", "retry", "bury", "release", "forward", "done"]
    await app.enqueue_many([app.job("t", id=id_) for id_ in ids])
    await app.enqueue("t", id="last", queue="once")
    leases = {lease.id: lease for lease in await app.lease("default", "once", limit=10)}
    try:
        int("no such number")
    except ValueError as error:
        await app.fail(leases["fail"], error)
        await app.fail(leases["last"], error)
    await app.retry(leases["retry"], delay="10m", error="later")
    await app.bury(leases["bury"], "never")
    await app.release(leases["release"], "shutting down")
    await app.forward(leases["forward"], "other")
    await app.complete(leases["done"], then=[app.job("next", id="next")])
    jobs = {id_: await app.get(id_) for id_ in [*ids, "last", "next"]}
    states = {id_: job.state for id_, job in jobs.items() if job is not None}
    assert states == {
        **dict.fromkeys(["fail", "retry", "release", "forward", "next"], State.WAITING),
        "bury": State.DEAD,
        "last": State.DEAD,
        "done": State.DONE,
    }
    last, forwarded, released = jobs["last"], jobs["forward"], jobs["release"]
    assert last is not None
    assert forwarded is not None
    assert released is not None
    assert last.reason is Reason.ATTEMPTS
    assert (forwarded.queue, released.attempt) == ("other", 0)
    [failure] = [event.failure for event in last.failures]
    assert failure is not None
    assert failure.type == "ValueError"
    assert "no such number" in failure.message
    assert "test_leases.py" in failure.trace


async def test_asking_for_another_attempt_gets_no_more_than_there_are(app: Holdfast) -> None:
    await app.declare("default", max_attempts=2, backoff="constant(5s, jitter=0)")
    await app.enqueue("t", id="later")
    [lease] = await app.lease()
    await app.retry(lease)
    later = await app.get("later")
    assert later is not None
    assert later.events[-1].at + 5_000 == later.due_at
    await app.enqueue("t", id="twice")
    for _ in range(2):
        [lease] = await app.lease()
        await app.retry(lease, delay=0)
    twice = await app.get("twice")
    assert twice is not None
    assert (twice.state, twice.reason) == (State.DEAD, Reason.ATTEMPTS)


async def test_a_verdict_that_cannot_be_leaves_the_lease(app: Holdfast) -> None:
    await app.enqueue("t", id="a")
    [lease] = await app.lease()
    with pytest.raises(UnknownQueue, match="the lease continues"):
        await app.forward(lease, "nowhere")
    with pytest.raises(UnknownQueue, match="the lease continues"):
        await app.complete(lease, then=[app.job("t", queue="nowhere")])
    with pytest.raises(UsageError, match="result is 2097154 bytes"):
        await app.complete(lease, "x" * 2 * 1024 * 1024)
    with pytest.raises(InvalidJob, match="priority"):
        await app.complete(lease, then=[app.job("t", priority=500)])
    wrong: Any = 7
    with pytest.raises(InvalidJob, match="task: Expected str"):
        await app.complete(lease, then=[NewJob(id="b", task=wrong)])
    with pytest.raises(UsageError, match="queue: Expected str"):
        await app.forward(lease, wrong)
    with pytest.raises(UsageError, match="text: Expected str"):
        await app.release(lease, wrong)
    with pytest.raises(UsageError, match="delay_ms"):
        await app.retry(lease, delay="40000d")
    assert await app.settle([Settlement(lease=lease, verdict=Complete())]) == [Outcome.SETTLED]
    with pytest.raises(UsageError, match="lease is a str: give a Lease"):
        await app.complete("a")  # type: ignore[arg-type]


async def test_a_dead_letter_does_not_go_round_in_circles(app: Holdfast) -> None:
    await app.declare("a")
    await app.declare("b", dead_queue="a")
    await app.declare("a", dead_queue="b")
    receipt = await app.enqueue("noop", queue="a")
    for queue, dead in (("a", False), ("b", True)):
        [lease] = await app.lease(queue, dead=dead)
        await app.bury(lease, "no")
    job = await app.get(receipt.id)
    assert job is not None
    assert (job.queue, job.state, job.origin) == ("b", State.DEAD, "a")


@pytest.mark.parametrize("policy", ["replace", "merge"])
async def test_a_key_does_not_reach_a_dead_letter(app: Holdfast, policy: KeyPolicy) -> None:
    await app.declare("grave")
    await app.declare("q", dead_queue="grave")
    await app.enqueue("t", {"v": 1}, id="a", queue="q", key="k")
    [lease] = await app.lease("q")
    await app.bury(lease, "broken")
    buried = await app.get("a")
    receipt = await app.enqueue("t", {"v": 2}, queue="q", key="k", key_policy=policy)
    assert (receipt.id, receipt.status) == ("a", Status.DUPLICATE)
    assert await app.get("a") == buried


async def test_acts_without_a_lease(app: Holdfast) -> None:
    await app.enqueue_many([app.job("t", id=id_) for id_ in "abc"])
    assert await app.cancel("a", "b", by="me") == 2
    assert await app.cancel() == 0
    assert await app.delete("a") == 1
    [lease] = await app.lease()
    assert lease.id == "c"
    await app.bury(lease)
    assert await app.redrive("c", by="me") == 1
    tally = await app.tally(JobFilter(), "state")
    assert {each.value: each.count for each in tally} == {"cancelled": 1, "waiting": 1}
    page = await app.find(JobFilter(states=(State.WAITING,)))
    assert [job.id for job in page.jobs] == ["c"]


async def test_a_waiting_lease_is_woken(app: Holdfast) -> None:
    waiting = asyncio.create_task(app.lease(wait="60s"))
    await asyncio.sleep(0)
    await app.enqueue("t", id="a")
    [lease] = await waiting
    assert lease.id == "a"


def test_a_program_that_cancels_all_its_tasks_can_go_on() -> None:
    async def program() -> Status:
        async with Holdfast("memory:") as app:
            given_up = asyncio.create_task(app.enqueue("t", id="a"))
            await asyncio.sleep(0)
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await given_up
            async with asyncio.timeout(30):
                return (await app.enqueue("t", id="b")).status

    assert asyncio.run(program()) is Status.NEW
