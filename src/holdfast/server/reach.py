"""How far a caller reaches: which queues, which jobs, which tasks. Everything is judged by what the
store says of a job, and where that may change meanwhile the engine compares it in its own write.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.core import admission, limits
from holdfast.core.amend import amendable
from holdfast.core.model import JobFilter, NewJob, Queue, Receipt, TallyBy
from holdfast.core.verdict import (
    Amendment,
    Cancel,
    Complete,
    Edit,
    Forward,
    Outcome,
    Settlement,
)
from holdfast.engines.base import Engine, Known
from holdfast.errors import Forbidden
from holdfast.server.callers import Caller, Scope
from holdfast.server.commands import TASKS, command_text, refuse_commands, runs_commands


class Reach:
    """Of one caller, in one namespace."""

    def __init__(self, engine: Engine, caller: Caller) -> None:
        self._engine = engine
        self._caller = caller
        self._prefix = caller.prefix
        self._commands = caller.may(Scope.RUN_COMMANDS)
        self.is_whole = self._commands and not caller.prefix
        """Whether there is nothing to look at."""

    def check_queue(self, queue: str) -> None:
        if self._prefix and not self._caller.owns(queue):
            raise Forbidden(self._outside(queue))

    def check_filter(self, wanted: JobFilter) -> None:
        """Who only produces names the jobs; who only consumes, or has a prefix, the queue."""
        if wanted.queue is not None:
            self.check_queue(wanted.queue)
        if wanted.ids is not None:
            return
        if not self._caller.may(Scope.CONSUME):
            raise Forbidden("this needs the scope operate, or the ids of the jobs")
        if wanted.queue is None and not self._caller.may(Scope.OPERATE):
            raise Forbidden("this needs the scope operate, or the name of a queue")
        if wanted.queue is None and self._prefix:
            raise Forbidden(f"name a queue within {self._prefix}…")

    async def others(self, ids: Sequence[str]) -> frozenset[str]:
        """Those of jobs that are in queues outside the prefix."""
        others: set[str] = set()
        for at in range(0, len(ids) if self._prefix else 0, limits.BATCH_MAX):
            wanted = JobFilter(ids=tuple(dict.fromkeys(ids[at : at + limits.BATCH_MAX])))
            queues = await self._engine.tally(wanted, "queue", limit=limits.PAGE_MAX)
            for tally in queues:
                if tally.value is not None and not self._caller.owns(tally.value):
                    # Rare, because nobody learns such an id here: so it may cost more.
                    page = await self._engine.find(
                        replace(wanted, queue=tally.value), limit=limits.PAGE_MAX
                    )
                    others.update(job.id for job in page.jobs)
        return frozenset(others)

    async def unwelcome(self, jobs: Sequence[NewJob]) -> dict[int, Receipt]:
        """The receipts of jobs that may not come in, by their places."""
        refused: dict[int, Receipt] = {}
        if not self._commands:
            for at, job in enumerate(jobs):
                if job.task in TASKS:
                    error = Forbidden(command_text(f"job {job.id[:128]}"))
                    refused[at] = admission.refused(job.id, error)
        if not self._prefix:
            return refused
        batch = {job.id for job in jobs}
        others = await self.others([id_ for job in jobs for id_ in job.after if id_ not in batch])
        for at, job in enumerate(jobs):
            strange = next((id_ for id_ in job.after if id_ in others), None)
            if not self._caller.owns(job.queue):
                refused[at] = admission.refused(job.id, Forbidden(self._outside(job.queue)))
            elif strange is not None:
                refused[at] = admission.refused(job.id, admission.unknown_parent(job.id, strange))
        return refused

    async def unsettled(self, settlements: Sequence[Settlement]) -> dict[int, Outcome]:
        """The outcomes that are known without asking the engine, by their places."""
        known: dict[int, Outcome] = {}
        for at, each in enumerate(settlements):
            verdict = each.verdict
            if isinstance(verdict, Complete):
                if verdict.then and await self.unwelcome(verdict.then):
                    known[at] = Outcome.REFUSED
            elif isinstance(verdict, Forward) and not self._caller.owns(verdict.queue):
                known[at] = Outcome.REFUSED
        if self._prefix:
            others = await self.others([each.lease.id for each in settlements])
            for at, each in enumerate(settlements):
                if each.lease.id in others:
                    known[at] = Outcome.LOST
        return known

    async def parts(self, wanted: JobFilter, amendment: Amendment) -> Sequence[JobFilter]:
        """The same jobs by filters that name a queue where there is a prefix, and a task where
        commands must not be edited: so the engine compares them when it writes."""
        parts: Sequence[JobFilter] = [wanted]
        if self._prefix and wanted.queue is None:
            if wanted.ids is None:
                raise Forbidden(f"name a queue within {self._prefix}…")
            queues = await self._values(wanted, amendment, "queue")
            parts = [replace(wanted, queue=each) for each in queues if self._caller.owns(each)]
        if self._commands or not isinstance(amendment, Edit):
            return parts
        if wanted.task is not None:
            if runs_commands(wanted.task):
                refuse_commands(self._caller, f"editing jobs of the task {wanted.task}")
            return parts
        found = []
        for part in parts:
            tasks = await self._values(part, amendment, "task")
            if any(map(runs_commands, tasks)):
                refuse_commands(self._caller, "some of these jobs run commands: name another task")
            found += [replace(part, task=each) for each in tasks]
        return found

    async def _values(self, wanted: JobFilter, amendment: Amendment, by: TallyBy) -> list[str]:
        states = amendable(amendment, wanted)
        if not states:
            return []
        found = await self._engine.tally(replace(wanted, states=states), by, limit=limits.PAGE_MAX)
        return [tally.value for tally in found if tally.value is not None]

    def _outside(self, queue: str) -> str:
        return f"queue {queue[:80]!r} is not within {self._prefix}…"


def is_modest(queue: Queue, instead_of: Known) -> bool:
    """A queue made as it is by default, or only with other limits of tasks, guarded by what was
    read: what those need who do not operate."""
    base = Queue(name=queue.name) if instead_of is None else instead_of
    return isinstance(base, Queue) and _without_tasks(queue) == _without_tasks(base)


def _without_tasks(queue: Queue) -> Queue:
    """With the limits of the whole queue alone, which are an operator's."""
    return replace(queue, limits=tuple(each for each in queue.limits if each.task is None))


def is_own_cancel(wanted: JobFilter, amendment: Amendment) -> bool:
    """A worker cancels the job that it runs, as it was when it was leased."""
    return isinstance(amendment, Cancel) and bool(wanted.ids) and wanted.version is not None
