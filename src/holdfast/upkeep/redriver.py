"""Redrives, step by step: what is next is saved, then put back, then counted.

Each save is on the version that was read, so that of several redrivers one goes on. One that is
killed between two of these leaves the record with what it was about to do; another finishes that,
and counts from the jobs' own timelines: no job is put back twice, and no count is a guess.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from holdfast.core import limits
from holdfast.core.model import Job, JobFilter, Record
from holdfast.core.verdict import Redrive
from holdfast.engines.base import Engine, Saved
from holdfast.errors import UsageError
from holdfast.events import Redrove, Tell, tell_nobody
from holdfast.upkeep import redrive as sums
from holdfast.upkeep.paging import records
from holdfast.upkeep.redrive import BATCH, Batch, RedriveRecord, RedriveState, Taken
from holdfast.upkeep.redrives import (
    BATCH_KIND,
    RECORD_KIND,
    batch_key,
    batches,
    decode,
    decode_batch,
    encode,
    encode_batch,
    ended,
)
from holdfast.upkeep.redriving import Fates, fates, put_back, taken_of

_log = logging.getLogger("holdfast.upkeep")

PATIENCE_MS = 5 * limits.SECOND_MS
"""What another redriver is about to do is left to it for so long."""

RETENTION_MS = 14 * limits.DAY_MS
_FOLLOW_MS = limits.DAY_MS
_FOLLOWED_AT_ONCE = 5


class Redriver:
    """`wall_ms` is this machine's wall clock, for people to read; nothing is decided by it."""

    name = "redriver"

    def __init__(
        self,
        engine: Engine,
        wall_ms: Callable[[], int],
        *,
        tell: Tell = tell_nobody,
        net_ms: int = 2 * limits.SECOND_MS,
        boot_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.net_ms = net_ms
        self._engine = engine
        self._wall_ms = wall_ms
        self._tell = tell
        self._boot_ns = boot_ns
        self._rounds: dict[str, tuple[str, int]] = {}
        self._sights: dict[str, tuple[int, int, int]] = {}
        self._looks: dict[str, int] = {}

    async def once(self) -> int | None:
        """One step of every redrive; the time to the next."""
        ahead: list[int] = []
        there: set[str] = set()
        async for record in records(self._engine, RECORD_KIND):
            there.add(record.key)
            try:
                next_ms = await self._step(replace(record, age_ms=self._age_ms(record)))
            except UsageError as error:
                # One that cannot be read, or done, here must not hold up the others.
                _log.warning("redrive %s is passed over: %s", record.key, error)
                continue
            if next_ms is not None:
                ahead.append(next_ms)
        for known in (self._rounds, self._sights, self._looks):
            for key in set(known).difference(there):
                known.pop(key)
        return min(ahead, default=None)

    async def _step(self, record: Record) -> int | None:
        redrive = decode(record)
        read_ns = self._boot_ns()
        if redrive.pending:
            if record.age_ms < PATIENCE_MS:
                return PATIENCE_MS - record.age_ms
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
        """Choose what is next and save that before anything is done."""
        if redrive.walked:
            return await self._end(redrive, record, RedriveState.FINISHED)
        most = sums.ration(redrive, record.age_ms)
        if most == 0:
            await self._follow_now_and_then(redrive)
            return max(1, sums.next_ms(redrive) - record.age_ms)
        page = await self._engine.find(redrive.plan.wanted, limit=most, after=redrive.after)
        fitting = [job for job in page.jobs if job.redrives < redrive.plan.redrives_max]
        age_ms = record.age_ms + self._since_ms(read_ns)
        chosen = replace(
            sums.spent(redrive, age_ms, len(fitting)),
            pending=taken_of(fitting),
            capped=redrive.capped + len(page.jobs) - len(fitting),
            after=page.after,
            walked=page.after is None,
        )
        if not await self._save(chosen, record.version):
            return 0
        saved = replace(record, version=record.version + 1)
        saved = replace(saved, age_ms=self._age_ms(saved))
        return await self._finish(chosen, saved, self._boot_ns())

    async def _finish(self, redrive: RedriveRecord, record: Record, read_ns: int) -> int | None:
        """Put back what is pending, and count it."""
        retried, unfit = await self._put_back(redrive)
        number = await self._keep(redrive, retried)
        counted = replace(
            sums.spent(redrive, record.age_ms + self._since_ms(read_ns)),
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
        return 0 if counted.state.ended else sums.next_ms(counted)

    async def _put_back(self, redrive: RedriveRecord) -> Fates:
        plan, pending = redrive.plan, redrive.pending
        act = Redrive(by=plan.by, text=redrive.mark, delay_ms=plan.delay_ms)
        done = await put_back(self._engine, pending, act, plan.patch, among=plan.wanted)
        if done == len(pending):
            return Fates(pending)
        # Others were faster with some, or this is what a killed redriver left.
        return await fates(self._engine, pending, act, plan.patch)

    async def _keep(self, redrive: RedriveRecord, retried: Sequence[Taken]) -> int:
        """Note them down in the last batch; the number of the next. Repeating it adds nothing."""
        key = batch_key(redrive.id, redrive.batch)
        while retried:
            record = await self._batch(key)
            batch = Batch() if record is None else decode_batch(record)
            more = batch.plus(retried)
            version = 0 if record is None else record.version
            if more == batch or await self._save_batch(more, key, version):
                return redrive.batch + more.is_full
        return redrive.batch

    async def _watch(self, redrive: RedriveRecord, record: Record) -> int | None:
        """The canaries. The record is not saved meanwhile: its age is how long they have had."""
        taken: list[Taken] = []
        async for each in batches(self._engine, redrive.id):
            taken += decode_batch(each).taken
        jobs = await self._jobs(taken)
        wait_ms = redrive.plan.canary_wait_ms
        omen = sums.omen(taken, jobs, waited_ms=record.age_ms, wait_ms=wait_ms)
        await self._follow(redrive)
        if omen.stop:
            return await self._end(redrive, record, RedriveState.STOPPED, omen.stop)
        if omen.go:
            going = replace(sums.spent(redrive, record.age_ms), state=RedriveState.RUNNING)
            await self._save(going, record.version)
            return 0
        return min(self.net_ms, limits.SECOND_MS)

    async def _end(
        self, redrive: RedriveRecord, record: Record, state: RedriveState, text: str = ""
    ) -> int:
        await self._save(ended(redrive, state, text, self._wall_ms()), record.version)
        return 0

    async def _follow_to_the_end(self, redrive: RedriveRecord, record: Record) -> int | None:
        """What becomes of its jobs is counted until all have ended, for a day at most."""
        open_ = await self._follow(redrive)
        if open_ == 0 or record.age_ms > _FOLLOW_MS:
            await self._save(replace(redrive, followed=True), record.version)
        return 0 if open_ is None else None

    async def _follow_now_and_then(self, redrive: RedriveRecord) -> None:
        """While there is more to put back, that comes first."""
        if self._since_ms(self._looks.get(redrive.id, 0)) >= limits.SECOND_MS:
            self._looks[redrive.id] = self._boot_ns()
            await self._follow(redrive)

    async def _follow(self, redrive: RedriveRecord) -> int | None:
        """Look at some batches, at others the next time. At the end of a round, how many of its
        jobs are open."""
        after, open_ = self._rounds.pop(redrive.id, (f"{redrive.id}/", 0))
        page = await self._engine.load(BATCH_KIND, after=after, limit=_FOLLOWED_AT_ONCE)
        own = [record for record in page if record.key.startswith(f"{redrive.id}/")]
        for record in own:
            batch = decode_batch(record)
            now = batch.seen(await self._jobs(batch.open)) if batch.open else batch
            if now != batch:
                await self._save_batch(now, record.key, record.version)
            open_ += len(now.open)
        if len(own) < _FOLLOWED_AT_ONCE:
            return open_
        self._rounds[redrive.id] = (own[-1].key, open_)
        return None

    async def _forget(self, redrive: RedriveRecord, record: Record) -> None:
        gone = [replace(each, value=None) async for each in batches(self._engine, redrive.id)]
        for at in range(0, len(gone), limits.BATCH_MAX):
            await self._engine.save(gone[at : at + limits.BATCH_MAX])
        await self._engine.save([replace(record, value=None)])

    async def _jobs(self, taken: Sequence[Taken]) -> dict[str, Job]:
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

    async def _batch(self, key: str) -> Record | None:
        # Everything but its last character sorts before a key, and little lies between.
        found = await self._engine.load(BATCH_KIND, after=key[:-1], limit=20)
        return next((each for each in found if each.key == key), None)

    async def _save(self, redrive: RedriveRecord, version: int) -> bool:
        before_ns = self._boot_ns()
        if (await self._engine.save([encode(redrive, version)]))[0] is Saved.STALE:
            return False
        self._sights[redrive.id] = (version + 1, before_ns, 0)
        return True

    async def _save_batch(self, batch: Batch, key: str, version: int) -> bool:
        record = encode_batch(batch, key, version)
        return (await self._engine.save([record]))[0] is Saved.SAVED

    def _age_ms(self, record: Record) -> int:
        """The engine's wall clock may be set: it is asked once for each version of the record, and
        from then on this process counts by its own clock, which cannot be."""
        version, first_ns, age_ms = self._sights.get(record.key, (0, 0, 0))
        if version == record.version:
            return age_ms + self._since_ms(first_ns)
        self._sights[record.key] = (record.version, self._boot_ns(), record.age_ms)
        return record.age_ms

    def _since_ms(self, read_ns: int) -> int:
        return max(0, self._boot_ns() - read_ns) // 1_000_000
