"""Change one job by its id: each step is one conditional write, or an error with the reason.

New labels and headers are merged into the current ones: read, changed, and written only if the job
is still at the version that was read.
"""

from __future__ import annotations

import msgspec

from holdfast.core import codec
from holdfast.core.model import Job, JobFilter, State
from holdfast.core.verdict import Amendment, Cancel, Edit, Move, Retime
from holdfast.engines.base import Engine
from holdfast.errors import UsageError, WrongState
from holdfast.ops.jobs.views import require_job
from holdfast.ops.workers import Workers

FINISHED = tuple(state for state in State if state.finished)
EDITABLE = (State.WAITING, State.DEAD)
CANCELLABLE = (State.WAITING, State.LEASED)

_TRIES_MAX = 20


class JobChanges(msgspec.Struct, frozen=True, kw_only=True):
    """New values for a waiting or dead job; None leaves a field as it is."""

    payload: bytes | None = None
    priority: int | None = None
    expires_ms: int | None = None
    delay_ms: int | None = None
    queue: str | None = None
    labels: dict[str, str] | None = None
    headers: dict[str, str] | None = None
    text: str = ""

    def edit(self, job: Job, by: str) -> Edit | None:
        """The edit of the job's own fields; None if only its due time or queue changes."""
        edit = Edit(
            by=by,
            payload=self.payload,
            content_type=None if self.payload is None else codec.JSON,
            priority=self.priority,
            expires_ms=self.expires_ms,
            labels=None if self.labels is None else {**job.labels, **self.labels},
            headers=None if self.headers is None else {**job.headers, **self.headers},
        )
        return None if edit == Edit(by=by) else msgspec.structs.replace(edit, text=self.text)


async def amend_job(engine: Engine, id: str, act: Amendment, states: tuple[State, ...]) -> None:
    """Amend a job that is in one of `states`. NotFound or WrongState: nothing was changed."""
    for _ in range(_TRIES_MAX):
        if await engine.amend(JobFilter(ids=(id,), states=states), act, limit=1):
            return
        job = await require_job(engine, id)
        if job.state not in states:
            raise wrong_state(job, states)
    raise _busy()


async def cancel_job(engine: Engine, id: str, act: Cancel, *, force: bool = False) -> Job:
    """Cancel a waiting job, or ask the worker of a running one to stop it; with `force`, to end its
    attempt at once. Asking again is harmless. Returns the job. Raises NotFound or WrongState.
    """
    for _ in range(_TRIES_MAX):
        changed = await engine.amend(JobFilter(ids=(id,), states=CANCELLABLE), act, limit=1)
        job = await require_job(engine, id)
        running = job.state is State.LEASED and job.cancel_requested
        if running and job.worker:
            # The worker learns of the request when it renews the lease: let it do so now.
            await Workers(engine).nudge(job.worker, force=id if force else None)
        if running or changed:
            return job
        if job.state not in CANCELLABLE:
            raise wrong_state(job, CANCELLABLE)
    raise _busy()


async def edit_job(engine: Engine, id: str, changes: JobChanges, by: str) -> None:
    """Apply all changes in up to three writes: the job's fields, its due time, its queue."""
    if changes == JobChanges(text=changes.text):
        raise UsageError("nothing to change: give payload, priority, expires, labels, …")
    await _edit(engine, id, changes, by)
    if changes.delay_ms is not None:
        await amend_job(engine, id, Retime(delay_ms=changes.delay_ms, by=by), (State.WAITING,))
    if changes.queue is not None:
        await amend_job(engine, id, Move(queue=changes.queue, by=by, text=changes.text), EDITABLE)


def wrong_state(job: Job, states: tuple[State, ...]) -> WrongState:
    """The error for an act that the job's state does not allow; callers name the job."""
    able = " or ".join(str(state) for state in states)
    return WrongState(f"it is {job.state}, and must be {able}")


async def _edit(engine: Engine, id: str, changes: JobChanges, by: str) -> None:
    job = await require_job(engine, id)
    for _ in range(_TRIES_MAX):
        edit = changes.edit(job, by)
        if edit is None:
            return
        if job.state not in EDITABLE:
            raise wrong_state(job, EDITABLE)
        if await engine.amend(JobFilter(ids=(id,), version=job.version), edit, limit=1):
            return
        job = await require_job(engine, id)
    raise _busy()


def _busy() -> WrongState:
    return WrongState("it is being changed by others: try again")
