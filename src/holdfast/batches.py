"""Jobs that belong together: when the last of them has ended, another one starts.

A batch is nothing but that other job, which waits for them all; its id is the batch's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from holdfast.core import checks, limits
from holdfast.core.model import AfterOn, Job, JobFilter, NewJob, Receipt, State, Status
from holdfast.engines.base import Engine
from holdfast.errors import CircularJobs, InvalidJob, JobGone, UnknownParent, UsageError
from holdfast.options import checked_all

if TYPE_CHECKING:
    from holdfast.app import Holdfast


class BatchProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How many jobs there are, and how many ended how. Those that are gone, being past their
    retention, count as done."""

    total: int
    done: int
    dead: int
    cancelled: int

    @property
    def left(self) -> int:
        return self.total - self.done - self.dead - self.cancelled

    @property
    def fraction(self) -> float:
        return 1.0 if not self.total else 1.0 - self.left / self.total


class Batch:
    """A batch that was enqueued, by the id of the job that completes it."""

    def __init__(self, app: Holdfast, id: str) -> None:
        self._app = app
        self.id = id

    def __repr__(self) -> str:
        return f"<Batch {self.id}>"

    async def job(self) -> Job:
        """The job that completes it."""
        job = await self._app.get(self.id)
        if job is None:
            raise JobGone(f"batch {self.id} is not there: its last job was deleted, or never was")
        return job

    async def progress(self) -> BatchProgress:
        return await progress_of(self._app.engine, await self.job())


async def enqueue_batch(
    app: Holdfast, jobs: Iterable[NewJob], then: NewJob, after_on: AfterOn
) -> Batch:
    """The jobs first, in batches of 1,000, then the one that waits for them. Whoever is killed on
    the way repeats the call with the same ids and adds what is missing."""
    given = joined(jobs, then, after_on)
    receipts = await app.enqueue_many(given)
    if (last := last_again(given, receipts)) is not None:
        receipts[-1:] = await app.enqueue_many([last])
    return Batch(app, id_of(receipts))


def joined(jobs: Iterable[NewJob], then: NewJob, after_on: AfterOn) -> list[NewJob]:
    """The jobs, and last the one that waits for them all."""
    given = checked_all("job", jobs, NewJob, InvalidJob)
    if not 1 <= len(given) <= limits.PARENTS_MAX:
        raise UsageError(f"a batch has 1 to {limits.PARENTS_MAX} jobs, not {len(given)}")
    if then.after:
        raise InvalidJob(f"job {then.id} is after others already: a batch sets that itself")
    ids = tuple(dict.fromkeys(new.id for new in given))
    if then.id in ids:
        raise CircularJobs(
            f"job {then.id} would wait for itself: give the one that completes the batch another id"
        )
    last = replace(then, after=ids, after_on=after_on)
    checks.check_job(last)
    return [*given, last]


def last_again(given: Sequence[NewJob], receipts: Sequence[Receipt]) -> NewJob | None:
    """The one that waits, for those that are there: the key of a job may be held by another, which
    is then the one to wait for. None if it was taken as it was, or that would not help."""
    ids = tuple(dict.fromkeys(each.id for each in receipts[:-1]))
    if receipts[-1].code != UnknownParent.code or ids == given[-1].after:
        return None
    return replace(given[-1], after=ids)


def id_of(receipts: Sequence[Receipt]) -> str:
    """The batch's, unless some of its jobs were refused: then the error of the first."""
    refused = [each for each in receipts if each.status is Status.REFUSED]
    if refused:
        from holdfast.app import accepted

        accepted(
            replace(refused[0], text=f"{len(refused)} of {len(receipts)} jobs: {refused[0].text}")
        )
    return receipts[-1].id


async def progress_of(engine: Engine, last: Job) -> BatchProgress:
    """By the job that completes it, as `get` read it."""
    ids = last.after
    counts = dict.fromkeys(State, 0)
    for at in range(0, len(ids), limits.BATCH_MAX):
        wanted = JobFilter(ids=ids[at : at + limits.BATCH_MAX])
        for tally in await engine.tally(wanted, "state", limit=limits.PAGE_MAX):
            if tally.value is not None:
                counts[State(tally.value)] += tally.count
    gone = len(ids) - sum(counts.values())
    return BatchProgress(
        total=len(ids),
        done=counts[State.DONE] + gone,
        dead=counts[State.DEAD],
        cancelled=counts[State.CANCELLED],
    )
