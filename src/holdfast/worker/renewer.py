"""Renews what is in hand, in one batch, at a third of each lease; tells what was lost.

It runs in the supervisor, where no handler can hold it up. A renewal also carries what the run
left behind so far, and brings back an operator's wish to cancel.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from holdfast.core import limits
from holdfast.core.model import Lease, Note, Renewal
from holdfast.engines.base import Engine
from holdfast.errors import EngineClosed, EngineError, OutcomeUnknown
from holdfast.worker.clock import boot_s
from holdfast.worker.hand import Hand, Held

_log = logging.getLogger("holdfast.worker")

_NOTES_S = 0.5
"""What a run leaves behind reaches the store at most so long after."""
_TICK_S_MIN, _TICK_S_MAX = 0.005, 0.25
_PAUSE_S = 0.25


class Renewer:
    """`lost` and `cancelled` are told of each job once, `renewed` of each answer."""

    def __init__(
        self,
        engine: Engine,
        hand: Hand,
        lost: Callable[[Held], None],
        cancelled: Callable[[Held], None],
        renewed: Callable[[], None] = lambda: None,
    ) -> None:
        self._engine = engine
        self._hand = hand
        self._lost = lost
        self._cancelled = cancelled
        self._renewed = renewed
        self._at_once = False

    def at_once(self) -> None:
        """Renew everything at the next tick: somebody has something to say."""
        self._at_once = True

    async def run(self) -> None:
        """Until cancelled; an engine out of reach is asked again and again."""
        while True:
            try:
                tick = await self._turn()
            except EngineClosed:
                raise
            except EngineError as error:
                _log.warning("leases could not be renewed: %s", error)
                tick = _PAUSE_S
            await asyncio.sleep(tick)

    async def _turn(self) -> float:
        now = boot_s()
        everything, self._at_once = self._at_once, False
        due: list[Held] = []
        shortest_ms = 10_000
        for held in self._hand.all():
            if held.lost:
                continue
            shortest_ms = min(shortest_ms, held.lease.lease_ms)
            noted = held.note is not None and held.verdict is None
            told = noted and now >= held.renewed_at + _NOTES_S
            if everything or told or now >= held.renew_at():
                due.append(held)
        try:
            for at in range(0, len(due), limits.BATCH_MAX):
                await self._renew(due[at : at + limits.BATCH_MAX])
        except EngineError:
            self._at_once = self._at_once or everything
            raise
        return min(max(shortest_ms / 12_000, _TICK_S_MIN), _TICK_S_MAX)

    async def _renew(self, due: list[Held]) -> None:
        asked = boot_s()
        notes = [None if held.verdict is not None else held.note for held in due]
        renewals = [
            Renewal(lease=held.lease, note=note) for held, note in zip(due, notes, strict=True)
        ]
        try:
            answers = dict(enumerate(await self._engine.renew(renewals)))
        except OutcomeUnknown as error:
            self._take(due, notes, error.known, asked)
            raise
        self._take(due, notes, answers, asked)

    def _take(
        self,
        due: list[Held],
        notes: list[Note | None],
        answers: Mapping[int, Lease | None],
        asked: float,
    ) -> None:
        for at, lease in answers.items():
            held, note = due[at], notes[at]
            if not self._hand.knows(held):
                continue
            if lease is None:
                # A verdict may still win where a renewal comes too late.
                if held.verdict is None:
                    self._hand.lose(held)
                    self._lost(held)
                continue
            held.lease = lease
            held.renewed_at = asked
            if note is not None and held.note is note:
                held.note = None
            if lease.cancel_requested and not held.cancel_told:
                held.cancel_told = True
                self._cancelled(held)
        self._renewed()
