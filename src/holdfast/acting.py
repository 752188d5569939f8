"""What a person does to a job that is named: one conditional write, and why it was not done.

Labels and headers are added to those that are there: read, changed, and written if still so.
"""

from __future__ import annotations

import msgspec

from holdfast.core import codec
from holdfast.core.model import Job, JobFilter, State
from holdfast.core.verdict import Amendment, Edit, Move, Retime
from holdfast.engines.base import Engine
from holdfast.errors import NotFound, UsageError, WrongState

FINISHED = tuple(state for state in State if state.finished)
EDITABLE = (State.WAITING, State.DEAD)

_ROUNDS_MAX = 20


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """What can be changed of a job that waits or is dead; None leaves it."""

    payload: bytes | None = None
    priority: int | None = None
    expires_ms: int | None = None
    delay_ms: int | None = None
    queue: str | None = None
    labels: dict[str, str] | None = None
    headers: dict[str, str] | None = None
    text: str = ""

    def edit(self, job: Job, by: str) -> Edit | None:
        """None when it is only about the time or the queue."""
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


async def act_on(engine: Engine, id: str, act: Amendment, states: tuple[State, ...]) -> None:
    """NotFound or WrongState: nothing was done."""
    for _ in range(_ROUNDS_MAX):
        if await engine.amend(JobFilter(ids=(id,), states=states), act, limit=1):
            return
        job = await read(engine, id)
        if job.state not in states:
            raise wrong_state(job, states)
    raise WrongState("it is being changed by others all the time: try again")


async def edit_job(engine: Engine, id: str, changes: Changes, by: str) -> None:
    """All of it, in up to three writes: what it says, when it is due, where it is."""
    if changes == Changes(text=changes.text):
        raise UsageError("nothing to change: give payload, priority, expires, labels, …")
    await _edit(engine, id, changes, by)
    if changes.delay_ms is not None:
        await act_on(engine, id, Retime(delay_ms=changes.delay_ms, by=by), (State.WAITING,))
    if changes.queue is not None:
        await act_on(engine, id, Move(queue=changes.queue, by=by, text=changes.text), EDITABLE)


async def read(engine: Engine, id: str) -> Job:
    """The whole job."""
    job = await engine.get(id)
    if job is None:
        raise NotFound(f"no job has the id {id[:128]!r}")
    return job


def wrong_state(job: Job, states: tuple[State, ...]) -> WrongState:
    able = " or ".join(str(state) for state in states)
    return WrongState(f"it is {job.state}, and must be {able}")


async def _edit(engine: Engine, id: str, changes: Changes, by: str) -> None:
    job = await read(engine, id)
    for _ in range(_ROUNDS_MAX):
        edit = changes.edit(job, by)
        if edit is None:
            return
        if job.state not in EDITABLE:
            raise wrong_state(job, EDITABLE)
        if await engine.amend(JobFilter(ids=(id,), version=job.version), edit, limit=1):
            return
        job = await read(engine, id)
    raise WrongState("it is being changed by others all the time: try again")
