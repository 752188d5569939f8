"""BlockingHoldfast: the same API for blocking code, on an event loop in a background thread.

Each method does what the method of `Holdfast` with the same name does. It does not survive a fork:
the child creates its own.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeVar, Unpack

from holdfast.app.application import Holdfast
from holdfast.app.batch import Batch
from holdfast.app.engine_host import LoopThread
from holdfast.core.checks import accepted
from holdfast.core.model import AfterOn, NewJob, Receipt
from holdfast.engines.base import Engine
from holdfast.notation.job import JobOptions
from holdfast.ops.redrives import Redrives
from holdfast.ops.schedules import Schedules
from holdfast.ops.schedules.declared import DeclaredSchedules
from holdfast.ops.workers import Workers
from holdfast.worker.child.handlers import Handler

Given = ParamSpec("Given")
Answer = TypeVar("Answer")
_PAGE = 100


def _waited(
    method: Callable[Concatenate[Any, Given], Coroutine[Any, Any, Answer]],
) -> Callable[Concatenate[_Facade, Given], Answer]:
    """A blocking method with the parameters and the result of an async one."""

    @functools.wraps(method)
    def wait(self: _Facade, /, *args: Given.args, **more: Given.kwargs) -> Answer:
        return self._loop_thread.run(method(self._target, *args, **more))

    return wait


def _walked(
    method: Callable[Concatenate[Any, Given], AsyncIterator[Answer]],
) -> Callable[Concatenate[_Facade, Given], Iterator[Answer]]:
    """A blocking iterator over an async one, read one page ahead."""

    @functools.wraps(method)
    def walk(self: _Facade, /, *args: Given.args, **more: Given.kwargs) -> Iterator[Answer]:
        rest = method(self._target, *args, **more)
        while page := self._loop_thread.run(_take(rest)):
            yield from page

    return walk


def _direct(
    method: Callable[Concatenate[Any, Given], Answer],
) -> Callable[Concatenate[_Facade, Given], Answer]:
    """A method that needs no event loop, called directly."""

    @functools.wraps(method)
    def call(self: _Facade, /, *args: Given.args, **more: Given.kwargs) -> Answer:
        return method(self._target, *args, **more)

    return call


async def _take(rest: AsyncIterator[Answer]) -> list[Answer]:
    page: list[Answer] = []
    async for each in rest:
        page.append(each)
        if len(page) == _PAGE:
            break
    return page


class _Facade:
    def __init__(self, target: object, loop_thread: LoopThread) -> None:
        self._target = target
        self._loop_thread = loop_thread


class BlockingSchedules(_Facade):
    """See `Schedules`."""

    add: Final = _waited(Schedules.add)
    edit: Final = _waited(Schedules.edit)
    pause: Final = _waited(Schedules.pause)
    resume: Final = _waited(Schedules.resume)
    remove: Final = _waited(Schedules.remove)
    run_now: Final = _waited(Schedules.run_now)
    get: Final = _waited(Schedules.get)
    all: Final = _waited(Schedules.all)
    preview: Final = _direct(Schedules.preview)


class BlockingRedrives(_Facade):
    """See `Redrives`."""

    survey: Final = _waited(Redrives.survey)
    start: Final = _waited(Redrives.start)
    cancel: Final = _waited(Redrives.cancel)
    get: Final = _waited(Redrives.get)
    all: Final = _waited(Redrives.all)
    going_on: Final = _waited(Redrives.going_on)


class BlockingWorkers(_Facade):
    """See `Workers`."""

    all: Final = _waited(Workers.all)
    get: Final = _waited(Workers.get)
    orders: Final = _waited(Workers.orders)
    cordon: Final = _waited(Workers.cordon)
    uncordon: Final = _waited(Workers.uncordon)
    stop: Final = _waited(Workers.stop)
    drain: Final = _waited(Workers.drain)
    order: Final = _waited(Workers.order)
    nudge: Final = _waited(Workers.nudge)
    forget: Final = _waited(Workers.forget)


class BlockingBatch(_Facade):
    """See `Batch`."""

    job: Final = _waited(Batch.job)
    progress: Final = _waited(Batch.progress)

    @property
    def id(self) -> str:
        batch = self._target
        assert isinstance(batch, Batch)
        return batch.id


class BlockingHoldfast(_Facade):
    """See `Holdfast`. Use it as `with BlockingHoldfast() as app`, or call `open` and `close`."""

    def __init__(
        self,
        url: str | None = None,
        *,
        engine: Engine | None = None,
        name: str | None = None,
        keep_schedules: bool = False,
    ) -> None:
        app = Holdfast(url, engine=engine, name=name, keep_schedules=keep_schedules)
        super().__init__(app, LoopThread())
        self._app = app
        self.listeners: Final = app.listeners
        self.hooks: Final = app.hooks

    @property
    def schedules(self) -> BlockingSchedules:
        """See `Holdfast.schedules`."""
        return BlockingSchedules(self._app.schedules, self._loop_thread)

    @property
    def redrives(self) -> BlockingRedrives:
        """See `Holdfast.redrives`."""
        return BlockingRedrives(self._app.redrives, self._loop_thread)

    def batch(
        self, jobs: Iterable[NewJob], *, then: NewJob, after_on: AfterOn = "either"
    ) -> BlockingBatch:
        """See `Holdfast.batch`."""
        made = self.run(self._app.batch(jobs, then=then, after_on=after_on))
        return BlockingBatch(made, self._loop_thread)

    @property
    def workers(self) -> BlockingWorkers:
        """See `Holdfast.workers`."""
        return BlockingWorkers(self._app.workers, self._loop_thread)

    @property
    def handlers(self) -> dict[str, Handler]:
        """See `Holdfast.handlers`."""
        return self._app.handlers

    @property
    def declared_schedules(self) -> DeclaredSchedules:
        """See `Holdfast.declared_schedules`."""
        return self._app.declared_schedules

    def open(self) -> None:
        """Start the loop and open the engine. Idempotent."""
        self._loop_thread.start(self._app.close)
        self._loop_thread.run(self._app.open())

    def close(self) -> None:
        """Finish the pending calls and stop the loop. Idempotent; also done at exit."""
        self._loop_thread.stop()

    def __enter__(self) -> Self:
        try:
            self.open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def run(self, coroutine: Coroutine[Any, Any, Answer]) -> Answer:
        """Run any coroutine on the engine's loop and wait for it."""
        return self._loop_thread.run(coroutine)

    def enqueue(self, task: str, payload: Any = None, **options: Unpack[JobOptions]) -> Receipt:
        """Enqueue one job, durable on return; calls of several threads share commits. A refusal is
        raised: UnknownQueue, QueueFull, …"""
        if options.get("id") is not None:
            return self._loop_thread.run(self._app.enqueue(task, payload, **options))
        jobs = [self._app.job(task, payload, **options)]
        jobs = self._app.hooks.prepared(jobs) if self._app.hooks.enqueue else jobs
        [receipt] = self._app.home.enqueue(jobs, "the methods", self._loop_thread)
        return accepted(receipt)

    def start_upkeep(self, *, archive: Path | str | None = None) -> None:
        """Run upkeep in the background until `close`."""
        self._loop_thread.run_service(self._app.upkeep(archive=archive).run)

    job: Final = _direct(Holdfast.job)
    new_id: Final = _direct(Holdfast.new_id)
    enqueue_many: Final = _waited(Holdfast.enqueue_many)
    lease: Final = _waited(Holdfast.lease)
    renew: Final = _waited(Holdfast.renew)
    renew_many: Final = _waited(Holdfast.renew_many)
    complete: Final = _waited(Holdfast.complete)
    fail: Final = _waited(Holdfast.fail)
    retry: Final = _waited(Holdfast.retry)
    bury: Final = _waited(Holdfast.bury)
    release: Final = _waited(Holdfast.release)
    forward: Final = _waited(Holdfast.forward)
    settle: Final = _waited(Holdfast.settle)
    get: Final = _waited(Holdfast.get)
    find: Final = _waited(Holdfast.find)
    jobs: Final = _walked(Holdfast.jobs)
    tally: Final = _waited(Holdfast.tally)
    amend: Final = _waited(Holdfast.amend)
    cancel: Final = _waited(Holdfast.cancel)
    redrive: Final = _waited(Holdfast.redrive)
    delete: Final = _waited(Holdfast.delete)
    queues: Final = _waited(Holdfast.queues)
    declare: Final = _waited(Holdfast.declare)
    limit: Final = _waited(Holdfast.limit)
    unlimit: Final = _waited(Holdfast.unlimit)
    flow: Final = _waited(Holdfast.flow)
    waits: Final = _waited(Holdfast.waits)
    drop: Final = _waited(Holdfast.drop)
    backup: Final = _waited(Holdfast.backup)
    within: Final = _direct(Holdfast.within)
    task: Final = _direct(Holdfast.task)
    schedule: Final = _direct(Holdfast.schedule)
    sync_schedules: Final = _waited(Holdfast.sync_schedules)
    on_dead_letter: Final = _direct(Holdfast.on_dead_letter)
    on_enqueue: Final = _direct(Holdfast.on_enqueue)
    before_attempt: Final = _direct(Holdfast.before_attempt)
    after_attempt: Final = _direct(Holdfast.after_attempt)
    on_failure: Final = _direct(Holdfast.on_failure)
    on_death: Final = _direct(Holdfast.on_death)
    middleware: Final = _direct(Holdfast.middleware)
    run_worker: Final = _direct(Holdfast.run_worker)
