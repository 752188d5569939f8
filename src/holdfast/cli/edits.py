"""`holdfast job edit`: what can be changed of a job that waits or is dead."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from holdfast.app import Holdfast
from holdfast.cli.acts import Ended, each_of
from holdfast.cli.filters import pairs
from holdfast.cli.jobs import Id, read
from holdfast.cli.output import COMMON, Common
from holdfast.cli.person import person
from holdfast.cli.running import running
from holdfast.core import codec
from holdfast.core.model import Job, JobFilter, State
from holdfast.core.verdict import Amendment, Edit, Move, Retime
from holdfast.durations import to_ms
from holdfast.errors import InvalidJob, UsageError

_ROUNDS_MAX = 20


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class Changes:
    """What can be changed of a job that waits or is dead."""

    payload: Annotated[str | None, Parameter(help="JSON.")] = None
    priority: Annotated[int | None, Parameter(help="-100 to 100, higher first.")] = None
    expires: Annotated[str | None, Parameter(help="Dead if not started so long from now.")] = None
    delay: Annotated[str | None, Parameter(help="Due so long from now, if it waits.")] = None
    queue: Annotated[str | None, Parameter(help="Move it to this queue.")] = None
    label: Annotated[
        list[str] | None, Parameter(help="Set a label, name=value; may be repeated.", negative=())
    ] = None
    header: Annotated[
        list[str] | None, Parameter(help="Set a header, name=value; may be repeated.", negative=())
    ] = None

    def edit(self, job: Job, by: str) -> Edit | None:
        labels, headers = pairs("label", self.label), pairs("header", self.header)
        edit = Edit(
            by=by,
            payload=None if self.payload is None else _json(self.payload),
            content_type=None if self.payload is None else codec.JSON,
            priority=self.priority,
            expires_ms=None if self.expires is None else to_ms("expires", self.expires),
            labels=None if labels is None else {**job.labels, **labels},
            headers=None if headers is None else {**job.headers, **headers},
        )
        return None if edit == Edit(by=by) else edit


_CHANGES = Changes()


async def edit(id: Id, /, *, changes: Changes = _CHANGES, common: Common = COMMON) -> int:
    """Change a job that waits or is dead."""
    if changes == _CHANGES:
        raise UsageError("nothing to change: give --payload, --priority, --expires, --label, …")
    by = person()
    ended = Ended()
    more: list[tuple[Amendment, tuple[State, ...]]] = []
    if changes.delay is not None:
        delay_ms = to_ms("delay", changes.delay, UsageError)
        more.append((Retime(delay_ms=delay_ms, by=by), (State.WAITING,)))
    if changes.queue is not None:
        more.append((Move(queue=changes.queue, by=by), (State.WAITING, State.DEAD)))
    async with running(common) as app:
        await _edit(app, id, changes, ended)
        for act, states in more:
            if not ended.refused:
                ended = await each_of(app, [id], act, states)
    return ended.tell("edited", common)


async def _edit(app: Holdfast, id: str, changes: Changes, ended: Ended) -> None:
    """Labels are added to those that are there: read, changed, and written if still so."""
    job, _ = await read(app, id)
    for _ in range(_ROUNDS_MAX):
        edit_ = changes.edit(job, person())
        if edit_ is None:
            return
        if job.state not in (State.WAITING, State.DEAD):
            ended.refused[id] = f"it is {job.state}, and must be waiting or dead"
            return
        if await app.amend(JobFilter(ids=(id,), version=job.version), edit_, limit=1):
            ended.changed.append(id)
            return
        job, _ = await read(app, id)
    ended.refused[id] = "it is being changed by others all the time: try again"


def _json(text: str) -> bytes:
    try:
        return codec.encode(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise InvalidJob(f"the payload is not JSON: {error}") from None
