"""Runs the gates of a store whose brokers this process was given: each in a loop of its own.

Any number of processes may run the same gate. The runner reads the gates every two seconds, starts
and stops their loops, and writes how each of them does.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from time import monotonic
from typing import Final, NamedTuple

from holdfast.core import bounds
from holdfast.core.checks import clean_text
from holdfast.engines.base import Engine
from holdfast.engines.broker import BrokerLink
from holdfast.engines.registry import open_link
from holdfast.errors import HoldfastError
from holdfast.events import GateChanged, GateMoved, Tell, ignore_event
from holdfast.gates.inlet import Inlet
from holdfast.gates.link import LinkFailed, linked
from holdfast.gates.outlet import Outlet
from holdfast.ops.gates import (
    ABSENT_MS,
    BEAT_MS,
    GATE_RUNS,
    Gate,
    GateRun,
    Gates,
    GateState,
    url_of,
)
from holdfast.ops.records import remove_records, scan
from holdfast.ops.service import run_service
from holdfast.process import wall_ms

_log = logging.getLogger("holdfast.gates")

LOOK_MS: Final = 2 * bounds.SECOND_MS
STOP_S: Final = 5.0
"""How long a step of a gate may take to end before it is cancelled."""
_CLOSE_S = 2.0
_TEXT_MAX = 500

OpenLink = Callable[[str], BrokerLink]


class GateService:
    """The loop of one gate. The link is opened by its first step, and again after it failed."""

    sleep_ms_max = 5 * bounds.SECOND_MS

    def __init__(
        self, engine: Engine, gate: Gate, link_of: Callable[[], BrokerLink], tell: Tell
    ) -> None:
        self.name: str = f"gate {gate.name}"
        self.counts: Counter[str] = Counter()
        self._engine = engine
        self._gate = gate
        self._link_of = link_of
        self._tell = tell
        self._link: BrokerLink | None = None
        self._mover: Inlet | Outlet | None = None
        self._error = ""

    @property
    def state(self) -> tuple[GateState, str]:
        """The state of the gate in this process, and why."""
        if self._error:
            return GateState.FAILING, self._error
        held = "" if self._mover is None else self._mover.held
        return (GateState.HELD, held) if held else (GateState.RUNNING, "")

    async def once(self) -> int:
        """One step of the gate; the time to wait before the next."""
        try:
            pause_ms = await self._step()
        except LinkFailed as failed:
            await self.close()
            self._became_failing(failed.error)
            raise failed.error from None
        except HoldfastError as error:
            self._became_failing(error)
            raise
        except Exception as error:
            # A fault of a driver, most likely: begin anew.
            await self.close()
            self._became_failing(error)
            raise
        finally:
            self._count()
        if self._error:
            self._error = ""
            self._tell(GateChanged(gate=self._gate.name, is_failing=False))
        return pause_ms

    async def close(self) -> None:
        """Close the link: messages that are not acknowledged return to their source."""
        link, self._link, self._mover = self._link, None, None
        if link is not None:
            with suppress(Exception):
                async with asyncio.timeout(_CLOSE_S):
                    await link.close()

    async def _step(self) -> int:
        if self._mover is None:
            self._link = self._link_of()
            await linked(self._link.open())
            is_inlet = self._gate.direction == "inlet"
            self._mover = (Inlet if is_inlet else Outlet)(self._engine, self._gate, self._link)
        return await self._mover.once()

    def _became_failing(self, error: Exception) -> None:
        known = isinstance(error, HoldfastError)
        text = clean_text(str(error) if known else repr(error), _TEXT_MAX) or type(error).__name__
        if not self._error:
            self._tell(GateChanged(gate=self._gate.name, is_failing=True, text=text))
        self._error = text

    def _count(self) -> None:
        if self._mover is not None and self._mover.counts:
            counts, self._mover.counts = self._mover.counts, Counter()
            self.counts.update(counts)
            self._tell(GateMoved(gate=self._gate.name, counts=dict(counts)))


class _RunningGate(NamedTuple):
    gate: Gate
    service: GateService
    stop: asyncio.Event
    task: asyncio.Task[None]
    started_at: int


class GateRunner:
    """Runs the gates whose brokers have a URL in `urls`: all of them, or those in `names`."""

    name = "gates"
    sleep_ms_max = LOOK_MS

    def __init__(
        self,
        engine: Engine,
        urls: Mapping[str, str],
        *,
        names: Collection[str] | None = None,
        tell: Tell = ignore_event,
        open_link: OpenLink = open_link,
        wall_ms: Callable[[], int] = wall_ms,
    ) -> None:
        self._engine = engine
        self._urls = urls
        self._names = names
        self._tell = tell
        self._open_link = open_link
        self._wall_ms = wall_ms
        self._process = f"{socket.gethostname()[:80]}-{os.getpid()}-{secrets.token_hex(3)}"
        self._running: dict[str, _RunningGate] = {}
        self._written: dict[str, tuple[GateState, str, float]] = {}
        self._cleaned_at = float("-inf")

    async def run(self, stop: asyncio.Event) -> None:
        """Run gates until `stop` is set; steps in progress are finished, within a few seconds."""
        try:
            await run_service(self, stop, self._tell)
        finally:
            await self._stop(list(self._running))

    async def once(self) -> int:
        """Start, stop and restart gates as their records say, and write how they do."""
        gates = {gate.name: gate for gate in await Gates(self._engine).all() if self._runs(gate)}
        await self._stop(
            [
                name
                for name, running in self._running.items()
                if gates.get(name) != running.gate or running.task.done()
            ]
        )
        for name, gate in gates.items():
            if name not in self._running:
                self._start(gate)
        await self._write()
        return LOOK_MS

    def _runs(self, gate: Gate) -> bool:
        is_named = self._names is None or gate.name in self._names
        return is_named and not gate.paused and url_of(gate.broker, self._urls) is not None

    def _start(self, gate: Gate) -> None:
        def link_of() -> BrokerLink:
            return self._open_link(url_of(gate.broker, self._urls) or "")

        stop = asyncio.Event()
        service = GateService(self._engine, gate, link_of, self._tell)
        task = asyncio.create_task(run_service(service, stop, self._tell), name=service.name)
        self._running[gate.name] = _RunningGate(gate, service, stop, task, self._wall_ms())

    async def _stop(self, names: Collection[str]) -> None:
        """Stop the loops of these gates. A step that does not end in time is cancelled."""
        ended = [self._running.pop(name) for name in names]
        for each in ended:
            each.stop.set()
        if ended:
            _, slow = await asyncio.wait([each.task for each in ended], timeout=STOP_S)
            for task in slow:
                task.cancel()
            await asyncio.gather(*(each.task for each in ended), return_exceptions=True)
        for each in ended:
            await each.service.close()
            self._written.pop(each.gate.name, None)
            with suppress(HoldfastError):
                await GATE_RUNS.remove(self._engine, self._key(each.gate.name))

    async def _write(self) -> None:
        """Write the state of each gate when it changes, and every ten seconds."""
        for name, running in self._running.items():
            state, text = running.service.state
            known = self._written.get(name)
            if known and known[:2] == (state, text) and monotonic() - known[2] < BEAT_MS / 1000:
                continue
            run = GateRun(
                gate=name,
                queue=running.gate.queue,
                state=state,
                text=clean_text(text, _TEXT_MAX),
                host=socket.gethostname()[:200],
                pid=os.getpid(),
                started_at=running.started_at,
                counts=dict(running.service.counts),
            )
            await self._save(run)
            self._written[name] = (state, text, monotonic())
        if self._running and monotonic() - self._cleaned_at > ABSENT_MS / 1000:
            self._cleaned_at = monotonic()
            found = [each async for each in scan(self._engine, GATE_RUNS.name)]
            gone = [each for each in found if each.age_ms > 2 * ABSENT_MS]
            await remove_records(self._engine, gone)

    async def _save(self, run: GateRun) -> None:
        await GATE_RUNS.update(self._engine, self._key(run.gate), lambda _: run)

    def _key(self, gate: str) -> str:
        return f"{gate}/{self._process}"
