"""Three modes to test a program that enqueues jobs: `inline`, `manual` and `fake`.

Each is a context manager for the given applications, by default for all. Jobs go to a store in
memory; the real store is never opened.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from holdfast.app.application import ALIVE, Holdfast
from holdfast.app.engine_host import EngineHost
from holdfast.app.task import AnyTask
from holdfast.core import codec
from holdfast.core.model import Job, JobFilter, Receipt
from holdfast.errors import InvalidJob, UsageError
from holdfast.notation.durations import Duration, to_ms
from holdfast.testing.stage import DrainResult, Stage, adrain, drain

_PAGE = 1_000


def inline(*apps: Holdfast) -> Inline:
    """Run each job at once, in the call that enqueues it."""
    return Inline(apps, InlineStage)


def manual(*apps: Holdfast) -> Manual:
    """Run jobs only on `drain()`, and let time pass only on `advance()`."""
    return Manual(apps)


def fake(*apps: Holdfast) -> Fake:
    """Run nothing; only record jobs, for `assert_enqueued` and `refute_enqueued`."""
    return Fake(apps)


class Mode:
    """The base of all modes. Modes may be nested: the innermost one applies."""

    def __init__(
        self, apps: tuple[Holdfast, ...], make: Callable[[Holdfast], Stage] = Stage
    ) -> None:
        self._stages = [make(app) for app in _apps(apps)]
        self._before: list[EngineHost] = []

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
        """The enqueued jobs, oldest first."""
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
    """When `enqueue` returns, the job has run with all its attempts and follow-ups. Delays and
    backoff are skipped. `result()` returns or raises its outcome."""


class Manual(Mode):
    """Jobs run on `drain`; time passes on `advance`."""

    def drain(self) -> DrainResult:
        """Run all due jobs, including those that become due immediately; returns how they ended.

        An async test awaits `adrain()`, so that async handlers run on the test's own loop.
        """
        return sum((drain(stage) for stage in self._stages), DrainResult())

    async def adrain(self) -> DrainResult:
        """The async form of `drain`."""
        return sum([await adrain(stage) for stage in self._stages], DrainResult())

    def advance(self, duration: Duration) -> None:
        """Let time pass: delayed jobs and retries become due, others expire, and schedules enqueue
        the jobs of their ticks."""
        ms = to_ms("duration", duration, UsageError)
        for stage in self._stages:
            stage.advance(ms)


class Fake(Mode):
    """Nothing runs; tests check which jobs were enqueued."""

    def assert_enqueued(
        self, task: AnyTask | str, *args: Any, times: int | None = None, **named: Any
    ) -> list[Job]:
        """Assert that a job of the task was enqueued: `times` times if given, with exactly these
        arguments if any are given. Returns the jobs."""
        found = self._matching(task, args, named)
        wanted = "at least once" if times is None else f"{times} times"
        if not found if times is None else len(found) != times:
            raise AssertionError(
                f"{_call(task, args, named)} was enqueued {len(found)} times, not {wanted}; "
                f"enqueued were: {self._summary()}"
            )
        return found

    def refute_enqueued(self, task: AnyTask | str, *args: Any, **named: Any) -> None:
        """Assert that no such job was enqueued."""
        found = self._matching(task, args, named)
        if found:
            raise AssertionError(f"{_call(task, args, named)} was enqueued {len(found)} times")

    def _matching(
        self, task: AnyTask | str, args: tuple[Any, ...], named: dict[str, Any]
    ) -> list[Job]:
        name = task if isinstance(task, str) else task.name
        jobs = [job for job in self.jobs if job.task == name]
        if not args and not named:
            return jobs
        if isinstance(task, str):
            raise UsageError("comparing arguments needs the task itself, not its name")
        wanted = codec.decode(task.signature.payload(args, named))
        return [job for job in jobs if _decoded(job) == wanted]

    def _summary(self) -> str:
        jobs = self.jobs
        shown = [f"{job.task} {job.payload[:200].decode(errors='replace')}" for job in jobs[:10]]
        more = [f"and {len(jobs) - 10} more"] if len(jobs) > 10 else []
        return "; ".join(shown + more) or "none at all"


class InlineStage(Stage):
    """A stage that drains after every enqueue."""

    def enqueued(self, receipts: list[Receipt]) -> None:
        drain(self, jump=True)

    async def aenqueued(self, receipts: list[Receipt]) -> None:
        await adrain(self, jump=True)


def _apps(given: tuple[Holdfast, ...]) -> list[Holdfast]:
    for app in given:
        if not isinstance(app, Holdfast):
            raise UsageError(f"a test mode takes Holdfast applications, not {type(app).__name__}")
    return list(given) or sorted(ALIVE, key=id)


def _decoded(job: Job) -> Any:
    try:
        return codec.decode(job.payload)
    except InvalidJob:
        return job.payload


def _call(task: AnyTask | str, args: tuple[Any, ...], named: dict[str, Any]) -> str:
    name = task if isinstance(task, str) else task.name
    shown = [*map(repr, args), *(f"{key}={value!r}" for key, value in named.items())]
    return f"{name}({', '.join(shown)})" if shown else name
