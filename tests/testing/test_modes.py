"""The test modes: inline, manual and fake, from blocking and from async tests."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    Bury,
    Cancelled,
    Context,
    Holdfast,
    JobCancelled,
    JobFailed,
    JobHandle,
    Release,
    Retry,
    Schedule,
    Task,
)
from holdfast.core.model import Reason, State
from holdfast.errors import InvalidJob, ResultTimeout, UsageError
from holdfast.testing import fake, inline, manual
from holdfast.testing.stage import DrainResult


class Shop:
    """An application with tasks of every kind, and what they did."""

    def __init__(self, url: str) -> None:
        self.app = app = Holdfast(url)
        self.calls: list[Any] = []
        self.threads: set[int] = set()

        @app.task(queue="mail", max_attempts=3, backoff="constant(1m, jitter=0)")
        def send(to: str, *, ctx: Context) -> int:
            self.calls.append((to, ctx.attempt, ctx.last))
            self.threads.add(threading.get_ident())
            match to:
                case "broken":
                    raise ValueError("no such address")
                case "flaky" if ctx.attempt < 3:
                    raise ConnectionError
                case "later" if ctx.attempt < 2:
                    raise Retry(after="5m")
                case "bury":
                    raise Bury("it cannot be")
                case "release" if len(self.calls) < 3:
                    raise Release("not now", after="1m")
                case "cancel":
                    raise Cancelled("not wanted")
                case "then":
                    ctx.then(receipt.job("of then"))
                case _:
                    pass
            ctx.log("sent")
            return len(to)

        @app.task(queue="receipts")
        async def receipt(text: str) -> str:
            await asyncio.sleep(0)
            self.calls.append(text)
            return text.upper()

        @app.task
        def outer(text: str) -> str:
            return receipt.enqueue(text).result()

        @app.task
        async def async_outer(text: str) -> str:
            handle = await receipt.aenqueue(text)
            return await handle.aresult()

        @app.task(batch=3)
        def index(numbers: list[int], contexts: list[Context]) -> list[int]:
            self.calls.append(numbers)
            assert len(numbers) == len(contexts)
            return [number * 2 for number in numbers]

        self.send: Task[..., int, Any] = send
        self.receipt: Task[[str], str, Any] = receipt
        self.outer: Task[[str], str, Any] = outer
        self.async_outer: Task[[str], str, Any] = async_outer
        self.index: Task[..., Any, Any] = index


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    yield Shop(f"sqlite:///{tmp_path}/never.db")
    assert not list(tmp_path.glob("never*")), "the real store was never opened"


def test_inline_runs_at_once_with_all_attempts(shop: Shop) -> None:
    with inline(shop.app) as mode:
        assert shop.send.enqueue("a@b.c").result() == 5
        assert shop.send.using(delay="1d").enqueue("late").result() == 4
        assert shop.send.enqueue("flaky").result() == 5
        assert shop.calls[2:] == [("flaky", 1, False), ("flaky", 2, False), ("flaky", 3, True)]
        broken = shop.send.enqueue("broken")
        with pytest.raises(JobFailed, match=r"dead \(attempts\): ValueError: no such address"):
            broken.result()
        with pytest.raises(JobFailed, match=r"dead \(explicit\)"):
            shop.send.enqueue("bury").result()
        with pytest.raises(JobCancelled):
            shop.send.enqueue("cancel").result()
        with pytest.raises(InvalidJob, match="to: Expected str"):
            shop.send.enqueue(7)
        assert [job.state for job in mode.jobs][:3] == [State.DONE] * 3
    assert shop.threads == {threading.get_ident()}


def test_inline_runs_follow_ups_and_jobs_that_handlers_enqueue(shop: Shop) -> None:
    with inline(shop.app):
        shop.send.enqueue("then")
        assert shop.calls[-1] == "of then"
        assert shop.outer.enqueue("a").result() == "A"
        assert shop.async_outer.enqueue("b").result() == "B"
        handles = shop.index.enqueue_many([(1,), (2,), (3,), (4,)])
        assert [handle.result() for handle in handles] == [2, 4, 6, 8]
        assert shop.calls[-2:] == [[1, 2, 3], [4]]


async def test_inline_in_an_async_test(shop: Shop) -> None:
    with inline(shop.app):
        handle = await shop.async_outer.aenqueue("a")
        assert await handle.aresult() == "A"
        # Blocking calls work too, even for an async handler.
        assert shop.receipt.enqueue("b").result() == "B"
        assert shop.outer.enqueue("c").result() == "C"
        async with shop.app:
            assert (await (await shop.outer.aenqueue("d")).aresult()) == "D"
        assert await (await shop.send.aenqueue("flaky")).aresult() == 5


def test_manual_runs_nothing_until_drained(shop: Shop) -> None:
    with manual(shop.app) as mode:
        handle = shop.send.enqueue("flaky")
        assert shop.calls == []
        with pytest.raises(ResultTimeout, match=r"call drain\(\)"):
            handle.result()
        assert mode.drain() == DrainResult(attempts=1, retried=1)
        assert mode.drain() == DrainResult()
        mode.advance("59s")
        assert mode.drain() == DrainResult()
        mode.advance("1s")
        assert mode.drain() == DrainResult(attempts=1, retried=1)
        mode.advance("1m")
        assert mode.drain() == DrainResult(attempts=1, done=1)
        assert handle.result() == 5
        job = handle.job()
        assert job is not None
        assert (job.attempt, job.output, len(job.failures)) == (3, b"sent\n", 2)


def test_manual_goes_through_the_whole_lifecycle(shop: Shop) -> None:
    with manual(shop.app) as mode:
        shop.send.enqueue("then")
        assert mode.drain() == DrainResult(attempts=2, done=2)
        shop.calls.clear()
        shop.send.enqueue("release")
        assert mode.drain() == DrainResult(attempts=1, released=1)
        mode.advance("1m")
        mode.drain()
        mode.advance("1m")
        assert mode.drain() == DrainResult(attempts=1, done=1)
        assert [attempt for _, attempt, _ in shop.calls] == [1, 1, 1], "a release is not charged"
        late = shop.send.enqueue("later")
        assert mode.drain() == DrainResult(attempts=1, retried=1)
        mode.advance("299s")
        assert mode.drain() == DrainResult()
        mode.advance("1s")
        assert mode.drain() == DrainResult(attempts=1, done=1)
        assert late.result() == 5
        shop.send.enqueue("cancel")
        shop.send.enqueue("bury")
        assert mode.drain() == DrainResult(attempts=2, cancelled=1, dead=1)


def test_manual_expires_jobs_that_did_not_run_in_time(shop: Shop) -> None:
    with manual(shop.app) as mode:
        handle = shop.send.using(to="alpha").enqueue("a")
        mode.advance("5m")
        assert mode.drain() == DrainResult()
        job = handle.job()
        assert job is not None
        assert (job.state, job.reason) == (State.DEAD, Reason.EXPIRED)


def test_inline_waits_for_a_rate(shop: Shop) -> None:
    with inline(shop.app):
        shop.app.run(shop.app.declare(shop.receipt.queue))
        shop.app.run(shop.app.limit(shop.receipt.queue, "slow", rate="1/m"))
        assert [shop.receipt.enqueue(text).result() for text in "abc"] == [*"ABC"]


@pytest.mark.parametrize("how", ["paused", "held", "behind"])
def test_inline_leaves_jobs_that_time_alone_does_not_start(shop: Shop, how: str) -> None:
    """A job that is due and may not run is no hang."""
    queue = shop.receipt.queue
    with inline(shop.app) as mode:
        shop.app.run(shop.app.declare(queue))
        if how == "paused":
            shop.app.run(shop.app.declare(queue, paused=True))
            shop.receipt.enqueue("a")
        elif how == "held":
            shop.app.run(shop.app.enqueue("unknown", id="parent"))
            shop.receipt.using(after=["parent"]).enqueue("a")
        else:
            shop.app.run(shop.app.enqueue("unknown", queue=queue, group="g"))
            shop.receipt.using(group="g").enqueue("a")
        assert shop.calls == []
        assert mode.jobs[-1].state is State.WAITING


def test_a_batch_has_one_job_of_a_strict_group(shop: Shop) -> None:
    """Even if the queue gives more at once."""
    with manual(shop.app) as mode:
        shop.app.run(shop.app.declare(shop.index.queue, group_batch=5))
        shop.index.enqueue(0)
        for number in (1, 2, 3):
            shop.index.using(group="g").enqueue(number)
        drained = mode.drain()
    assert (drained.attempts, drained.done, drained.released) == (4, 4, 0)
    assert shop.calls == [[0, 1], [2], [3]]


async def test_manual_in_an_async_test(shop: Shop) -> None:
    with manual(shop.app) as mode:
        await shop.receipt.aenqueue("a")
        shop.receipt.enqueue("b")
        await shop.app.enqueue(shop.receipt.name, {"text": "c"})
        await shop.app.enqueue("unknown", {"text": "d"})
        assert (await mode.adrain()).done == 3
        shop.receipt.enqueue("e")
        assert mode.drain().done == 1
        assert shop.calls == ["c", "a", "b", "e"], "by name it went to the default queue"
        assert [job.state for job in mode.jobs if job.task == "unknown"] == [State.WAITING]


def test_manual_enqueues_the_ticks_of_schedules(tmp_path: Path) -> None:
    app = Holdfast(f"sqlite:///{tmp_path}/s.db")
    ran: list[str] = []

    @app.schedule(every="15m", arguments=("often",))
    @app.schedule(cron="0 2 * * *", timezone="Europe/Berlin", name="nightly", arguments=("night",))
    @app.task
    def report(kind: str) -> None:
        ran.append(kind)

    with manual(app) as jobs:
        jobs.advance("14m")
        assert jobs.drain().attempts == 0
        jobs.advance("1m")
        assert jobs.drain().done == 1
        jobs.advance("1d")
        jobs.drain()
        assert (ran.count("often"), ran.count("night")) == (1 + 24 * 4, 1)
        # Ticks of schedules that the test adds go by the same clock.
        app.run(app.schedules.add(Schedule(name="s", job=report.job("added"), every_ms=60_000)))
        app.run(app.schedules.pause("nightly"))
        jobs.advance("1d")
        jobs.drain()
        assert (ran.count("added"), ran.count("night")) == (24 * 60, 1)
    with inline(app) as jobs_at_once:
        assert jobs_at_once.jobs == [], "schedules do not tick in the other modes"
    assert not (tmp_path / "s.db").exists()


def test_a_payload_that_does_not_fit_becomes_a_dead_letter(shop: Shop) -> None:
    with manual(shop.app) as mode:
        shop.app.run(shop.app.enqueue(shop.send.name, {"too": "x"}))
        assert mode.drain() == DrainResult(attempts=1, dead=1)
        [job] = mode.jobs
        handle: JobHandle[int] = shop.send.handle(job.id)
        with pytest.raises(JobFailed, match="does not fit"):
            handle.result()


def test_endless_work_is_an_error_and_not_a_hang(shop: Shop) -> None:
    with inline(shop.app), pytest.raises(UsageError, match="jobs are still due after"):
        shop.send.using(max_attempts=0).enqueue("broken")


def test_fake_runs_no_job(shop: Shop) -> None:
    with fake(shop.app) as mode:
        shop.send.enqueue("a")
        shop.send.using(tenant="acme").enqueue(to="a")
        shop.receipt.enqueue("b")
        assert shop.calls == []
        assert len(mode.jobs) == 3
        mode.assert_enqueued(shop.send)
        assert [job.tenant for job in mode.assert_enqueued(shop.send, "a", times=2)] == [
            None,
            "acme",
        ]
        mode.assert_enqueued(shop.receipt.name, times=1)
        mode.assert_enqueued(shop.index, times=0)
        mode.refute_enqueued(shop.send, "b")
        mode.refute_enqueued(shop.index)
        with pytest.raises(AssertionError, match=r"send\('b'\) was enqueued 0 times, not at least"):
            mode.assert_enqueued(shop.send, "b")
        with pytest.raises(AssertionError, match=r"enqueued 2 times, not 1 times; .*send .*\"to\""):
            mode.assert_enqueued(shop.send, to="a", times=1)
        with pytest.raises(AssertionError, match=r"send\(to='a'\) was enqueued 2 times"):
            mode.refute_enqueued(shop.send, to="a")
        with pytest.raises(UsageError, match="needs the task itself"):
            mode.assert_enqueued(shop.send.name, "a")


def test_jobs_enqueued_within_a_transaction_exist_at_once(shop: Shop) -> None:
    with fake(shop.app) as mode:
        shop.send.within(object()).enqueue("a")
        mode.assert_enqueued(shop.send, "a", times=1)
    with inline(shop.app):
        assert shop.send.within(object()).enqueue("abc").result() == 3


async def test_a_lease_never_waits(shop: Shop) -> None:
    with manual(shop.app):
        assert await shop.app.lease(wait="10m") == []


def test_without_an_application_a_mode_is_for_all_applications(shop: Shop, tmp_path: Path) -> None:
    other = Shop(f"sqlite:///{tmp_path}/never-other.db")
    with fake() as mode:
        shop.send.enqueue("a")
        other.send.enqueue("b")
        mode.assert_enqueued(shop.send, times=2)
    wrong: Any = "app"
    with pytest.raises(UsageError, match="not str"):
        fake(wrong)


def test_modes_can_be_nested_and_end(shop: Shop) -> None:
    before = shop.app.home
    with fake(shop.app) as outside:
        with inline(shop.app):
            assert shop.send.enqueue("a").result() == 1
        shop.send.enqueue("b")
        outside.assert_enqueued(shop.send, times=1)
    with pytest.raises(KeyError), manual(shop.app):
        raise KeyError
    assert shop.app.home is before
