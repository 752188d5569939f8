"""Random histories of any engine, compared with the reference: crashes, jumps, zombies, duplicates.

    run_histories(lambda: Harness(lambda clock: MyEngine(..., clock=clock)), examples=100)

`Twin` compares every answer. Hypothesis shrinks a failure to a short program and prints its seed;
pass that as `seed` to replay it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import nullcontext, suppress
from typing import Any, ClassVar, Final, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from msgspec.structs import replace

from holdfast.conformance import inputs as made
from holdfast.conformance.harness import TALLIED, Harness, Twin
from holdfast.core import retry_policy
from holdfast.core.model import (
    JobFilter,
    Lease,
    LeaseRequest,
    NewJob,
    Note,
    Queue,
    Record,
    Renewal,
    State,
    TallyBy,
)
from holdfast.core.verdict import Amendment, Delete, Settlement, Verdict
from holdfast.engines.base import ANY
from holdfast.errors import UsageError

T = TypeVar("T")
ENGINES_MAX = 3

recent: Final = st.sampled_from((0, 0, 0, 1, 1, 2, 3, 4, 5, 7, 9))
"""A lease, counted from the newest: small numbers are probably live, others stale."""

known: Final = st.sampled_from((None, None, None, None, 0, 3, 10))
"""An id: a new one, or an earlier one counted from the newest."""


def run_histories(
    make: Callable[[], Harness],
    *,
    examples: int,
    steps: int = 50,
    seed: int | None = None,
    runner: asyncio.Runner | None = None,
) -> None:
    """Raise, with a note that names the seed, if the engine and the reference differ.

    All examples run in the event loop of `runner`, for a harness that keeps state there.
    """
    if seed is None:
        seed = random.randrange(2**32)
    wanted = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        print_blob=True,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    with asyncio.Runner() if runner is None else nullcontext(runner) as shared:
        given = {"make": staticmethod(make), "runner": shared}
        machine: type[EngineMachine] = type("Machine", (EngineMachine,), given)
        try:
            run_state_machine_as_test(seeded(seed)(machine), settings=wanted)
        except BaseException as error:
            error.add_note(f"seed {seed}, {examples} examples of {steps} steps")
            raise


class EngineMachine(RuleBasedStateMachine):
    """One engine in one example; `make` gives it a store of its own."""

    make: ClassVar[Callable[[], Harness]]
    runner: ClassVar[asyncio.Runner]

    def __init__(self) -> None:
        super().__init__()
        self.leases: list[Lease] = []
        self.given: list[str] = []
        self.harness: Harness = type(self).make()
        self.run(self.harness.__aenter__())
        self.twin: Twin = self.run(self.harness.twin())
        for name in made.QUEUES:
            self.run(self.twin.declare(Queue(name=name, lease_ms=30)))

    def teardown(self) -> None:
        try:
            self.run(self.twin.agree())
        finally:
            self.run(self.harness.__aexit__(None, None, None))

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(call)

    def attempt(self, call: Awaitable[T]) -> None:
        """Make a call that both engines may refuse; `Twin` has compared the refusals."""

        async def made_() -> None:
            with suppress(UsageError):
                await call

        self.run(made_())

    def next_id(self, place: int | None) -> str:
        """A new id, or a known one counted from the newest."""
        if place is None or not self.given:
            self.given.append(made.IDS[len(self.given) % len(made.IDS)])
            return self.given[-1]
        return self.given[-1 - place % len(self.given)]

    def parent(self, id_: str, name: str) -> str:
        """A parent counted back from the id: it may be in the same call, or not exist."""
        own = len(self.given) - 1 - self.given[::-1].index(id_)
        place = int(name.removeprefix(made.PARENT))
        return self.given[(own - place) % len(self.given)]

    def look(self, ids: Sequence[str]) -> None:
        for id_ in dict.fromkeys(ids):
            job = self.run(self.twin.get(id_))
            if job is not None and job.state is State.WAITING:
                self.run(self.twin.waits(id_))

    def leases_at(self, places: Sequence[int]) -> list[Lease]:
        return [self.leases[-1 - place % len(self.leases)] for place in places]

    @initialize(
        queues=st.lists(made.flow_queues, max_size=2),
        shapes=st.lists(made.job_shapes, min_size=4, max_size=8),
    )
    def start(self, queues: list[Queue], shapes: list[NewJob]) -> None:
        for queue in queues:
            self.run(self.twin.declare(queue))
        self.enqueue([(None, shape) for shape in shapes])

    @rule(given=st.lists(st.tuples(known, made.job_shapes), min_size=1, max_size=5))
    def enqueue(self, given: list[tuple[int | None, NewJob]]) -> None:
        ids = [self.next_id(place) for place, _ in given]
        jobs = [
            replace(shape, id=id_, after=tuple(self.parent(id_, name) for name in shape.after))
            for id_, (_, shape) in zip(ids, given, strict=True)
        ]
        receipts = self.run(self.twin.enqueue(jobs))
        self.look([receipt.id for receipt in receipts])

    @rule(shape=made.flow_shapes, priorities=st.lists(st.integers(0, 2), min_size=2, max_size=6))
    def enqueue_alike(self, shape: NewJob, priorities: list[int]) -> None:
        """Enqueue similar jobs that compete with each other."""
        self.enqueue([(None, replace(shape, priority=priority)) for priority in priorities])

    @rule(request=made.lease_requests)
    def lease(self, request: LeaseRequest) -> None:
        leases = self.run(self.twin.lease(request))
        self.leases += leases
        self.look([lease.id for lease in leases])

    @rule(limit=st.integers(1, 5))
    def lease_from_all(self, limit: int) -> None:
        self.lease(LeaseRequest(queues=made.QUEUES, limit=limit, worker="w1"))

    @rule(limit=st.integers(1, 5))
    def lease_dead_letters(self, limit: int) -> None:
        self.lease(LeaseRequest(queues=made.QUEUES, limit=limit, worker="w2", dead=True))

    @precondition(lambda self: self.leases)
    @rule(
        given=st.lists(
            st.tuples(recent, st.sampled_from((None, *made.LEASE_LENGTHS_MS, 0)), made.notes),
            min_size=1,
            max_size=3,
        )
    )
    def renew(self, given: list[tuple[int, int | None, Note | None]]) -> None:
        leases = self.leases_at([place for place, _, _ in given])
        self.run(
            self.twin.renew(
                [
                    Renewal(lease=lease, lease_ms=lease_ms, note=note)
                    for lease, (_, lease_ms, note) in zip(leases, given, strict=True)
                ]
            )
        )
        self.look([lease.id for lease in leases])

    @precondition(lambda self: self.leases)
    @rule(
        given=st.lists(
            st.tuples(recent, made.verdicts, made.notes, st.sampled_from((0,) * 9 + (1,))),
            min_size=1,
            max_size=4,
        )
    )
    def settle(self, given: list[tuple[int, Verdict, Note | None, int]]) -> None:
        """Settle leases: live, stale, late, twice in one batch, sometimes with a wrong token."""
        leases = self.leases_at([place for place, _, _, _ in given])
        self.run(
            self.twin.settle(
                [
                    Settlement(
                        lease=replace(lease, token=lease.token + wrong), verdict=verdict, note=note
                    )
                    for lease, (_, verdict, note, wrong) in zip(leases, given, strict=True)
                ]
            )
        )
        self.look([lease.id for lease in leases])

    @rule(verdicts=st.lists(made.verdicts, min_size=1, max_size=3))
    def work(self, verdicts: list[Verdict]) -> None:
        """Lease as many jobs as there are verdicts, and settle each at once."""
        self.lease_from_all(len(verdicts))
        if self.leases:
            self.settle([(place, verdict, None, 0) for place, verdict in enumerate(verdicts)])

    @rule(limit=st.integers(1, 4))
    def reap(self, limit: int) -> None:
        queues = {view.queue.name: view.queue for view in self.run(self.twin.queues(counts=False))}
        overdue = self.run(self.twin.overdue(limit))
        settlements = [
            Settlement(
                lease=lease, verdict=retry_policy.after_overdue(queues[lease.job.queue], lease.job)
            )
            for lease in overdue.leases
        ]
        self.run(self.twin.settle(settlements))
        self.look([lease.id for lease in overdue.leases])

    @rule(limit=st.integers(1, 4))
    def expire_and_prune(self, limit: int) -> None:
        for job in self.run(self.twin.expired(limit)).jobs:
            wanted = JobFilter(ids=(job.id,), version=job.version, expired=True)
            self.run(self.twin.amend(wanted, retry_policy.after_expiry(job)))
            self.look([job.id])
        for job in self.run(self.twin.finished(limit)):
            wanted = JobFilter(ids=(job.id,), version=job.version)
            self.run(self.twin.amend(wanted, Delete()))
            self.look([job.id])

    @rule(wanted=made.filters, act=made.amendments, limit=st.integers(1, 5))
    def amend(self, wanted: JobFilter, act: Amendment, limit: int) -> None:
        self.attempt(self.twin.amend(wanted, act, limit=limit))
        self.run(self.twin.find(JobFilter()))

    @rule(
        wanted=made.filters,
        limit=st.integers(1, 5),
        by=st.sampled_from(TALLIED),
        records=st.lists(made.records, max_size=3),
    )
    def look_around(
        self, wanted: JobFilter, limit: int, by: TallyBy, records: list[Record]
    ) -> None:
        self.run(self.twin.find(wanted, limit=limit))
        self.run(self.twin.tally(wanted, by))
        self.run(self.twin.save(records))
        self.run(self.twin.load("setting", limit=2))
        self.run(self.twin.load("worker", after="a"))
        self.run(self.twin.queues())

    @rule(recounts=st.booleans())
    def look_at_the_flow(self, recounts: bool) -> None:
        """Recount: it must find nothing wrong and change nothing."""
        if recounts:
            assert self.run(self.twin.recount()) == 0
        for name in made.QUEUES:
            self.attempt(self.twin.flow(name))
        for id_ in self.given[-10:]:
            self.run(self.twin.waits(id_))

    @rule(queue=made.queues, how=st.sampled_from((*("declare",) * 8, "if new", "drop", "anew")))
    def declare(self, queue: Queue, how: str) -> None:
        if how in ("drop", "anew"):
            self.run(self.twin.drop(queue.name))
        if how != "drop":
            self.attempt(self.twin.declare(queue, instead_of=None if how == "if new" else ANY))

    @rule(ms=st.sampled_from((1, 5, 10, 30, 100, 1_000)))
    def advance(self, ms: int) -> None:
        self.harness.clock.advance(ms)

    @precondition(lambda self: self.harness.can_jump)
    @rule(ms=st.sampled_from((100, -100, 3_600_000, -3_600_000)), back=st.booleans())
    def jump(self, ms: int, back: bool) -> None:
        self.harness.clock.jump(ms)
        if back:
            self.lease_from_all(2)
            self.harness.clock.jump(-ms)

    @precondition(lambda self: self.harness.engine.traits.durable)
    @rule(how=st.sampled_from(("restart", "crash", "switch")), which=st.integers(0, 2))
    def change_process(self, how: str, which: int) -> None:
        """After a crash the old engine stays open; a switch may return to it, as a zombie."""
        engines = self.harness.engines
        if how == "switch" or (how == "crash" and len(engines) >= ENGINES_MAX):
            self.harness.engine = engines[which % len(engines)]
        else:
            self.run(self.harness.restart() if how == "restart" else self.harness.abandon())
            # Opening creates the queue `default` if it was dropped.
            self.run(self.twin.reference.open())
        self.twin.engine = self.harness.engine
