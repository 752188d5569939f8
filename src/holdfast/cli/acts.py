"""`holdfast job cancel`, `retry`, `expedite`, `edit` and `delete`: acts on jobs that are named.

Each id is one conditional write of its own, so that it can be said of each what became of it.
"""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from holdfast.acting import FINISHED, act_on
from holdfast.app import Holdfast
from holdfast.cli.exits import Exit, NotFound
from holdfast.cli.output import COMMON, Common, print_json, say
from holdfast.cli.person import person
from holdfast.cli.running import running
from holdfast.core.model import State
from holdfast.core.text import printable
from holdfast.core.verdict import Amendment, Cancel, Delete, Expedite, Redrive
from holdfast.durations import to_ms
from holdfast.errors import UsageError, WrongState
from holdfast.worker.registry import Workers

Ids = Annotated[list[str], Parameter(help="The ids of the jobs.", negative=())]


async def cancel(
    ids: Ids,
    /,
    *,
    text: Annotated[str, Parameter(help="Why, for the timeline.")] = "",
    common: Common = COMMON,
) -> int:
    """Cancel jobs that wait, and ask those that run to stop."""
    act = Cancel(by=person(), text=text)
    async with running(common) as app:
        ended = await each_of(app, ids, act, (State.WAITING, State.LEASED))
        for id_ in ended.changed:
            job = await app.get(id_)
            if job is not None and job.state is State.LEASED and job.worker:
                ended.notes[id_] = "asked to stop"
                # Its worker hears of it at its next renewal: let that be now.
                await Workers(app.engine).nudge(job.worker)
    return ended.tell("cancelled", common)


async def retry(
    ids: Ids,
    /,
    *,
    delay: Annotated[str, Parameter(help="Not before so long from now.")] = "0s",
    common: Common = COMMON,
) -> int:
    """Run dead, cancelled or done jobs again, with their attempts at zero."""
    act = Redrive(by=person(), delay_ms=to_ms("delay", delay, UsageError))
    return await on_each(ids, act, FINISHED, done="retried", common=common)


async def expedite(ids: Ids, /, *, common: Common = COMMON) -> int:
    """Make jobs that wait due now, in front of all others."""
    act, states = Expedite(by=person()), (State.WAITING,)
    return await on_each(ids, act, states, done="expedited", common=common)


async def delete(
    ids: Ids,
    /,
    *,
    force: Annotated[
        bool, Parameter(help="Also those that run; their leases are lost.", negative=())
    ] = False,
    common: Common = COMMON,
) -> int:
    """Remove jobs for good."""
    states = tuple(state for state in State if force or state is not State.LEASED)
    return await on_each(ids, Delete(force=force), states, done="deleted", common=common)


async def on_each(
    ids: list[str], act: Amendment, states: tuple[State, ...], *, done: str, common: Common
) -> int:
    """Act on jobs in these states, and say what became of each; the exit code."""
    async with running(common) as app:
        ended = await each_of(app, ids, act, states)
    return ended.tell(done, common)


class Ended:
    """What became of each id."""

    def __init__(self) -> None:
        self.changed: list[str] = []
        self.unknown: list[str] = []
        self.refused: dict[str, str] = {}
        self.notes: dict[str, str] = {}

    def tell(self, done: str, common: Common) -> int:
        """Print it; the exit code."""
        if common.json:
            print_json({done: self.changed, "unknown": self.unknown, "refused": self.refused})
        else:
            for id_ in self.changed:
                print(f"{printable(id_, one_line=True)} {self.notes.get(id_, done)}")
        for id_, why in self.refused.items():
            say(f"{id_} was not {done}: {why}")
        if self.unknown:
            raise NotFound(f"no job has the id {', '.join(self.unknown)[:1000]}")
        return Exit.FAILED if self.refused else Exit.DONE


async def each_of(
    app: Holdfast, ids: list[str], act: Amendment, states: tuple[State, ...]
) -> Ended:
    ended = Ended()
    for id_ in dict.fromkeys(ids):
        try:
            await act_on(app.engine, id_, act, states)
        except NotFound:
            ended.unknown.append(id_)
        except WrongState as error:
            ended.refused[id_] = str(error)
        else:
            ended.changed.append(id_)
    return ended
