"""One worker: start → work → drain → stop. It joins the parts and decides nothing about jobs.

It owns the engine. Its children own nothing: killed at any instant, they leave only calls that
the supervisor knows of; killed itself, it leaves leases that come back by themselves.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
from collections.abc import Callable
from contextlib import suppress
from time import monotonic

from msgspec.structs import replace

from holdfast.core.model import Failure, Note, Queue
from holdfast.core.text import counted
from holdfast.core.verdict import Complete, Release, Retry
from holdfast.core.workers import TASKS_SHOWN, Order, WorkerRecord, health, worker_queue
from holdfast.engines.base import Engine
from holdfast.errors import ConfigError, EngineError
from holdfast.worker import processes
from holdfast.worker.bounds import Bounds
from holdfast.worker.breaking import Breakers, Doors
from holdfast.worker.calls import BUILT_IN
from holdfast.worker.clock import boot_s, wall_ms
from holdfast.worker.crew import TICK_S, Crew
from holdfast.worker.fortune import Fortune
from holdfast.worker.hand import Hand, Held, Kind
from holdfast.worker.options import WorkerOptions
from holdfast.worker.registration import Registration, start_ticks
from holdfast.worker.renewer import Renewer
from holdfast.worker.repeating import every
from holdfast.worker.rooms import Rooms
from holdfast.worker.settler import Settler
from holdfast.worker.verdicts import after_death, note_of, verdict_on
from holdfast.worker.watch import STALL_MS, find_stall
from holdfast.worker.wire import AskedCancel, AskedRetry, Ending, Raised, TaskInfo

_log = logging.getLogger("holdfast.worker")

_ORDERS_S = 1.0
_QUEUES_S = 5.0
_UNREADY_S = 5.0
"""A worker that could not run Python for so long lets others have what it leased."""
_LAST_SETTLE_S = 10.0


class Supervisor:
    """`crew` makes the children, given who shall hear of them and how to find a queue."""

    def __init__(
        self,
        engine: Engine,
        options: WorkerOptions,
        id: str,
        crew: Callable[[Supervisor, Callable[[str], Queue]], Crew],
    ) -> None:
        self.id = id
        self.tell_ready: Callable[[str], None] = lambda _name: None
        self._engine = engine
        self._options = options
        self._queues: dict[str, Queue] = {}
        self._hand = Hand()
        self._fortune = Fortune()
        self._crew = crew(self, self._queue_of)
        self._rooms = Rooms(engine, options, self._hand, self._crew, self._admit)
        rooms, crew_ = self._rooms, self._crew
        doors = Doors(rooms.has_room, rooms.take_one, crew_.give, self._return, self._shut_out)
        hosts = options.webhook_breaker if options.webhooks else None
        self._breakers = Breakers(engine, id, doors, hosts)
        self._registration = Registration(engine, self._facts)
        self._renewer = Renewer(engine, self._hand, self._lose, self._cancel, self._crew.vouch)
        self._started_at = wall_ms()
        self._start_ticks = start_ticks(os.getpid()) or 0
        self._order = Order()
        self._blocked = ""
        self._fatal: ConfigError | None = None
        self._changed = asyncio.Event()
        self._learned = asyncio.Event()
        self._bounds = Bounds(self._engine)
        self._draining = asyncio.Event()
        self._ending = asyncio.Event()
        self._ends_at: float | None = None
        self._settler: Settler

    @property
    def name(self) -> str:
        return self._registration.name

    async def run(self, stop: Callable[[Supervisor], None] | None = None) -> None:
        """Until it has drained or been stopped. `stop` gets this, to ask for its end."""
        name = await self._registration.enter(self._options.name)
        for dead in await self._registration.dead_here():
            # What an earlier start may have left running, when its launcher died with it.
            processes.kill_marked({b"HOLDFAST_WORKER_ID": dead.encode()})
        await self._load_queues()
        # Before anything is leased: it may have been cordoned in an earlier life.
        await self._read_order()
        self._settler = Settler(self._engine, self._hand, self._queue_of, self._left, name)
        if stop is not None:
            stop(self)
        async with asyncio.TaskGroup() as group:
            loops = [
                group.create_task(loop)
                for loop in (
                    self._settler.run(),
                    self._renewer.run(),
                    self._tick(),
                    every(_ORDERS_S, self._read_order),
                    every(_ORDERS_S, self._breakers.look, self._breakers.sooner),
                    every(_QUEUES_S, self._load_queues, self._learned),
                    every(self._options.heartbeat_ms / 1000, self._beat, self._changed),
                )
            ]
            intake = group.create_task(self._rooms.intake.run(), name="intake")
            await self._crew.start(name)
            await self._draining.wait()
            intake.cancel()
            await asyncio.wait([intake])
            await self._finish()
            for loop in loops:
                loop.cancel()
        with suppress(EngineError):
            await self._registration.leave()
        if self._fatal is not None:
            raise self._fatal

    def drain(self, *, for_ever: bool = False) -> None:
        """Lease nothing more, finish what runs within the grace period, then end."""
        if not for_ever:
            self._ends_at = monotonic() + self._options.grace_ms / 1000
        self._draining.set()

    def stop(self) -> None:
        """Release what runs, and end at once."""
        self._draining.set()
        self._ending.set()

    def ended(self, held: Held, ending: Ending) -> None:
        """A job came to this. Heard from the crew."""
        if held.lost:
            self._hand.drop(held)
            self._rooms.intake.look()
            return
        job = held.job
        verdict = verdict_on(ending, self._queue_of(job.queue), job, random.random())
        note = note_of(ending)
        if note is not None:
            held.add_note(note)
        self._rooms.ended(held.kind)
        self._breakers.ended(held, ending)
        if isinstance(verdict, Complete):
            self._fortune.succeeded(job.task)
        elif isinstance(ending, Raised | AskedRetry):
            self._fortune.failed_at(job.task)
        self._settler.judge(held, verdict, cancels=isinstance(ending, AskedCancel))

    def crashed(self, held: Held, failure: Failure, *, alone: bool) -> None:
        """A child died under this job."""
        if held.lost:
            self._hand.drop(held)
            return
        queue = self._queue_of(held.job.queue)
        verdict = after_death(queue, held.job, failure, random.random(), alone=alone)
        self._fortune.failed += 1
        if alone:
            self._breakers.crashed(held, failure)
        self._settler.judge(held, verdict)
        self._rooms.ended(held.kind)

    def noted(self, held: Held, note: Note) -> None:
        held.add_note(note)

    def learned(self, tasks: dict[str, TaskInfo]) -> None:
        self._serve(tasks)
        self._breakers.learn(tasks)
        self._learned.set()
        self._changed.set()
        if self._options.target is None or set(tasks) - BUILT_IN:
            self.tell_ready(self.name)

    def broken(self, failure: Failure) -> None:
        """The application cannot be imported. One that never could is a mistake to be told; one
        that could before is being changed, and is tried again: others may have its jobs."""
        if self._options.target and set(self._crew.tasks) <= BUILT_IN:
            self._fatal = ConfigError(
                f"{self._options.target} cannot be imported: {failure.type}: {failure.message}"
            )
            self.stop()
        self._look_at_itself()

    def _serve(self, tasks: dict[str, TaskInfo]) -> None:
        """All wait until the limits that some must have are set: a call for the others would be
        given up for one for all, and what it just leased be released."""
        if self._bounds.are_set(tasks):
            self._rooms.learn(self.name, tasks)

    def _admit(self, taken: list[Held]) -> None:
        self._breakers.admit(taken)

    def _return(self, held: Held, release: Release) -> None:
        self._settler.judge(held, release)
        self._rooms.freed(held.kind)

    def _go_on(self, over: list[Held]) -> None:
        """Those that came with one of these, of the same group, take their turn or go back."""
        for held in over if self._rooms.sequences else ():
            step = self._rooms.sequences.over(held, wall_ms())
            for each in step.release:
                self._return(each, Release("the job before it comes again", unstarted=True))
            if step.start is not None:
                step.start.came_at = boot_s()
                self._admit([step.start])

    def _shut_out(self, tasks: frozenset[str]) -> None:
        """What was leased of them and has not started goes back; it costs nothing."""
        new = tasks - self._rooms.shut
        self._rooms.shut_out(tasks)
        for held in self._crew.withdraw_all(new):
            self._return(held, Release("the circuit breaker of its task is open", unstarted=True))

    def _left(self, over: list[Held]) -> None:
        self._go_on(over)
        self._rooms.intake.look()

    def _lose(self, held: Held) -> None:
        _log.warning("the lease on job %s is lost: its run is ended", held.job.id)
        self._crew.cancel(held, lost=True)
        if held.call == 0:
            self._hand.drop(held)
        self._rooms.freed(held.kind)
        self._go_on([held])

    def _cancel(self, held: Held) -> None:
        if held.call:
            self._crew.cancel(held)
        elif self._crew.withdraw(held) or self._rooms.sequences.is_behind(held):
            self._settler.judge(held, Retry(0))
            self._rooms.freed(held.kind)
        else:
            # On its way to a line: the next renewal brings the wish again.
            held.cancel_told = False

    def _queue_of(self, name: str) -> Queue:
        """One that is not known yet is asked for soon; until then the defaults do."""
        return self._queues.get(name) or Queue(name=name)

    async def _finish(self) -> None:
        """Drain for the grace period, then release the rest; what was judged is settled."""
        behind = self._rooms.sequences.clear()
        for held in (*self._crew.close(), *self._breakers.close(), *behind):
            self._settler.judge(held, Release("the worker is stopping", unstarted=True))
        self._changed.set()
        while self._hand.unjudged_all and not self._is_over():
            with suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    await self._ending.wait()
        await self._crew.stop("the worker stopped before it ended")
        await self._settle_last()

    async def _settle_last(self) -> None:
        """As long as the drain may take, however long the store is away; a while in any case."""
        at_least = monotonic() + _LAST_SETTLE_S
        while self._settler.backlog:
            if self._is_over() and monotonic() >= at_least:
                lost = counted(self._settler.backlog, "verdict")
                _log.error("%s could not be settled and got lost", lost)
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    await self._settler.drain()

    def _is_over(self) -> bool:
        """The time that the end may take."""
        late = self._ends_at is not None and monotonic() >= self._ends_at
        return late or self._ending.is_set()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._rooms.measure()
            self._crew.tick()
            self._shed()
            self._fortune.rest()
            self._look_at_itself()

    def _look_at_itself(self) -> None:
        """How well it is, and so what it may lease."""
        # Not by what blocks it: whoever leased nothing because of that would never be well.
        state, _ = health(replace(self._facts(), blocked=""), 0)
        closed = self._order.cordoned or self._draining.is_set()
        broken = self._crew.broken is not None or self._crew.unready_s > _UNREADY_S
        self._rooms.set(closed=closed, health=state, broken=broken)

    def _shed(self) -> None:
        """Give back what was leased ahead when jobs ended faster. Not what must run alone: that
        comes with the others, would come again at once, and has only so many releases. Without an
        application nothing comes again, and others may have what cannot start here."""
        if self._crew.unready_s > _UNREADY_S:
            text = "the application of its worker cannot start"
            for held in (*self._crew.shed("python", 0), *self._crew.shed("solo", 0)):
                self._settler.judge(held, Release(text, unstarted=True))
        kinds: tuple[Kind, ...] = ("python", "command", "webhook")
        for kind in kinds:
            most = 2 * self._rooms.ahead(kind) + self._crew.capacity_of(kind)
            for held in self._crew.shed(kind, most):
                text = "leased ahead by a worker now busy"
                self._settler.judge(held, Release(text, unstarted=True))
        for held in self._crew.give_up_unstarted():
            text = "its worker took it and did not come to start it"
            self._settler.judge(held, Release(text, unstarted=True))

    async def _beat(self) -> None:
        self._blocked = await self._find_stall()
        await self._registration.heartbeat()
        if self._crew.tasks:
            # Under another name, if somebody had to take this one.
            self._serve(self._crew.tasks)
        if random.random() < 0.05:
            await self._registration.tidy()

    async def _find_stall(self) -> str:
        if self._crew.broken is not None:
            return f"its application cannot be started: {self._crew.broken.message}"
        if self._rooms.idle_s() * 1000 < STALL_MS:
            return ""
        queues = {worker_queue(self.name), *self._rooms.queues(self._crew.tasks)}
        return await find_stall(self._engine, queues, set(self._crew.tasks) - self._rooms.shut)

    async def _read_order(self) -> None:
        before, self._order = self._order, await self._registration.order()
        told = (before.ending, before.ending_id) == (self._order.ending, self._order.ending_id)
        if self._order.ending and self._order.ending_id == self.id and not told:
            _log.info("asked to %s by %s", self._order.ending, self._order.by or "somebody")
            if self._order.ending == "drain":
                self.drain(for_ever=True)
            else:
                self.stop()
        if self._order.renew != before.renew:
            self._renewer.at_once()
        if self._order.cordoned != before.cordoned:
            self._changed.set()
        self._look_at_itself()

    async def _load_queues(self) -> None:
        """Those that its tasks name are made, so that their jobs and follow-ups have a place."""
        self._queues = await self._read_queues()
        named = {info.queue for info in self._crew.tasks.values()} | {*self._options.queues}
        # That one is always there, although not everybody may see it.
        missing = sorted(named - set(self._queues) - {"default"})
        for name in missing:
            await self._engine.declare(Queue(name=name), instead_of=None)
        bound = await self._bounds.set(self._crew.tasks)
        if missing or bound:
            self._queues = await self._read_queues()
        if bound:
            self._serve(self._crew.tasks)

    async def _read_queues(self) -> dict[str, Queue]:
        return {view.queue.name: view.queue for view in await self._engine.queues(counts=False)}

    def _facts(self) -> WorkerRecord:
        running = self._crew.running()
        return WorkerRecord(
            name=self._registration.name,
            id=self.id,
            host=socket.gethostname(),
            pid=os.getpid(),
            started_at=self._started_at,
            start_ticks=self._start_ticks,
            version=self._options.version,
            queues=self._rooms.queues(self._crew.tasks),
            tasks=tuple(sorted(self._crew.tasks)[:TASKS_SHOWN]),
            labels=self._options.labels,
            capacity=self._crew.capacity,
            running=running,
            prefetched=max(0, self._hand.unjudged_all - running),
            done=self._fortune.done,
            failed=self._fortune.failed,
            consecutive_failures=self._fortune.consecutive_failures,
            failure_rate=round(self._fortune.failure_rate, 3),
            blocked=self._blocked,
            cordoned=self._order.cordoned,
            stopping=self._draining.is_set(),
        )
