"""A task with options for the jobs that are enqueued by it, and the way they take.

A queue that some task names is declared by the first job that finds it missing; no other is.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack, cast

from msgspec.structs import replace

from holdfast.core import checks, limits
from holdfast.core.model import NewJob, Queue, Receipt, Status
from holdfast.errors import InvalidJob, UnknownQueue, UsageError
from holdfast.handles import JobHandle
from holdfast.options import JobOptions, new_job

if TYPE_CHECKING:
    from holdfast.app import Holdfast
    from holdfast.tasks import Task

Answer = TypeVar("Answer")
Arguments = Iterable[tuple[Any, ...] | Mapping[str, Any]]


class Using(Generic[Answer]):
    """A task with options for the jobs that are enqueued by it."""

    def __init__(self, task: Task[Answer], options: JobOptions, connection: Any = None) -> None:
        if options.get("content_type") is not None:
            raise InvalidJob("the payload of a task is JSON: leave content_type out")
        self._task = task
        self._options = options
        self._connection = connection
        self._template = self._make()

    def using(self, **options: Unpack[JobOptions]) -> Using[Answer]:
        return Using(self._task, {**self._options, **options}, self._connection)

    def within(self, connection: Any) -> Using[Answer]:
        return Using(self._task, self._options, connection)

    def job(self, *args: Any, **named: Any) -> NewJob:
        payload = self._task.signature.payload(args, named)
        # An instant comes nearer all the time; everything else was checked once.
        template = self._template if self._options.get("run_at") is None else self._make()
        return replace(
            template, id=self._options.get("id") or self._task.app.new_id(), payload=payload
        )

    def enqueue(self, *args: Any, **named: Any) -> JobHandle[Answer]:
        return self._put([self.job(*args, **named)])[0]

    delay = enqueue

    async def aenqueue(self, *args: Any, **named: Any) -> JobHandle[Answer]:
        return (await self._aput([self.job(*args, **named)]))[0]

    def enqueue_many(self, calls: Arguments) -> list[JobHandle[Answer]]:
        return self._put(self._jobs(calls))

    async def aenqueue_many(self, calls: Arguments) -> list[JobHandle[Answer]]:
        return await self._aput(self._jobs(calls))

    def _make(self) -> NewJob:
        options: dict[str, Any] = {**self._task.defaults, **self._options}
        if self._options.get("to") is not None and self._options.get("queue") is None:
            options.pop("queue", None)
        template = new_job(self._task.name, None, cast("JobOptions", options))
        checks.check_job(template)
        return template

    def _jobs(self, calls: Arguments) -> list[NewJob]:
        jobs = []
        for at, call in enumerate(calls):
            given: object = call
            if isinstance(given, Mapping):
                jobs.append(self.job(**given))
            elif isinstance(given, tuple | list):
                jobs.append(self.job(*given))
            else:
                kind = type(given).__name__
                raise InvalidJob(f"call {at} is a {kind}: give a tuple or dict of arguments")
        if len(jobs) > 1 and self._options.get("id") is not None:
            raise InvalidJob(f"id {jobs[0].id} would be that of {len(jobs)} jobs: leave it out")
        return jobs

    def _put(self, jobs: list[NewJob]) -> list[JobHandle[Answer]]:
        app = self._task.app
        if self._connection is None:
            receipts = app.run(_enqueue(app, jobs), instead="task.aenqueue(…)")
        else:
            app.run(_nothing(), instead="task.within(connection).aenqueue(…)")
            receipts = []
            for answer in self._enqueue_within(jobs):
                if inspect.iscoroutine(answer):
                    answer.close()
                    raise UsageError(
                        "this connection is async: await task.within(connection).aenqueue(…)"
                    )
                receipts += answer
        handles = self._handles(receipts)
        app.home.enqueued(receipts)
        return handles

    async def _aput(self, jobs: list[NewJob]) -> list[JobHandle[Answer]]:
        app = self._task.app
        if self._connection is None:
            receipts = await app.arun(_enqueue(app, jobs))
        else:
            await app.arun(_nothing())
            receipts = []
            for answer in self._enqueue_within(jobs):
                receipts += await answer if inspect.isawaitable(answer) else answer
        handles = self._handles(receipts)
        await app.home.aenqueued(receipts)
        return handles

    def _enqueue_within(self, jobs: list[NewJob]) -> Iterator[Any]:
        """Receipts, or what is to be awaited for them, batch by batch: the caller's transaction
        makes them one."""
        within = self._task.app.within(self._connection)
        for at in range(0, len(jobs), limits.BATCH_MAX):
            yield within.enqueue(jobs[at : at + limits.BATCH_MAX])

    def _handles(self, receipts: list[Receipt]) -> list[JobHandle[Answer]]:
        from holdfast.app import accepted

        refused = [each for each in receipts if each.status is Status.REFUSED]
        if refused:
            one = refused[0]
            if len(receipts) > 1:
                text = f"{len(refused)} of {len(receipts)} jobs were refused, the first: {one.text}"
                one = replace(one, text=text)
            accepted(one)
        return [
            JobHandle(self._task, each.id, duplicate=each.status is Status.DUPLICATE)
            for each in receipts
        ]


async def _enqueue(app: Holdfast, jobs: list[NewJob]) -> list[Receipt]:
    """A queue that a task names is declared when it is not there, and left as it is when it is."""
    receipts = await app.enqueue_many(jobs)
    if not any(receipt.code == UnknownQueue.code for receipt in receipts):
        return receipts
    named = {task.queue for task in app.tasks.values()}
    again = [
        at
        for at, receipt in enumerate(receipts)
        if receipt.code == UnknownQueue.code and jobs[at].queue in named
    ]
    for queue in sorted({jobs[at].queue for at in again}):
        await app.engine.declare(Queue(name=queue), instead_of=None)
    answers = await app.enqueue_many(jobs[at] for at in again)
    for at, receipt in zip(again, answers, strict=True):
        receipts[at] = receipt
    return receipts


async def _nothing() -> None:
    """To have the engine opened."""
