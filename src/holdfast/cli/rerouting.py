"""`holdfast job reroute`: what waits for one worker goes to another."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from holdfast.cli.acts import Ended, Ids
from holdfast.cli.exits import NotFound
from holdfast.cli.output import COMMON, Common
from holdfast.cli.pages import program
from holdfast.cli.person import person
from holdfast.cli.running import running
from holdfast.durations import to_ms
from holdfast.errors import UnknownQueue, UsageError
from holdfast.filters import pairs
from holdfast.upkeep.rerouting import reroute as reroute_one


async def reroute(
    ids: Ids,
    /,
    *,
    to: Annotated[str | None, Parameter(help="The worker that shall have them.")] = None,
    label: Annotated[
        list[str] | None,
        Parameter(help="Any worker with this label, NAME=VALUE; may be repeated.", negative=()),
    ] = None,
    expires: Annotated[
        str | None, Parameter(help="Dead if not started so long from now; as long as it had.")
    ] = None,
    common: Common = COMMON,
) -> int:
    """Give jobs that wait for one worker to another.

    Without --to it is the healthiest, then the least loaded one that knows the task and has the
    labels: those given here, else those that the job itself asks for.
    """
    if to is not None and label:
        raise UsageError("--to names the worker, --label lets one be chosen: give one of them")
    expires_ms = None if expires is None else to_ms("expires", expires, UsageError)
    labels = pairs("label", label)
    ended = Ended()
    async with running(common) as app:
        for id_ in dict.fromkeys(ids):
            if await app.get(id_) is None:
                ended.unknown.append(id_)
                continue
            try:
                name = await reroute_one(
                    app.engine, id_, to=to, labels=labels, expires_ms=expires_ms, by=person()
                )
            except UnknownQueue:
                raise NotFound(
                    f"no worker of the name {to!r:.80} was ever here: see {program()} worker list"
                ) from None
            except UsageError as error:
                ended.refused[id_] = str(error)
            else:
                ended.changed.append(id_)
                ended.notes[id_] = f"rerouted to {name}"
    return ended.tell("rerouted", common)
