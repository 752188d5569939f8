"""The loop that carries out acts on many jobs, step by step, and removes old ones.

The beginning of a step is saved in the act's record, so that of several amenders only one proceeds.
If that is killed, another repeats the step and counts from the jobs' timelines. No job is changed
twice.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

from msgspec.structs import replace

from holdfast.core import bounds
from holdfast.core.model import Record
from holdfast.engines.base import Engine
from holdfast.errors import ConfigError, NotFound, UnknownQueue
from holdfast.ops.audit import Audit, AuditEntry, with_reason
from holdfast.ops.jobs.act_steps import carry_out
from holdfast.ops.jobs.act_views import says
from holdfast.ops.jobs.acts import (
    ACT_KIND,
    ACTS,
    ActRecord,
    ActState,
    begin_step,
    end_step,
    read_step,
    remove_act,
    remove_job_lists,
    stopped,
)
from holdfast.ops.records import Stored
from holdfast.upkeep.record_steps import TAKEOVER_MS, RecordSteps

UNFINISHED_MS = 10 * bounds.MINUTE_MS
"""How long an act may take to be counted."""
COUNTED_MS = bounds.HOUR_MS
"""How long an act that was counted waits to be run."""
ENDED_MS = bounds.DAY_MS
"""How long an act that was done or stopped is kept."""

_RETENTION_MS = {
    ActState.COUNTING: UNFINISHED_MS,
    ActState.COUNTED: COUNTED_MS,
    ActState.STOPPED: ENDED_MS,
    ActState.DONE: ENDED_MS,
}


class Amender:
    """Takes one step of every act. `wall_ms` only stamps times that people read."""

    name = "amender"

    def __init__(
        self,
        engine: Engine,
        wall_ms: Callable[[], int],
        *,
        sleep_ms_max: int = bounds.SECOND_MS,
        boot_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.sleep_ms_max = sleep_ms_max
        self._engine = engine
        self._wall_ms = wall_ms
        self._audit = Audit(lambda: engine, wall_ms)
        self._steps = RecordSteps(engine, ACT_KIND, boot_ns=boot_ns)

    async def once(self) -> int | None:
        """One step of every act; the time to the next."""
        return await self._steps.round(self._step)

    async def _step(self, record: Record) -> int | None:
        act = ACTS.require(record)
        if act.pending and record.age_ms < TAKEOVER_MS:
            return TAKEOVER_MS - record.age_ms
        if act.pending or (act.state is ActState.RUNNING and act.left):
            return await self._carry_out(act, record.version)
        if act.state is ActState.RUNNING:
            return await self._save(_done(act, self._wall_ms()), record.version)
        if act.state.ended and not act.closed:
            return await self._close(act, record.version)
        if record.age_ms > _RETENTION_MS[act.state]:
            await remove_act(self._engine, act, record.version)
        return None

    async def _carry_out(self, act: ActRecord, version: int) -> int:
        """Begin the next step, change its jobs, and count them."""
        begun = begin_step(act, secrets.token_hex(4))
        before_ns = self._steps.now_ns()
        if not await ACTS.save(self._engine, act.id, begun, version):
            return 0
        self._steps.saved(act.id, version + 1, before_ns)
        try:
            jobs = await read_step(self._engine, begun)
            result = await carry_out(self._engine, begun, jobs)
        except (UnknownQueue, NotFound, ConfigError) as error:
            text = str(error)
            return await self._end(begun, version + 1, lambda now: self._given_up(now, text))
        if result is None:
            return TAKEOVER_MS
        return await self._end(
            begun, version + 1, lambda now: end_step(now, result, self._wall_ms())
        )

    def _given_up(self, act: ActRecord, text: str) -> ActRecord:
        """The act, stopped before the step that was begun. Some of its jobs may have changed."""
        open_ = replace(act, pending=0, holder="", repeated=True)
        return stopped(open_, text, self._wall_ms())

    async def _end(
        self, begun: ActRecord, version: int, end: Callable[[ActRecord], ActRecord]
    ) -> int:
        """Save the end of a step on top of the current record, which an operator may have stopped
        or run since it was begun; not if another amender repeats the step."""

        def change(act: ActRecord | None) -> ActRecord | None:
            return act if act is None or act.holder != begun.holder else end(act)

        known = Stored(ACTS.record(begun.id, begun, version), begun)
        await ACTS.update_stored(self._engine, begun.id, change, known=known)
        return 0

    async def _close(self, act: ActRecord, version: int) -> int:
        """Write the end of an act to the audit log, and remove the list of jobs that nobody needs
        any more. Repeating it writes nothing more."""
        entry = AuditEntry(
            at=act.ended_at or 0,
            who=act.by,
            what=f"act.{act.state}",
            on=with_reason(f"{act.id}: {says(act)}", act.plan.text),
            outcome="done",
            changed=act.done,
        )
        await self._audit.note_once(entry, act.id)
        if act.state is ActState.DONE:
            await remove_job_lists(self._engine, act)
        return await self._save(replace(act, closed=True), version)

    async def _save(self, act: ActRecord, version: int) -> int:
        await ACTS.save(self._engine, act.id, act, version)
        return 0


def _done(act: ActRecord, now: int) -> ActRecord:
    """An act without jobs, done."""
    return replace(act, state=ActState.DONE, ended_at=now)
