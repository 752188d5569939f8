"""BlockingHoldfast: the same API for blocking code, on an event loop in a background thread.

Each method does what the method of `Holdfast` with the same name does. It does not survive a fork:
the child creates its own.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack

from holdfast.app.application import Holdfast
from holdfast.app.batch import Batch
from holdfast.app.engine_host import LoopThread
from holdfast.core.checks import accepted
from holdfast.core.model import AfterOn, NewJob, Receipt
from holdfast.engines.base import Engine
from holdfast.notation.job import JobOptions
from holdfast.ops.redrives import Redrives
from holdfast.ops.schedules import Schedules
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

    add = _waited(Schedules.add)
    edit = _waited(Schedules.edit)
    pause = _waited(Schedules.pause)
    resume = _waited(Schedules.resume)
    remove = _waited(Schedules.remove)
    run_now = _waited(Schedules.run_now)
    get = _waited(Schedules.get)
    all = _waited(Schedules.all)
    preview = _direct(Schedules.preview)


class BlockingRedrives(_Facade):
    """See `Redrives`."""

    survey = _waited(Redrives.survey)
    start = _waited(Redrives.start)
    cancel = _waited(Redrives.cancel)
    get = _waited(Redrives.get)
    all = _waited(Redrives.all)
    going_on = _waited(Redrives.going_on)


class BlockingWorkers(_Facade):
    """See `Workers`."""

    all = _waited(Workers.all)
    get = _waited(Workers.get)
    orders = _waited(Workers.orders)
    cordon = _waited(Workers.cordon)
    uncordon = _waited(Workers.uncordon)
    stop = _waited(Workers.stop)
    drain = _waited(Workers.drain)
    order = _waited(Workers.order)
    nudge = _waited(Workers.nudge)
    forget = _waited(Workers.forget)


class BlockingBatch(_Facade):
    """See `Batch`."""

    job = _waited(Batch.job)
    progress = _waited(Batch.progress)

    @property
    def id(self) -> str:
        batch = self._target
        assert isinstance(batch, Batch)
        return batch.id


class BlockingHoldfast(_Facade):
    """See `Holdfast`. Use it as `with BlockingHoldfast() as app`, or call `open` and `close`."""

    def __init__(self, url: str | None = None, *, engine: Engine | None = None) -> None:
        app = Holdfast(url, engine=engine)
        super().__init__(app, LoopThread())
        self._app = app
        self.listeners = app.listeners

    @property
    def schedules(self) -> BlockingSchedules:
        return BlockingSchedules(self._app.schedules, self._loop_thread)

    @property
    def redrives(self) -> BlockingRedrives:
        return BlockingRedrives(self._app.redrives, self._loop_thread)

    def batch(
        self, jobs: Iterable[NewJob], *, then: NewJob, after_on: AfterOn = "either"
    ) -> BlockingBatch:
        made = self.run(self._app.batch(jobs, then=then, after_on=after_on))
        return BlockingBatch(made, self._loop_thread)

    @property
    def workers(self) -> BlockingWorkers:
        return BlockingWorkers(self._app.workers, self._loop_thread)

    @property
    def handlers(self) -> dict[str, Handler]:
        return self._app.handlers

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
        job = self._app.job(task, payload, **options)
        [receipt] = self._app.home.enqueue([job], "the methods", self._loop_thread)
        return accepted(receipt)

    def start_upkeep(self, *, archive: Path | str | None = None) -> None:
        """Run upkeep in the background until `close`."""
        self._loop_thread.run_service(self._app.upkeep(archive=archive).run)

    job = _direct(Holdfast.job)
    new_id = _direct(Holdfast.new_id)
    enqueue_many = _waited(Holdfast.enqueue_many)
    lease = _waited(Holdfast.lease)
    renew = _waited(Holdfast.renew)
    renew_many = _waited(Holdfast.renew_many)
    complete = _waited(Holdfast.complete)
    fail = _waited(Holdfast.fail)
    retry = _waited(Holdfast.retry)
    bury = _waited(Holdfast.bury)
    release = _waited(Holdfast.release)
    forward = _waited(Holdfast.forward)
    settle = _waited(Holdfast.settle)
    get = _waited(Holdfast.get)
    find = _waited(Holdfast.find)
    jobs = _walked(Holdfast.jobs)
    tally = _waited(Holdfast.tally)
    amend = _waited(Holdfast.amend)
    cancel = _waited(Holdfast.cancel)
    redrive = _waited(Holdfast.redrive)
    delete = _waited(Holdfast.delete)
    queues = _waited(Holdfast.queues)
    declare = _waited(Holdfast.declare)
    limit = _waited(Holdfast.limit)
    unlimit = _waited(Holdfast.unlimit)
    flow = _waited(Holdfast.flow)
    waits = _waited(Holdfast.waits)
    drop = _waited(Holdfast.drop)
    backup = _waited(Holdfast.backup)
    within = _direct(Holdfast.within)
    task = _direct(Holdfast.task)
    on_dead_letter = _direct(Holdfast.on_dead_letter)
    run_worker = _direct(Holdfast.run_worker)
