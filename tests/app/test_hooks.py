"""Hooks and middleware: when they run, what they may change, and what their errors do."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from holdfast import (
    AttemptEnd,
    BlockingHoldfast,
    Bury,
    Cancelled,
    Context,
    DeadLetter,
    Holdfast,
    NewJob,
    Release,
    Retry,
    UsageError,
)
from holdfast.core.model import FailureKind, Reason, State
from holdfast.testing import inline, manual
from holdfast.worker.child.attempt import Attempt
from tests.worker.child_driver import given_job

REGION: ContextVar[str] = ContextVar("region", default="none")


@pytest.fixture
def app() -> Holdfast:
    return Holdfast("memory:")


def stamp_region(app: Holdfast) -> None:
    @app.on_enqueue
    def stamp(job: NewJob) -> dict[str, str]:
        return {"region": REGION.get()}


class Recorder:
    """An application with one task, plain or async, and every hook."""

    def __init__(self, app: Holdfast, *, is_async: bool, **options: Any) -> None:
        self.calls: list[str] = []
        self.ends: list[AttemptEnd] = []
        self.raises: BaseException | None = None
        app.before_attempt(lambda ctx: self.calls.append(f"before {ctx.attempt}"))
        app.after_attempt(self._ended)
        app.on_failure(lambda end: self.calls.append(f"failure {end.context.attempt}"))
        app.on_death(lambda end: self.calls.append(f"death {end.context.attempt}"))

        @app.middleware
        def outer(ctx: Context) -> Iterator[None]:
            self.calls.append("outer begins")
            try:
                yield
            finally:
                self.calls.append("outer ends")

        @app.middleware
        def inner(ctx: Context) -> Iterator[None]:
            self.calls.append("inner begins")
            yield
            self.calls.append("inner ends")

        def run() -> str | None:
            self.calls.append("handler")
            if self.raises is not None:
                raise self.raises
            return "value"

        async def arun() -> str | None:
            await asyncio.sleep(0)
            return run()

        self.task = app.task(name="sample", **options)(arun if is_async else run)

    def _ended(self, end: AttemptEnd) -> None:
        self.calls.append(f"after {end.context.attempt}: {end.outcome}")
        self.ends.append(end)


@pytest.mark.parametrize("is_async", [False, True])
def test_hooks_and_middleware_run_around_a_handler_in_order(app: Holdfast, is_async: bool) -> None:
    recorder = Recorder(app, is_async=is_async)
    with inline(app):
        assert recorder.task.enqueue().result() == "value"
    assert recorder.calls == [
        *("before 1", "outer begins", "inner begins", "handler", "inner ends", "outer ends"),
        "after 1: done",
    ]
    assert recorder.ends[0].seconds >= 0
    assert recorder.ends[0].error is None


@pytest.mark.parametrize("is_async", [False, True])
def test_a_failure_is_told_at_each_attempt_and_a_death_once(app: Holdfast, is_async: bool) -> None:
    recorder = Recorder(app, is_async=is_async, max_attempts=2)
    recorder.raises = ValueError("no")
    with inline(app):
        job = recorder.task.enqueue().job()
    told = [each for each in recorder.calls if each[0] in "afd"]
    assert told == ["failure 1", "after 1: retried", "failure 2", "death 2", "after 2: dead"]
    assert recorder.ends[1].error is recorder.raises
    assert job is not None
    assert recorder.ends[1].failure == job.failures[1].failure


@pytest.mark.parametrize(
    ("raised", "last", "outcome"),
    [
        (ValueError("no"), False, "retried"),
        (ValueError("no"), True, "dead"),
        (Retry(after="1m"), False, "retried"),
        (Bury("no use"), False, "dead"),
        (Release("not now"), True, "released"),
        (Cancelled("not wanted"), True, "cancelled"),
    ],
)
def test_the_outcome_follows_from_how_the_handler_ended(
    app: Holdfast, raised: BaseException, last: bool, outcome: str
) -> None:
    recorder = Recorder(app, is_async=False)
    recorder.raises = raised
    Attempt(app.handlers["sample"], (given_job({}, last=last),)).run()
    assert recorder.ends[0].outcome == outcome
    assert recorder.ends[0].error is raised


def test_an_attempt_that_stops_with_its_worker_is_released(app: Holdfast) -> None:
    recorder = Recorder(app, is_async=False)

    def stop() -> None:
        attempt.cancel(lost=True)
        raise Cancelled

    attempt = Attempt(replace(app.handlers["sample"], function=stop), (given_job({}),))
    attempt.run()
    assert recorder.ends[0].outcome == "released"


def test_a_payload_that_does_not_fit_is_a_failure_and_a_death(app: Holdfast) -> None:
    recorder = Recorder(app, is_async=False)
    Attempt(app.handlers["sample"], (given_job({"unknown": 1}),)).run()
    assert recorder.calls == ["failure 1", "death 1", "after 1: dead"]
    assert recorder.ends[0].failure is not None
    assert "unknown" in recorder.ends[0].failure.message


def test_a_timeout_is_told_with_the_failure_that_is_stored(app: Holdfast) -> None:
    ends: list[AttemptEnd] = []
    left: list[str] = []
    app.on_failure(ends.append)

    @app.middleware
    def leave(ctx: Context) -> Iterator[None]:
        try:
            yield
        finally:
            left.append(ctx.id)

    @app.task(name="sample")
    async def hang() -> None:
        await asyncio.Event().wait()

    attempt = Attempt(app.handlers["sample"], (given_job({}),), timeout_ms=1)
    asyncio.run(attempt.run_async())
    assert ends[0].failure is not None
    assert ends[0].failure.kind is FailureKind.TIMEOUT
    assert isinstance(ends[0].error, TimeoutError)
    assert left == ["j1"]


def test_a_hook_before_an_attempt_that_raises_fails_it(app: Holdfast) -> None:
    recorder = Recorder(app, is_async=False, max_attempts=1)

    @app.before_attempt
    def refuse(ctx: Context) -> None:
        raise Bury("not today")

    with inline(app) as jobs:
        recorder.task.enqueue()
        assert jobs.jobs[0].state is State.DEAD
    assert "handler" not in recorder.calls
    assert recorder.calls[-1] == "after 1: dead"


@pytest.mark.parametrize("error", [ValueError("broken"), SystemExit(3)])
def test_an_error_of_a_hook_after_an_attempt_is_logged_and_changes_nothing(
    app: Holdfast, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    @app.after_attempt
    def break_down(end: AttemptEnd) -> None:
        raise error

    recorder = Recorder(app, is_async=False)
    with inline(app), caplog.at_level(logging.ERROR):
        assert recorder.task.enqueue().result() == "value"
    assert "break_down failed after job" in caplog.text
    assert recorder.calls[-1] == "after 1: done"


@pytest.mark.parametrize("is_async", [False, True])
def test_a_middleware_may_replace_or_catch_the_error(app: Holdfast, is_async: bool) -> None:
    recorder = Recorder(app, is_async=is_async, max_attempts=3)

    @app.middleware
    def translate(ctx: Context) -> Iterator[None]:
        try:
            yield
        except LookupError:
            pass
        except ValueError as error:
            raise Bury("bad value") from error

    with inline(app):
        recorder.raises = KeyError("gone")
        assert recorder.task.enqueue().result() is None
        recorder.raises = ValueError("bad")
        failed = recorder.task.enqueue().job()
    assert failed is not None
    assert failed.state is State.DEAD
    assert failed.attempt == 1
    assert failed.failures[0].failure is not None
    assert "ValueError: bad" in failed.failures[0].failure.trace


def test_a_plain_middleware_around_an_async_handler_sees_its_end(app: Holdfast) -> None:
    """It runs in the handler's own task: context variables that it sets are the handler's."""
    seen: list[str] = []

    @app.middleware
    def region(ctx: Context) -> Iterator[None]:
        token = REGION.set(ctx.headers.get("region", "none"))
        yield
        REGION.reset(token)
        seen.append("left")

    @app.task
    async def where() -> str:
        await asyncio.sleep(0)
        assert not seen
        return REGION.get()

    with inline(app):
        assert where.using(headers={"region": "eu"}).enqueue().result() == "eu"
    assert seen == ["left"]


def test_an_async_middleware_wraps_async_tasks_only(app: Holdfast) -> None:
    seen: list[str] = []

    @app.middleware(only="async")
    async def session(ctx: Context) -> AsyncIterator[None]:
        await asyncio.sleep(0)
        seen.append(f"begins for {ctx.task}")
        yield
        await asyncio.sleep(0)
        seen.append("ends")

    @app.middleware(only="sync")
    def other(ctx: Context) -> Iterator[None]:
        seen.append(f"plain for {ctx.task}")
        yield

    @app.task(name="coroutine")
    async def coroutine() -> None:
        seen.append("runs")

    @app.task(name="plain")
    def plain() -> None: ...

    with inline(app):
        coroutine.enqueue()
        plain.enqueue()
    assert seen == ["begins for coroutine", "runs", "ends", "plain for plain"]


def test_an_async_middleware_for_plain_tasks_is_refused_when_the_worker_starts(
    app: Holdfast,
) -> None:
    @app.middleware
    async def session(ctx: Context) -> AsyncIterator[None]:
        yield

    app.task(name="coroutine")(_nothing)
    assert app.handlers
    app.task(name="plain")(lambda: None)
    with pytest.raises(UsageError, match=r"session is async, and task plain .*\(only=\"async\"\)"):
        _ = app.handlers


async def _nothing() -> None: ...


@pytest.mark.parametrize(
    ("register", "match"),
    [
        (lambda app: app.on_enqueue(_nothing), "_nothing is async"),
        (lambda app: app.after_attempt(_nothing), "hooks are plain functions"),
        (lambda app: app.on_death(5), "a hook must be a function"),
        (lambda app: app.middleware(print), "is not a generator function"),
        (lambda app: app.middleware(only="all"), "only 'all' is not valid"),
    ],
)
def test_a_wrong_hook_is_refused_at_once(
    app: Holdfast, register: Callable[[Any], object], match: str
) -> None:
    with pytest.raises(UsageError, match=match):
        register(app)


def test_a_batch_runs_middleware_once_and_hooks_for_each_job(app: Holdfast) -> None:
    seen: list[str] = []
    app.before_attempt(lambda ctx: seen.append(f"before {ctx.id}"))
    app.after_attempt(lambda end: seen.append(f"{end.context.id} {end.outcome} {end.error!r}"))

    @app.middleware
    def once(ctx: Context) -> Iterator[None]:
        seen.append(f"around {ctx.id}")
        yield

    @app.task(name="sum", batch=3)
    def total(numbers: list[int]) -> list[Any]:
        return [number or ZeroDivisionError("zero") for number in numbers]

    jobs = tuple(
        given_job(payload, id=id_) for id_, payload in (("a", "no number"), ("b", 0), ("c", 5))
    )
    Attempt(app.handlers["sum"], jobs).run()
    assert seen == [
        *("before b", "before c", "around b", "a dead None"),
        *("b retried ZeroDivisionError('zero')", "c done None"),
    ]


def test_dead_letters_have_the_hooks_but_do_not_die_again(app: Holdfast) -> None:
    ends: list[AttemptEnd] = []
    deaths: list[AttemptEnd] = []
    app.after_attempt(ends.append)
    app.on_death(deaths.append)

    @app.on_dead_letter("mail")
    def read(letter: DeadLetter) -> None:
        raise ConnectionError

    [handler] = app.handlers.values()
    letter = DeadLetter(
        id="j1",
        task="send",
        queue="mail",
        origin="mail",
        reason=Reason.ATTEMPTS,
        attempts=4,
        failures=(),
        payload=b"",
    )
    payload = msgspec.msgpack.encode(letter)
    Attempt(handler, (given_job(payload, last=True),)).run()
    assert [end.outcome for end in ends] == ["retried"]
    assert deaths == []


def test_an_enqueue_hook_adds_headers_to_every_enqueue(app: Holdfast) -> None:
    stamp_region(app)

    @app.task(name="leaf")
    def leaf() -> None: ...

    @app.task(name="root")
    def root(ctx: Context) -> None:
        REGION.set("worker")
        ctx.then(leaf.job())
        leaf.enqueue()

    async def enqueue_async() -> None:
        await leaf.aenqueue()
        await leaf.aenqueue_many([()])
        await app.enqueue("leaf")
        await app.enqueue_many([app.job("leaf")])
        await app.batch([app.job("leaf")], then=app.job("leaf"))
        [lease] = await app.lease(tasks=["leaf"])
        await app.complete(lease, then=[app.job("leaf")])

    with manual(app) as jobs:
        token = REGION.set("eu")
        leaf.enqueue()
        leaf.enqueue_many([(), ()])
        leaf.using(id="own").enqueue()
        leaf.within(object()).enqueue()
        app.within(object()).enqueue([app.job("leaf")])
        asyncio.run(enqueue_async())
        root.enqueue()
        leaf.using(headers={"region": "us", "other": "1"}).enqueue()
        REGION.reset(token)
        before = len(jobs.jobs)
        jobs.drain()
        headers = [job.headers for job in jobs.jobs]
    assert before == 15
    assert headers[: before - 1] == [{"region": "eu"}] * (before - 1)
    assert headers[before - 1] == {"region": "us", "other": "1"}
    assert headers[before:] == [{"region": "worker"}] * 2


def test_an_enqueue_hook_runs_for_the_blocking_application() -> None:
    with BlockingHoldfast("memory:") as app:
        app.on_enqueue(lambda job: {"task": job.task})
        assert app.get(app.enqueue("leaf").id).headers == {"task": "leaf"}  # type: ignore[union-attr]
        [receipt] = app.enqueue_many([app.job("leaf")])
        assert app.get(receipt.id).headers == {"task": "leaf"}  # type: ignore[union-attr]


def test_an_enqueue_hook_refuses_a_job_by_raising(app: Holdfast) -> None:
    @app.on_enqueue
    def refuse(job: NewJob) -> None:
        raise PermissionError(job.task)

    @app.task(name="leaf")
    def leaf() -> None: ...

    with manual(app) as jobs:
        with pytest.raises(PermissionError, match="leaf"):
            leaf.enqueue()
        with pytest.raises(PermissionError, match="leaf"):
            leaf.enqueue_many([()])
        assert jobs.jobs == []


@pytest.mark.parametrize(
    ("returned", "match"),
    [("text", "returned a str"), ({"a": 1}, "the header 'a': 1"), ({1: "a"}, "the header 1")],
)
def test_an_enqueue_hook_that_returns_no_headers_is_refused(
    app: Holdfast, returned: Any, match: str
) -> None:
    @app.on_enqueue
    def answer(job: NewJob) -> Any:
        return returned

    with manual(app), pytest.raises(UsageError, match=match):
        app.run(app.enqueue("leaf"))


def test_a_hook_is_the_function_itself(app: Holdfast) -> None:
    def stamp(job: NewJob) -> dict[str, str] | None:
        return None

    assert app.on_enqueue(stamp) is stamp


def test_without_hooks_a_handler_is_the_task_s_own(app: Holdfast) -> None:
    task = app.task(name="leaf")(lambda: None)
    assert app.handlers["leaf"] is task.handler
