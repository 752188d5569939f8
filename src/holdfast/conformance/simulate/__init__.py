"""Seeded simulation of producers, workers, reapers and operators over any engine.

`simulate(seed, make_engine)` runs one seed and checks its history; a failure names the seed and
the command that replays it. A run is single-threaded, on a virtual clock, with one engine call at
a time, and draws the next due event at random: the same plan on the same engine gives the same run.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec

from holdfast.conformance.checker import Findings, check
from holdfast.conformance.history import HistoryLine, Journal, dump
from holdfast.conformance.simulate import players
from holdfast.conformance.simulate.plan import FAULTS, FEATURES, LEASE_MS, SimulationPlan, draw
from holdfast.conformance.simulate.players import Effect, EngineRequest, PlayerState, Rest, Script
from holdfast.core.model import JobFilter, State
from holdfast.engines.base import Engine
from holdfast.errors import EngineError, EngineUnavailable, OutcomeUnknown
from holdfast.testing.clock import ManualClock

__all__ = [
    "FAULTS",
    "FEATURES",
    "MakeEngine",
    "SimulationPlan",
    "SimulationRun",
    "draw",
    "run",
    "simulate",
]

MakeEngine = Callable[[ManualClock], Engine]
UNFINISHED = (State.WAITING, State.LEASED)


class SimulationRun(msgspec.Struct, frozen=True):
    """The plan of a run, its history, and the findings of the checker."""

    plan: SimulationPlan
    findings: Findings
    lines: list[HistoryLine]

    def explain(self, engine: str) -> str:
        """The violations, the circumstances, and the command that replays the run."""
        shown = "\n".join(str(violation) for violation in self.findings.violations[:3])
        plan = self.plan
        return (
            f"seed {plan.seed} on {engine}: {len(self.findings.violations)} violations\n"
            f"faults: {', '.join(sorted(plan.faults)) or 'none'}\n"
            f"features: {', '.join(sorted(plan.features)) or 'none'}\n"
            f"replay: ./hf torture simulate --engine {engine} --seed {plan.seed}"
            f" --steps {plan.steps}\n{shown}\n{self.findings.brief}"
        )


async def simulate(
    seed: int,
    make_engine: MakeEngine,
    *,
    steps: int = 400,
    without: frozenset[str] = frozenset(),
) -> SimulationRun:
    """Run one seed. `make_engine` is called again at every simulated restart and must open the same
    store."""
    return await run(draw(seed, steps=steps, without=without), make_engine)


async def run(plan: SimulationPlan, make_engine: MakeEngine) -> SimulationRun:
    """Run a plan and check its history."""
    lines = await World(plan, make_engine).run()
    return SimulationRun(plan, check(lines), lines)


class SimulatedEvent(NamedTuple):
    """An event at `at_ms` or later; it waits while its `player` is frozen."""

    at_ms: int
    run: Callable[[], Awaitable[None]]
    player: Player | None = None


class Player:
    """One process of the simulation; after a crash it starts again without any state."""

    def __init__(self, role: str, number: int) -> None:
        self.role = role
        self.number = number
        self.lives = 0
        self.frozen_ms = 0
        self.script: Script
        self.state: PlayerState
        self.journal: Journal


class World:
    """One run: the players, the virtual clock, the due events, and the calls in flight."""

    def __init__(self, plan: SimulationPlan, make_engine: MakeEngine) -> None:
        self.plan = plan
        self.lines: list[HistoryLine] = []
        self.clock: ManualClock = ManualClock()
        self.now_ms: int = 0
        self._marks = 0
        self._make_engine = make_engine
        self._engine: Engine
        self._dice = random.Random(plan.seed)
        self._agenda: list[SimulatedEvent] = []
        self._ids: list[str] = []
        self._calm = False
        self._nemesis = self._journal("nemesis")
        self._network = self._journal("network")
        counts = {
            "producer": plan.producers,
            "worker": plan.workers,
            "reaper": plan.reapers,
            "scheduler": 2 if "schedules" in plan.features else 0,
            "operator": 1 if "operator" in plan.features else 0,
        }
        self._players = [Player(role, n) for role, count in counts.items() for n in range(count)]

    async def run(self) -> list[HistoryLine]:
        """Run the plan: first with faults, then without until every job has ended. Returns the
        history."""
        self._engine = self._make_engine(self.clock)
        await self._engine.open()
        try:
            for queue in self.plan.queues:
                await self._declare(queue)
            for player in self._players:
                self._begin(player)
            for _ in range(self.plan.steps):
                await self._strike()
                await self._step()
            await self._drain()
            await dump(self._engine, self._nemesis)
        finally:
            await self._engine.close()
        return self.lines

    async def _step(self) -> None:
        """Run one due event, or advance the clock if there is none."""
        soonest = min(self._when(task) for task in self._agenda)
        if soonest > self.now_ms:
            self._pass(soonest - self.now_ms)
        due = [task for task in self._agenda if self._when(task) <= self.now_ms]
        task = self._dice.choice(due)
        self._agenda.remove(task)
        await task.run()

    def _when(self, task: SimulatedEvent) -> int:
        frozen_ms = 0 if task.player is None else task.player.frozen_ms
        return max(task.at_ms, frozen_ms)

    async def _strike(self) -> None:
        """Now and then cause one of the faults that do not concern a call."""
        if self._dice.random() > 0.04:
            return
        fault = self._dice.choice(("crash", "freeze", "jump", "restart", "reboot"))
        if fault not in self.plan.faults:
            return
        player = self._dice.choice(self._players)
        match fault:
            case "crash":
                self._nemesis.note("kill", process=player.journal.process)
                self._begin(player, self._dice.randint(0, 500))
            case "freeze":
                self._nemesis.note("freeze", process=player.journal.process)
                player.frozen_ms = self.now_ms + self._dice.randint(LEASE_MS, 4 * LEASE_MS)
            case "jump":
                self.clock.jump(self._dice.randint(-30_000, 30_000))
                self._nemesis.note("jump")
            case _:
                await self._restart(reboot=fault == "reboot")

    async def _restart(self, *, reboot: bool) -> None:
        await self._engine.close()
        if reboot:
            self.clock.reboot()
        self._nemesis.note("reboot" if reboot else "restart")
        self._engine = self._make_engine(self.clock)
        await self._engine.open()

    def _begin(self, player: Player, after_ms: int = 0) -> None:
        life = player.lives = player.lives + 1
        name = f"{player.role}{player.number}.{life}"
        dice = random.Random(f"{self.plan.seed}/{name}")
        player.journal = self._journal(name)
        player.state = PlayerState(name, dice, self.plan, self.clock, self._ids)
        player.state.calm = self._calm
        player.script = getattr(players, player.role)(player.state)
        player.frozen_ms = 0
        self._later(after_ms, lambda: self._resume(player, life, None), player)

    def _later(
        self, ms: int, run: Callable[[], Awaitable[None]], player: Player | None = None
    ) -> None:
        self._agenda.append(SimulatedEvent(self.now_ms + ms, run, player))

    async def _resume(self, player: Player, life: int, answer: Any) -> None:
        """Let the player continue until its next request."""
        if life != player.lives:
            return
        try:
            if isinstance(answer, BaseException):
                step = player.script.throw(answer)
            else:
                step = player.script.send(answer)
            while isinstance(step, Effect):
                player.journal.note("effect", id=step.id, token=step.token)
                step = player.script.send(None)
        except StopIteration:
            return
        if isinstance(step, Rest):
            self._later(step.ms, lambda: self._resume(player, life, None), player)
        else:
            self._issue(player, step)

    def _issue(self, player: Player, call: EngineRequest) -> None:
        life = player.lives
        number = player.journal.begin(call.op, call.argument, call.amendment)

        async def arrive() -> None:
            answer = await self._carry_out(call)
            self._later(self._travel_ms(), lambda: deliver(answer), player)

        async def deliver(answer: Any) -> None:
            if life == player.lives:
                player.journal.end(number, call.op, call.argument, answer)
                await self._resume(player, life, answer)

        self._later(self._travel_ms(), arrive)

    def _travel_ms(self) -> int:
        if "delay" in self.plan.faults and not self._calm and self._dice.random() < 0.05:
            return self._dice.randint(100, 3 * LEASE_MS)
        return self._dice.randint(0, 3)

    async def _carry_out(self, call: EngineRequest) -> Any:
        """Execute a call with the faults of its request and its answer; returns what the caller
        sees."""
        fault = self._fault()
        if fault == "lost_call":
            return OutcomeUnknown("simulated: the call was lost")
        if fault == "refusal":
            return EngineUnavailable("simulated: the engine refused")
        if fault == "duplicate":
            self._later(self._dice.randint(0, 3 * LEASE_MS), lambda: self._repeat(call))
        answer = await self._perform(call)
        if fault == "lost_reply":
            return OutcomeUnknown("simulated: the reply was lost")
        return answer

    def _fault(self) -> str | None:
        if self._calm or self._dice.random() > 0.12:
            return None
        fault = self._dice.choice(("lost_call", "lost_reply", "refusal", "duplicate"))
        return fault if fault in self.plan.faults else None

    async def _repeat(self, call: EngineRequest) -> None:
        """Execute a duplicated call; nobody receives its answer, so its outcome is unknown."""
        self._network.begin(call.op, call.argument, call.amendment)
        await self._perform(call)

    async def _perform(self, call: EngineRequest) -> Any:
        engine = self._engine
        try:
            if call.op == "amend":
                assert call.amendment is not None
                return await engine.amend(call.argument, call.amendment, limit=1)
            return await getattr(engine, call.op)(call.argument)
        except EngineError as error:
            return error

    async def _declare(self, queue: Any) -> None:
        number = self._nemesis.begin("declare", queue)
        written = await self._engine.declare(queue)
        self._nemesis.end(number, "declare", queue, written)

    async def _drain(self) -> None:
        self._calm = True
        for player in self._players:
            player.frozen_ms = 0
            player.state.calm = True
        self._nemesis.note("heal")
        end_ms = self.now_ms + self.plan.drain_ms_max
        while self.now_ms < end_ms:
            for queue in self.plan.queues:
                # Repeatedly, because a pause may still be in flight.
                await self._engine.declare(queue)
            for _ in range(50):
                await self._step()
            if not await self._unfinished():
                self._nemesis.note("drained")
                return
        self._nemesis.note("undrained", after_ms=self.plan.drain_ms_max)

    async def _unfinished(self) -> bool:
        wanted, after = JobFilter(states=UNFINISHED), None
        while True:
            page = await self._engine.find(wanted, limit=1, after=after)
            after = page.after
            if page.jobs or after is None:
                return bool(page.jobs)

    def _pass(self, ms: int) -> None:
        self.now_ms += ms
        self.clock.advance(ms)

    def _journal(self, name: str) -> Journal:
        return Journal(name, self.lines.append, self._instant_ns)

    def _instant_ns(self) -> int:
        """Virtual time, plus a counter that orders events of the same millisecond."""
        self._marks += 1
        return self.now_ms * 1_000_000 + self._marks
