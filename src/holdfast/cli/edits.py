"""`holdfast job edit`: what can be changed of a job that waits or is dead."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from holdfast import acting
from holdfast.cli.acts import Ended
from holdfast.cli.jobs import Id, read
from holdfast.cli.output import COMMON, Common
from holdfast.cli.person import person
from holdfast.cli.running import running
from holdfast.core import codec
from holdfast.durations import to_ms
from holdfast.errors import InvalidJob, UsageError, WrongState
from holdfast.filters import pairs


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class Edits:
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

    def changes(self) -> acting.Changes:
        return acting.Changes(
            payload=None if self.payload is None else _json(self.payload),
            priority=self.priority,
            expires_ms=None if self.expires is None else to_ms("expires", self.expires),
            delay_ms=None if self.delay is None else to_ms("delay", self.delay, UsageError),
            queue=self.queue,
            labels=pairs("label", self.label),
            headers=pairs("header", self.header),
        )


_EDITS = Edits()


async def edit(id: Id, /, *, edits: Edits = _EDITS, common: Common = COMMON) -> int:
    """Change a job that waits or is dead."""
    if edits == _EDITS:
        raise UsageError("nothing to change: give --payload, --priority, --expires, --label, …")
    wanted = edits.changes()
    ended = Ended()
    async with running(common) as app:
        await read(app, id)
        try:
            await acting.edit_job(app.engine, id, wanted, person())
            ended.changed.append(id)
        except WrongState as error:
            ended.refused[id] = str(error)
    return ended.tell("edited", common)


def _json(text: str) -> bytes:
    try:
        return codec.encode(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise InvalidJob(f"the payload is not JSON: {error}") from None
