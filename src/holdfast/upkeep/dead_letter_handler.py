"""The loop that handles dead messages: those that a worker's queue at the broker gave up.

The ledger decides about each job, under its own clock and on the version that was read; a message
is acknowledged only after the ledger answered. So any number of handlers may run, a message may
come twice or late, and one that is lost costs nothing: the reaper ends the job.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from time import monotonic

from holdfast.core import bounds
from holdfast.core.dead_messages import (
    HANDLER,
    DeadOutcome,
    history_text,
    is_ours,
    judge_message,
    left_ms,
    rejected_id,
    why_rejected,
)
from holdfast.core.model import Job, JobFilter, State
from holdfast.engines.base import Engine
from holdfast.engines.broker import Broker, DeadMessage, JobMessage
from holdfast.errors import EngineUnavailable, HoldfastError, NotAccepting, UsageError
from holdfast.events import DeadMessagesHandled, Tell, ignore_event
from holdfast.ops.doctor import examine
from holdfast.ops.rejected import REJECTED_QUEUE, Rejection, keep_rejected
from holdfast.ops.settings import read_settings
from holdfast.ops.workers import end_expired

_log = logging.getLogger("holdfast.upkeep")

SETTING = "dead-letter-handler"
_SETTING_S = 10.0
_WAIT_MS = 500
"""A stop waits for a step in progress, so a step must be short."""
_IDLE_MS = 10
_CALM_MS = bounds.SECOND_MS
"""The pause after messages that all came before their time: an operator's policy at the broker may
give them up at once, again and again."""

_AS_REPEATED = {
    DeadOutcome.BURIED: DeadOutcome.FINISHED,
    DeadOutcome.REROUTED: DeadOutcome.MOVED,
}


class DeadLetterHandler:
    """Takes dead messages in batches. The setting `dead-letter-handler` switches it off and on; it
    is read every ten seconds, and before the next batch after a failure, so that an unreachable
    ledger keeps no messages going round."""

    name = HANDLER

    def __init__(
        self,
        engine: Engine,
        broker: Broker,
        *,
        tell: Tell = ignore_event,
        sleep_ms_max: int = 5 * bounds.SECOND_MS,
        batch: int = 100,
        wait_ms: int = _WAIT_MS,
        clock_s: Callable[[], float] = monotonic,
    ) -> None:
        self.sleep_ms_max = sleep_ms_max
        self._engine = engine
        self._broker = broker
        self._tell = tell
        self._batch = batch
        self._wait_ms = wait_ms
        self._clock_s = clock_s
        self._is_on = False
        self._checked_s = float("-inf")

    async def once(self) -> int | None:
        """One batch; the time to the next."""
        await self._check_setting()
        if not self._is_on:
            return None
        try:
            messages = await self._broker.take_dead(self._batch, self._wait_ms)
        except EngineUnavailable as error:
            # The broker itself reports that it is gone; the reaper works without it.
            _log.debug("the %s waits for the broker: %s", self.name, error)
            return None
        if not messages:
            return _IDLE_MS
        try:
            outcomes = await self._handle(messages)
        except Exception:
            self._checked_s = float("-inf")
            with suppress(HoldfastError):
                await self._broker.settle_dead((), messages)
            raise
        early = Counter(outcomes) == {DeadOutcome.REDELIVERED: len(messages)}
        return _CALM_MS if early else 0

    async def _check_setting(self) -> None:
        if self._clock_s() - self._checked_s < _SETTING_S:
            return
        is_on = (await read_settings(self._engine)).value_or_default(SETTING)
        if is_on != self._is_on and self._checked_s > float("-inf"):
            _log.info("the %s was switched %s", self.name, "on" if is_on else "off")
        self._is_on = is_on
        self._checked_s = self._clock_s()

    async def _handle(self, messages: Sequence[DeadMessage]) -> list[DeadOutcome]:
        """Handle one batch, and acknowledge what the ledger has answered."""
        batch = _Batch(messages)
        expired, known = await self._read(batch.ids())
        ended = batch.judge(expired, known)
        if ended:
            done = await end_expired(self._engine, ended, by=HANDLER, history=batch.histories())
            batch.settle(done.buried_ids, DeadOutcome.BURIED)
            batch.settle(done.rerouted_ids, DeadOutcome.REROUTED)
        refused = [
            why for message in batch.foreign if (why := await self._keep_rejected(batch, message))
        ]
        if ended or batch.early:
            now = (await examine(self._engine)).now
            delays_ms = batch.delays_ms(ended, now)
            self._broker.deliver(
                [
                    JobMessage(id=job.id, queue=job.queue, expires_ms=left_ms(job, now))
                    for job in batch.early
                ]
            )
        else:
            delays_ms = ()
        await self._broker.settle_dead(batch.done, batch.undecided())
        self._tell(DeadMessagesHandled(outcomes=batch.counts(), delays_ms=delays_ms))
        if refused:
            # Raised last, so that it does not hold up the others; the loop pauses before the next.
            raise NotAccepting(f"queue {REJECTED_QUEUE} refused a dead message: {refused[0]}")
        return batch.outcomes()

    async def _read(self, ids: Sequence[str]) -> tuple[dict[str, Job], dict[str, Job]]:
        """The jobs that wait past their expiry, as the ledger judges it, and the others. Mostly
        they are all of the first kind, and one call finds them."""
        if not ids:
            return {}, {}
        wanted = JobFilter(ids=tuple(ids), states=(State.WAITING,), expired=True)
        expired = await self._find(wanted)
        others = tuple(id_ for id_ in ids if id_ not in expired)
        return expired, await self._find(JobFilter(ids=others)) if others else {}

    async def _find(self, wanted: JobFilter) -> dict[str, Job]:
        found: dict[str, Job] = {}
        after: int | None = None
        while True:
            page = await self._engine.find(wanted, limit=bounds.PAGE_MAX, after=after)
            found |= {job.id: job for job in page.jobs}
            after = page.after
            if after is None:
                return found

    async def _keep_rejected(self, batch: _Batch, message: DeadMessage) -> str:
        """Store a message that is not ours as a dead letter; returns why it was refused, "" if it
        is stored."""
        rejection = Rejection(
            id=rejected_id(
                queue=message.queue,
                reason=message.reason,
                body=message.body,
                content_type=message.content_type,
                headers=message.headers,
                history=message.history,
            ),
            why=why_rejected(message.queue, message.reason),
            by=HANDLER,
            trace=history_text(message.history),
            body=message.body,
            content_type=message.content_type,
            headers=message.headers,
        )
        try:
            await keep_rejected(self._engine, [rejection])
        except UsageError as error:
            return str(error)
        batch.decide(message, DeadOutcome.REJECTED)
        return ""


class _Batch:
    """The messages of one batch, grouped by job, and what was decided about each. They are told
    apart as objects: tags of different connections may be equal."""

    def __init__(self, messages: Sequence[DeadMessage]) -> None:
        self._messages = messages
        self._by_id: dict[str, list[DeadMessage]] = defaultdict(list)
        self._decided: dict[int, DeadOutcome] = {}
        self._confirmed: set[int] = set()
        self.foreign: list[DeadMessage] = []
        self.early: list[Job] = []
        for message in messages:
            if message.id is not None and is_ours(message.id, message.queue):
                self._by_id[message.id].append(message)
            else:
                self.foreign.append(message)

    def ids(self) -> list[str]:
        return list(self._by_id)

    def judge(self, expired: dict[str, Job], known: dict[str, Job]) -> list[Job]:
        """Decide about every message that needs no change of its job, and return the jobs that
        must be ended."""
        ended: dict[str, Job] = {}
        early: dict[str, Job] = {}
        for id_, messages in self._by_id.items():
            job = expired.get(id_) or known.get(id_)
            for message in messages:
                if job is not None and message.queue in (job.queue, job.origin):
                    self._confirmed.add(id(message))
                outcome = judge_message(message.queue, job, is_expired=id_ in expired)
                if outcome is not None:
                    self.decide(message, outcome)
                if job is not None and outcome is None:
                    ended[id_] = job
                elif job is not None and outcome is DeadOutcome.REDELIVERED:
                    early[id_] = job
        self.early = list(early.values())
        return list(ended.values())

    def decide(self, message: DeadMessage, outcome: DeadOutcome) -> None:
        self._decided[id(message)] = outcome

    def settle(self, ids: Iterable[str], outcome: DeadOutcome) -> None:
        """The jobs with these ids were ended; further messages about them came too late."""
        for id_ in ids:
            open_ = [each for each in self._by_id[id_] if id(each) not in self._decided]
            for at, message in enumerate(open_):
                self.decide(message, _AS_REPEATED[outcome] if at else outcome)

    def histories(self) -> dict[str, str]:
        """The history of each message at the broker, by job."""
        return {id_: history_text(some[0].history) for id_, some in self._by_id.items()}

    def delays_ms(self, ended: Sequence[Job], now: int) -> tuple[int, ...]:
        """The time from the expiry of each job that was ended here to its end."""
        own = {
            message.id
            for message in self._messages
            if self._decided.get(id(message)) in _AS_REPEATED
        }
        return tuple(
            max(0, now - job.expires_at)
            for job in ended
            if job.id in own and job.expires_at is not None
        )

    @property
    def done(self) -> list[DeadMessage]:
        return [each for each in self._messages if id(each) in self._decided]

    def undecided(self) -> list[DeadMessage]:
        """Messages whose job was changed by another process at the same moment, and those that
        could not be kept: they come again."""
        return [each for each in self._messages if id(each) not in self._decided]

    def outcomes(self) -> list[DeadOutcome]:
        return list(self._decided.values())

    def counts(self) -> dict[str, dict[str, int]]:
        """How many messages had each outcome, by queue."""
        found: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        for message in self._messages:
            outcome = self._decided.get(id(message))
            if outcome is not None:
                queue = message.queue if id(message) in self._confirmed else ""
                found[queue][outcome] += 1
        return {queue: dict(some) for queue, some in found.items()}
