"""Three ways to test a program that enqueues: `inline`, `manual` and `fake`.

Each is a context manager for some applications, or for all there are. Jobs go to a store in
memory; the real one is never opened.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from holdfast.app import ALIVE, Holdfast
from holdfast.core import codec
from holdfast.core.model import Job, JobFilter, Receipt
from holdfast.durations import Duration, to_ms
from holdfast.errors import InvalidJob, UsageError
from holdfast.home import Home
from holdfast.tasks import Task
from holdfast.testing.draining import Drained, adrain, drain
from holdfast.testing.stage import Stage

_PAGE = 1_000


def inline(*apps: Holdfast) -> Inline:
    """Jobs run at once, where they are enqueued."""
    return Inline(apps, InlineStage)


def manual(*apps: Holdfast) -> Manual:
    """Jobs wait for `drain()`, and time for `advance()`."""
    return Manual(apps)


def fake(*apps: Holdfast) -> Fake:
    """Jobs are only kept, for `assert_enqueued` and `refute_enqueued`."""
    return Fake(apps)


class Mode:
    """What is the same in all. Modes may be nested: the inner one counts, the outer comes back."""

    def __init__(
        self, apps: tuple[Holdfast, ...], make: Callable[[Holdfast], Stage] = Stage
    ) -> None:
        self._stages = [make(app) for app in _apps(apps)]
        self._before: list[Home] = []

    def __enter__(self) -> Self:
        self._before = [stage.app.home for stage in self._stages]
        for stage in self._stages:
            stage.app.home = stage
        return self

    def __exit__(self, *error: object) -> None:
        for stage, home in zip(self._stages, self._before, strict=True):
            stage.app.home = home

    @property
    def jobs(self) -> list[Job]:
        """Those that were enqueued, oldest first."""
        found: list[Job] = []
        for stage in self._stages:
            after: int | None = None
            jobs: list[Job] = []
            while True:
                page = stage.ask(stage.engine.find(JobFilter(), limit=_PAGE, after=after))
                jobs += page.jobs
                after = page.after
                if after is None:
                    break
            found += reversed(jobs)
        return found


class Inline(Mode):
    """A job has run, with all its attempts and follow-ups, when `enqueue` returns. Delays and
    backoff are not waited for. `result()` gives what it came to."""


class Manual(Mode):
    """Nothing runs until `drain`, and time passes only by `advance`."""

    def drain(self) -> Drained:
        """Run everything that is due, and what that makes due at once. Returns how it went.

        In an async test, `await adrain()`, so that async handlers run on the test's own loop.
        """
        return sum((drain(stage) for stage in self._stages), Drained())

    async def adrain(self) -> Drained:
        return sum([await adrain(stage) for stage in self._stages], Drained())

    def advance(self, duration: Duration) -> None:
        """Let time pass: delayed jobs and retries become due, others expire."""
        ms = to_ms("duration", duration, UsageError)
        for stage in self._stages:
            stage.clock.advance(ms)


class Fake(Mode):
    """Nothing runs: only what was enqueued is looked at."""

    def assert_enqueued(
        self, task: Task[Any] | str, *args: Any, times: int | None = None, **named: Any
    ) -> list[Job]:
        """That a job of the task was enqueued, `times` times if that is given, with exactly these
        arguments if any are; the jobs."""
        found = self._matching(task, args, named)
        wanted = "at least once" if times is None else f"{times} times"
        if not found if times is None else len(found) != times:
            raise AssertionError(
                f"{_call(task, args, named)} was enqueued {len(found)} times, not {wanted}; "
                f"enqueued were: {self._summary()}"
            )
        return found

    def refute_enqueued(self, task: Task[Any] | str, *args: Any, **named: Any) -> None:
        """That no such job was enqueued."""
        found = self._matching(task, args, named)
        if found:
            raise AssertionError(f"{_call(task, args, named)} was enqueued {len(found)} times")

    def _matching(
        self, task: Task[Any] | str, args: tuple[Any, ...], named: dict[str, Any]
    ) -> list[Job]:
        name = task if isinstance(task, str) else task.name
        jobs = [job for job in self.jobs if job.task == name]
        if not args and not named:
            return jobs
        if isinstance(task, str):
            raise UsageError("arguments are compared as the task sees them: give the task itself")
        wanted = codec.decode(task.signature.payload(args, named))
        return [job for job in jobs if _decoded(job) == wanted]

    def _summary(self) -> str:
        jobs = self.jobs
        shown = [f"{job.task} {job.payload[:200].decode(errors='replace')}" for job in jobs[:10]]
        more = [f"and {len(jobs) - 10} more"] if len(jobs) > 10 else []
        return "; ".join(shown + more) or "none at all"


class InlineStage(Stage):
    """Drained after every enqueue."""

    def enqueued(self, receipts: list[Receipt]) -> None:
        drain(self, jump=True)

    async def aenqueued(self, receipts: list[Receipt]) -> None:
        await adrain(self, jump=True)


def _apps(given: tuple[Holdfast, ...]) -> list[Holdfast]:
    for app in given:
        if not isinstance(app, Holdfast):
            raise UsageError(f"a {type(app).__name__} is no Holdfast to test")
    return list(given) or sorted(ALIVE, key=id)


def _decoded(job: Job) -> Any:
    try:
        return codec.decode(job.payload)
    except InvalidJob:
        return job.payload


def _call(task: Task[Any] | str, args: tuple[Any, ...], named: dict[str, Any]) -> str:
    name = task if isinstance(task, str) else task.name
    shown = [*map(repr, args), *(f"{key}={value!r}" for key, value in named.items())]
    return f"{name}({', '.join(shown)})" if shown else name
