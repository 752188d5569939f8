"""The players of a simulation: generators that yield engine calls and receive the answers.

They follow the rules for clients: repeat with the same id after an unknown outcome, obey
`retry_policy`.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple, TypeAlias

from msgspec.structs import replace

from holdfast.conformance.simulate.plan import LEASE_MS, SWEEP_MS, SimulationPlan
from holdfast.core import retry_policy
from holdfast.core.model import (
    Failure,
    FailureKind,
    Job,
    JobFilter,
    KeyPolicy,
    Lease,
    LeaseRequest,
    NewJob,
    Note,
    Overrides,
    Queue,
    Reason,
    Receipt,
    Renewal,
    State,
    Status,
)
from holdfast.core.verdict import (
    Amendment,
    Bury,
    BuryWaiting,
    Cancel,
    Complete,
    Delete,
    Edit,
    Expedite,
    Forward,
    Move,
    Redrive,
    Release,
    Retime,
    Retry,
    Settlement,
    Verdict,
)
from holdfast.engines.clock import Clock
from holdfast.errors import EngineError, EngineUnavailable

DEPTH_MAX = 2
QUEUES = ("plain", "kept", "moved")


class EngineRequest(NamedTuple):
    """A call that the player makes; its answer is sent back to the generator."""

    op: str
    argument: Any
    amendment: Amendment | None = None


class Rest(NamedTuple):
    """The player does nothing for this long."""

    ms: int


class Effect(NamedTuple):
    """The player has an effect outside the store."""

    id: str
    token: int


Script: TypeAlias = Generator[EngineRequest | Rest | Effect, Any, None]
Part: TypeAlias = Generator[EngineRequest | Rest | Effect, Any, Any]


class PlayerState:
    """A player's state: its name, its random numbers, the plan, and the job ids it knows."""

    def __init__(
        self, name: str, dice: random.Random, plan: SimulationPlan, clock: Clock, ids: list[str]
    ) -> None:
        self.name = name
        self.dice = dice
        self.clock = clock
        self.ids = ids
        self.features: frozenset[str] = plan.features
        self.queues: dict[str, Queue] = {queue.name: queue for queue in plan.queues}
        self.calm = False
        self.made = 0

    def has(self, feature: str) -> bool:
        return feature in self.features

    def chance(self, share: float) -> bool:
        return self.dice.random() < share


def repeat_until_answered(state: PlayerState, call: EngineRequest) -> Part:
    """Repeat a call a few times until it is answered; None if it never was. A call that certainly
    had no effect is sometimes not repeated; then the checker requires that it had none."""
    for _ in range(6):
        try:
            return (yield call)
        except EngineUnavailable:
            if state.chance(0.3):
                return None
        except EngineError:
            pass
        yield Rest(state.dice.randint(10, 400))
    return None


def producer(state: PlayerState) -> Script:
    while not state.calm:
        jobs = [_new_job(state) for _ in range(state.dice.randint(1, 4))]
        state.ids += [job.id for job in jobs]
        receipts: list[Receipt] | None = yield from repeat_until_answered(
            state, EngineRequest("enqueue", jobs)
        )
        if receipts and any(receipt.status is Status.REFUSED for receipt in receipts):
            yield Rest(500)
        yield Rest(state.dice.randint(20, 600))


def scheduler(state: PlayerState) -> Script:
    """Several schedulers enqueue the same ticks, under different ids."""
    while not state.calm:
        tick = state.clock.wall_ms() // 1_000
        job = NewJob(
            id=f"{state.name}-{tick}-{state.made}",
            task="tick",
            queue="plain",
            payload=f"{state.name} {tick} {state.made}".encode(),
            key=f"schedule/every-second/{tick}",
            key_window_ms=3_600_000,
            headers={"schedule": "every-second", "tick": str(tick)},
        )
        state.made += 1
        yield from repeat_until_answered(state, EngineRequest("enqueue", [job]))
        yield Rest(state.dice.randint(200, 900))


def worker(state: PlayerState) -> Script:
    while True:
        request = LeaseRequest(
            queues=(*state.dice.sample(QUEUES, len(QUEUES)), "grave"),
            limit=state.dice.randint(1, 4),
            worker=state.name,
            dead=state.has("dead_queue") and not state.calm and state.chance(0.2),
        )
        try:
            leases: list[Lease] = yield EngineRequest("lease", request)
        except EngineError:
            leases = []
        if not leases:
            yield Rest(state.dice.randint(50, 300))
        for lease in leases:
            yield from _work(state, lease)


def reaper(state: PlayerState) -> Script:
    while True:
        yield Rest(state.dice.randint(SWEEP_MS // 2, SWEEP_MS))
        try:
            overdue = yield EngineRequest("overdue", 20)
            settlements = [
                Settlement(lease=lease, verdict=_lapsed(state, lease)) for lease in overdue.leases
            ]
            if settlements and state.chance(0.3):
                # Its view grows stale: leases are settled or granted again meanwhile.
                yield Rest(state.dice.randint(1, 2 * LEASE_MS))
            if settlements:
                yield EngineRequest("settle", settlements)
            if state.chance(0.1):
                yield EngineRequest("recount", 100)
            expired = yield EngineRequest("expired", 20)
            for job in expired.jobs:
                yield _burial(job)
        except EngineError:
            continue


def operator(state: PlayerState) -> Script:
    while not state.calm:
        yield Rest(state.dice.randint(200, 2_000))
        if state.has("pauses") and state.chance(0.2):
            yield from _pause(state)
        if not state.ids:
            continue
        wanted, amendment = _act(state, state.dice.choice(state.ids))
        try:
            yield EngineRequest("amend", wanted, amendment)
        except EngineError:
            continue


def _new_job(state: PlayerState) -> NewJob:
    dice = state.dice
    state.made += 1
    id_ = f"{state.name}-{state.made}"
    keyed = state.has("keys") and state.chance(0.3)
    policy: KeyPolicy = "replace" if state.has("replace") and state.chance(0.5) else "keep"
    return NewJob(
        id=id_,
        task="work",
        queue=dice.choice(QUEUES),
        payload=f"{id_} {dice.random()}".encode(),
        priority=dice.randint(-1, 1) if state.has("priorities") else 0,
        delay_ms=dice.randint(1, 5_000) if state.has("delays") and state.chance(0.3) else 0,
        expires_ms=dice.randint(1, 8_000) if state.has("expiry") and state.chance(0.3) else None,
        key=f"key-{dice.randint(0, 5)}" if keyed else None,
        key_window_ms=dice.choice((0, 1_000, 10_000)),
        key_policy=policy,
        key_hold="window" if keyed and state.chance(0.3) else "job",
        overrides=Overrides(max_attempts=dice.choice((1, 3, None))),
        tenant=f"tenant{dice.randint(0, 3)}",
        group=f"group{dice.randint(0, 2)}" if state.has("groups") and state.chance(0.5) else None,
        **_parents(state),
    )


def _parents(state: PlayerState) -> dict[str, Any]:
    """Parents among the jobs that were enqueued lately; never held forever, so that the run
    ends.
    """
    if not state.has("families") or not state.ids or not state.chance(0.4):
        return {}
    lately = state.ids[-12:]
    return {
        "after": tuple(state.dice.sample(lately, min(len(lately), state.dice.randint(1, 3)))),
        "after_on": state.dice.choice(("success", "success", "either", "death")),
        "parent_death": state.dice.choice(("cancel", "run")),
    }


def _work(state: PlayerState, lease: Lease) -> Part:
    """One lease from its grant until it is settled or abandoned."""
    dice = state.dice
    slow = not state.calm and state.chance(0.1)
    yield Rest(dice.randint(0, 2 * LEASE_MS if slow else LEASE_MS // 4))
    if state.has("renewals") and state.chance(0.5):
        note = Note(progress=dice.random(), checkpoint=str(dice.random()).encode())
        renewal = Renewal(lease=lease, lease_ms=dice.choice((None, LEASE_MS)), note=note)
        try:
            renewed: list[Lease | None] = yield EngineRequest("renew", [renewal])
        except EngineError:
            renewed = [lease]
        if renewed[0] is None:
            return
        lease = renewed[0]
        yield Rest(dice.randint(0, LEASE_MS // 2))
    yield Effect(lease.id, lease.token)
    if state.chance(0.05) and not state.calm:
        return
    settlement = Settlement(lease=lease, verdict=_verdict(state, lease))
    yield from repeat_until_answered(state, EngineRequest("settle", [settlement]))


def _verdict(state: PlayerState, lease: Lease) -> Verdict:
    dice, queue = state.dice, _policy(state, lease.job)
    roll = 0.0 if state.calm else dice.random()
    if roll < 0.6:
        return Complete(b"done", _follow_ups(state, lease.job))
    if roll < 0.85:
        crash = state.chance(0.3)
        failure = Failure(kind=FailureKind.CRASH if crash else FailureKind.ERROR, message="no")
        return retry_policy.after_failure(queue, lease.job, failure, dice.random())
    if roll < 0.90:
        return Release("not now", dice.choice((0, 300)))
    if roll < 0.93 and state.has("forwards"):
        return Forward(dice.choice(QUEUES))
    if roll < 0.97:
        return Bury(Reason.EXPLICIT)
    return Retry(0, None) if not retry_policy.exhausted(queue, lease.job) else Bury(Reason.REJECTED)


def _follow_ups(state: PlayerState, job: Job) -> tuple[NewJob, ...]:
    """The follow-up jobs of a job, the same for every worker that completes it."""
    if not state.has("follow_ups") or job.id.count(".then.") >= DEPTH_MAX:
        return ()
    count = len(job.payload) % 3
    return tuple(
        NewJob(
            id=f"{job.id}.then.{n}",
            task="follow",
            queue=QUEUES[n],
            payload=f"after {job.id} {n}".encode(),
        )
        for n in range(count)
    )


def _policy(state: PlayerState, job: Job) -> Queue:
    return state.queues[job.queue]


def _lapsed(state: PlayerState, lease: Lease) -> Verdict:
    return retry_policy.after_overdue(_policy(state, lease.job), lease.job)


def _burial(job: Job) -> EngineRequest:
    wanted = JobFilter(ids=(job.id,), states=(State.WAITING,), expired=True, version=job.version)
    return EngineRequest("amend", wanted, retry_policy.after_expiry(job))


def _pause(state: PlayerState) -> Part:
    queue = state.queues["plain"]
    yield from repeat_until_answered(state, EngineRequest("declare", replace(queue, paused=True)))
    yield Rest(state.dice.randint(100, 2_000))
    yield from repeat_until_answered(state, EngineRequest("declare", queue))


def _act(state: PlayerState, id_: str) -> tuple[JobFilter, Amendment]:
    dice = state.dice
    finished = (State.DEAD, State.CANCELLED, State.DONE)
    acts: Sequence[tuple[tuple[State, ...] | None, Amendment]] = (
        (None, Cancel(by=state.name)),
        (finished, Redrive(by=state.name, delay_ms=dice.choice((0, 500)))),
        (None, BuryWaiting(by=state.name)),
        (None, Edit(by=state.name, payload=f"edited {id_} {dice.random()}".encode())),
        (None, Edit(by=state.name, priority=1, expires_ms=20_000)),
        (None, Move(queue=dice.choice(QUEUES), by=state.name)),
        (None, Retime(delay_ms=dice.randint(0, 3_000), by=state.name)),
        (None, Expedite(by=state.name)),
        (None, Delete(force=state.chance(0.3))),
    )
    states, amendment = dice.choice(acts)
    return JobFilter(ids=(id_,), states=states), amendment
