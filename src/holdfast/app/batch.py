"""Batches: jobs that belong together, and one more that starts when all of them have ended.

A batch is represented by that last job, which depends on the others; its id is the batch's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from holdfast.core import bounds, checks
from holdfast.core.model import AfterOn, Job, JobFilter, NewJob, Receipt, State, Status
from holdfast.engines.base import Engine
from holdfast.errors import CircularJobs, InvalidJob, JobGone, UnknownParent, UsageError
from holdfast.notation.options import checked_all

if TYPE_CHECKING:
    from holdfast.app.application import Holdfast


class BatchProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of a batch's jobs by how they ended. Jobs deleted after their retention count as
    done."""

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
    """An enqueued batch, identified by the job that completes it."""

    def __init__(self, app: Holdfast, id: str) -> None:
        self._app = app
        self.id = id

    def __repr__(self) -> str:
        return f"<Batch {self.id}>"

    async def job(self) -> Job:
        """The job that completes it."""
        job = await self._app.get(self.id)
        if job is None:
            raise JobGone(f"unknown batch {self.id}: its last job does not exist or was deleted")
        return job

    async def progress(self) -> BatchProgress:
        """The number of its jobs by how they ended."""
        return await progress_of(self._app.engine, await self.job())


async def enqueue_batch(
    app: Holdfast, jobs: Iterable[NewJob], then: NewJob, after_on: AfterOn
) -> Batch:
    """Enqueue the jobs, 1,000 at a time, then the one that depends on them. If the caller is
    killed, repeating the call with the same ids adds the missing jobs.
    """
    given = joined(jobs, then, after_on)
    receipts = await app.enqueue_many(given)
    if (last := last_again(given, receipts)) is not None:
        receipts[-1:] = await app.enqueue_many([last])
    return Batch(app, id_of(receipts))


def joined(jobs: Iterable[NewJob], then: NewJob, after_on: AfterOn) -> list[NewJob]:
    """The jobs, followed by the one that depends on all of them."""
    given = checked_all("job", jobs, NewJob, InvalidJob)
    if not 1 <= len(given) <= bounds.PARENTS_MAX:
        raise UsageError(f"a batch has 1 to {bounds.PARENTS_MAX} jobs, not {len(given)}")
    if then.after:
        raise InvalidJob(f"job {then.id} has `after` set: leave it out, the batch sets it")
    ids = tuple(dict.fromkeys(new.id for new in given))
    if then.id in ids:
        raise CircularJobs(
            f"job {then.id} would wait for itself: give the job that completes the batch another id"
        )
    last = replace(then, after=ids, after_on=after_on)
    checks.check_job(last)
    return [*given, last]


def last_again(given: Sequence[NewJob], receipts: Sequence[Receipt]) -> NewJob | None:
    """The last job, depending on the jobs that are stored: where a key was held by an earlier job,
    on that one. None if it was accepted, or if this changes nothing."""
    ids = tuple(dict.fromkeys(each.id for each in receipts[:-1]))
    if receipts[-1].code != UnknownParent.code or ids == given[-1].after:
        return None
    return replace(given[-1], after=ids)


def id_of(receipts: Sequence[Receipt]) -> str:
    """The id of the batch; raises the error of the first job that was refused."""
    refused = [each for each in receipts if each.status is Status.REFUSED]
    if refused:
        text = f"{len(refused)} of {len(receipts)} jobs: {refused[0].text}"
        checks.accepted(replace(refused[0], text=text))
    return receipts[-1].id


async def progress_of(engine: Engine, last: Job) -> BatchProgress:
    """The progress of a batch, from the job that completes it as read by `get`."""
    ids = last.after
    counts = dict.fromkeys(State, 0)
    for at in range(0, len(ids), bounds.BATCH_MAX):
        wanted = JobFilter(ids=ids[at : at + bounds.BATCH_MAX])
        for tally in await engine.tally(wanted, "state", limit=bounds.PAGE_MAX):
            if tally.value is not None:
                counts[State(tally.value)] += tally.count
    gone = len(ids) - sum(counts.values())
    return BatchProgress(
        total=len(ids),
        done=counts[State.DONE] + gone,
        dead=counts[State.DEAD],
        cancelled=counts[State.CANCELLED],
    )
