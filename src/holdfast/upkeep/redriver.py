"""The loop that carries out redrives: it saves the next jobs, puts them back, and counts them.

Each save is on the version that was read, so of several redrivers only one proceeds. A redriver
that is killed leaves its pending jobs in the record; another finishes the step and counts from the
jobs' timelines. No job is put back twice, and no count is a guess.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from holdfast.core import bounds
from holdfast.core.model import Job, JobFilter, Record
from holdfast.core.verdict import Redrive
from holdfast.engines.base import Engine
from holdfast.events import Redrove, Tell, ignore_event
from holdfast.ops.dead_letters import PutBackResult, put_back, put_back_result, taken_jobs
from holdfast.ops.records import remove_records
from holdfast.ops.redrives import (
    BATCH,
    BATCH_KIND,
    BATCHES,
    REDRIVE_KIND,
    REDRIVES,
    RedriveBatch,
    RedriveRecord,
    RedriveState,
    TakenJob,
    batch_key,
    charge_rate,
    end_redrive,
    jobs_allowed,
    judge_canaries,
    next_take_ms,
    redrive_batches,
)
from holdfast.upkeep.record_steps import TAKEOVER_MS, RecordSteps

RETENTION_MS = 14 * bounds.DAY_MS
_FOLLOW_MS = bounds.DAY_MS
_FOLLOWED_AT_ONCE = 5


class Redriver:
    """Takes one step of every redrive. `wall_ms` only stamps times that people read."""

    name = "redriver"

    def __init__(
        self,
        engine: Engine,
        wall_ms: Callable[[], int],
        *,
        tell: Tell = ignore_event,
        sleep_ms_max: int = 2 * bounds.SECOND_MS,
        boot_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.sleep_ms_max = sleep_ms_max
        self._engine = engine
        self._wall_ms = wall_ms
        self._tell = tell
        self._steps = RecordSteps(engine, REDRIVE_KIND, boot_ns=boot_ns)
        self._follow_cursors: dict[str, tuple[str, int]] = {}
        """By redrive: the last batch that was followed, and the open jobs up to it."""
        self._followed_ns: dict[str, int] = {}

    async def once(self) -> int | None:
        """One step of every redrive; the time to the next."""
        next_ms = await self._steps.round(self._step)
        for known in (self._follow_cursors, self._followed_ns):
            for key in set(known).difference(self._steps.present):
                known.pop(key)
        return next_ms

    async def _step(self, record: Record) -> int | None:
        redrive = REDRIVES.require(record)
        read_ns = self._steps.now_ns()
        if redrive.pending:
            if record.age_ms < TAKEOVER_MS:
                return TAKEOVER_MS - record.age_ms
            return await self._finish(redrive, record, read_ns)
        if redrive.state is RedriveState.CANARY:
            return await self._watch(redrive, record)
        if redrive.state is RedriveState.RUNNING:
            return await self._take(redrive, record, read_ns)
        if not redrive.followed:
            return await self._follow_to_the_end(redrive, record)
        if record.age_ms > RETENTION_MS:
            await self._forget(redrive, record)
        return None

    async def _take(self, redrive: RedriveRecord, record: Record, read_ns: int) -> int | None:
        """Choose the next jobs, and save them as pending before any is put back."""
        if redrive.walked:
            return await self._end(redrive, record, RedriveState.FINISHED)
        most = jobs_allowed(redrive, record.age_ms)
        if most == 0:
            await self._follow_now_and_then(redrive)
            return max(1, next_take_ms(redrive) - record.age_ms)
        page = await self._engine.find(redrive.plan.wanted, limit=most, after=redrive.after)
        fitting = [job for job in page.jobs if job.redrives < redrive.plan.redrives_max]
        age_ms = record.age_ms + self._steps.since_ms(read_ns)
        chosen = replace(
            charge_rate(redrive, age_ms, len(fitting)),
            pending=taken_jobs(fitting),
            capped=redrive.capped + len(page.jobs) - len(fitting),
            after=page.after,
            walked=page.after is None,
        )
        if not await self._save(chosen, record.version):
            return 0
        saved = replace(record, version=record.version + 1)
        saved = replace(saved, age_ms=self._steps.age_ms(saved))
        return await self._finish(chosen, saved, self._steps.now_ns())

    async def _finish(self, redrive: RedriveRecord, record: Record, read_ns: int) -> int | None:
        """Put back the pending jobs, and count them."""
        retried, unfit = await self._put_back(redrive)
        number = await self._add_to_batch(redrive, retried)
        counted = replace(
            charge_rate(redrive, record.age_ms + self._steps.since_ms(read_ns)),
            pending=(),
            batch=number,
            retried=redrive.retried + len(retried),
            unfit=redrive.unfit + unfit,
            changed=redrive.changed + len(redrive.pending) - len(retried) - unfit,
        )
        out = counted.canaries and (counted.retried >= counted.canaries or counted.walked)
        if out and redrive.retried < redrive.canaries and not counted.state.ended:
            counted = replace(counted, state=RedriveState.CANARY)
        if not await self._save(counted, record.version):
            return 0
        if retried:
            self._tell(Redrove(redrive=redrive.id, retried=len(retried)))
        await self._follow_now_and_then(counted)
        return 0 if counted.state.ended else next_take_ms(counted)

    async def _put_back(self, redrive: RedriveRecord) -> PutBackResult:
        plan, pending = redrive.plan, redrive.pending
        act = Redrive(by=plan.by, text=redrive.mark, delay_ms=plan.delay_ms)
        done = await put_back(self._engine, pending, act, plan.patch, among=plan.wanted)
        if done == len(pending):
            return PutBackResult(pending)
        # Others put some of them back first, or a killed redriver left them.
        return await put_back_result(self._engine, pending, act, plan.patch)

    async def _add_to_batch(self, redrive: RedriveRecord, retried: Sequence[TakenJob]) -> int:
        """Record the jobs in the last batch; the number of the next. Repeating it adds nothing."""
        if not retried:
            return redrive.batch

        def add(batch: RedriveBatch | None) -> RedriveBatch:
            more = (batch or RedriveBatch()).plus(retried)
            return more if batch is None or batch != more else batch

        saved = await BATCHES.update(self._engine, batch_key(redrive.id, redrive.batch), add)
        assert saved is not None
        return redrive.batch + saved.is_full

    async def _watch(self, redrive: RedriveRecord, record: Record) -> int | None:
        """Judge the canaries. The record is not saved in the meantime: its age is the time the
        canaries have had.
        """
        taken: list[TakenJob] = []
        async for each in redrive_batches(self._engine, redrive.id):
            batch = BATCHES.decode(each)
            taken += () if batch is None else batch.taken
            if len(taken) >= BATCH:
                # All canaries are in the first batch.
                break
        jobs = await self._jobs(taken)
        wait_ms = redrive.plan.canary_wait_ms
        verdict = judge_canaries(taken, jobs, waited_ms=record.age_ms, wait_ms=wait_ms)
        await self._follow(redrive)
        if verdict.stop:
            return await self._end(redrive, record, RedriveState.STOPPED, verdict.stop)
        if verdict.go:
            going = replace(charge_rate(redrive, record.age_ms), state=RedriveState.RUNNING)
            await self._save(going, record.version)
            return 0
        return min(self.sleep_ms_max, bounds.SECOND_MS)

    async def _end(
        self, redrive: RedriveRecord, record: Record, state: RedriveState, text: str = ""
    ) -> int:
        await self._save(end_redrive(redrive, state, text, self._wall_ms()), record.version)
        return 0

    async def _follow_to_the_end(self, redrive: RedriveRecord, record: Record) -> int | None:
        """Count the outcomes of its jobs until all have ended, for a day at most."""
        open_ = await self._follow(redrive)
        if open_ == 0 or record.age_ms > _FOLLOW_MS:
            await self._save(replace(redrive, followed=True), record.version)
        return 0 if open_ is None else None

    async def _follow_now_and_then(self, redrive: RedriveRecord) -> None:
        """Follow at most once a second, since putting jobs back comes first."""
        if self._steps.since_ms(self._followed_ns.get(redrive.id, 0)) >= bounds.SECOND_MS:
            self._followed_ns[redrive.id] = self._steps.now_ns()
            await self._follow(redrive)

    async def _follow(self, redrive: RedriveRecord) -> int | None:
        """Update the outcomes of some batches, and of others the next time. After the last batch,
        how many jobs are open; None before."""
        after, open_ = self._follow_cursors.pop(redrive.id, (f"{redrive.id}/", 0))
        page = await self._engine.load(BATCH_KIND, after=after, limit=_FOLLOWED_AT_ONCE)
        own = [record for record in page if record.key.startswith(f"{redrive.id}/")]
        for record in own:
            batch = BATCHES.decode(record)
            if batch is None:
                continue
            now = batch.with_outcomes(await self._jobs(batch.open)) if batch.open else batch
            if now != batch:
                await BATCHES.save(self._engine, record.key, now, record.version)
            open_ += len(now.open)
        if len(own) < _FOLLOWED_AT_ONCE:
            return open_
        self._follow_cursors[redrive.id] = (own[-1].key, open_)
        return None

    async def _forget(self, redrive: RedriveRecord, record: Record) -> None:
        batches: list[Record] = []
        async for each in redrive_batches(self._engine, redrive.id):
            batches.append(replace(each, value=None))
        await remove_records(self._engine, [*batches, record])

    async def _jobs(self, taken: Sequence[TakenJob]) -> dict[str, Job]:
        found: dict[str, Job] = {}
        for at in range(0, len(taken), BATCH):
            ids = tuple(each.id for each in taken[at : at + BATCH])
            after: int | None = None
            while True:
                page = await self._engine.find(JobFilter(ids=ids), limit=BATCH, after=after)
                found |= {job.id: job for job in page.jobs}
                after = page.after
                if after is None:
                    break
        return found

    async def _save(self, redrive: RedriveRecord, version: int) -> bool:
        before_ns = self._steps.now_ns()
        if not await REDRIVES.save(self._engine, redrive.id, redrive, version):
            return False
        self._steps.saved(redrive.id, version + 1, before_ns)
        return True
