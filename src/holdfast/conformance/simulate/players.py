"""The players of a simulation: generators that yield engine calls and receive the answers.

They follow the rules for clients: repeat with the same id after an unknown outcome, obey `policy`.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple, TypeAlias

from msgspec.structs import replace

from holdfast.conformance.simulate.plan import LEASE_MS, SWEEP_MS, Plan
from holdfast.core import policy
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
    op: str
    argument: Any
    amendment: Amendment | None = None


class Rest(NamedTuple):
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
        self, name: str, dice: random.Random, plan: Plan, clock: Clock, ids: list[str]
    ) -> None:
        self.name = name
        self.dice = dice
        self.clock = clock
        self.ids = ids
        self.features = plan.features
        self.queues = {queue.name: queue for queue in plan.queues}
        self.calm = False
        self.made = 0

    def has(self, feature: str) -> bool:
        return feature in self.features

    def chance(self, share: float) -> bool:
        return self.dice.random() < share


def insist(hand: PlayerState, call: EngineRequest) -> Part:
    """Repeat a call a few times until it is answered; None if it never was. A call that certainly
    had no effect is sometimes not repeated; then the checker requires that it had none."""
    for _ in range(6):
        try:
            return (yield call)
        except EngineUnavailable:
            if hand.chance(0.3):
                return None
        except EngineError:
            pass
        yield Rest(hand.dice.randint(10, 400))
    return None


def producer(hand: PlayerState) -> Script:
    while not hand.calm:
        jobs = [_new_job(hand) for _ in range(hand.dice.randint(1, 4))]
        hand.ids += [job.id for job in jobs]
        receipts: list[Receipt] | None = yield from insist(hand, EngineRequest("enqueue", jobs))
        if receipts and any(receipt.status is Status.REFUSED for receipt in receipts):
            yield Rest(500)
        yield Rest(hand.dice.randint(20, 600))


def scheduler(hand: PlayerState) -> Script:
    """Several schedulers enqueue the same ticks, under different ids."""
    while not hand.calm:
        tick = hand.clock.wall_ms() // 1_000
        job = NewJob(
            id=f"{hand.name}-{tick}-{hand.made}",
            task="tick",
            queue="plain",
            payload=f"{hand.name} {tick} {hand.made}".encode(),
            key=f"schedule/every-second/{tick}",
            key_window_ms=3_600_000,
            headers={"schedule": "every-second", "tick": str(tick)},
        )
        hand.made += 1
        yield from insist(hand, EngineRequest("enqueue", [job]))
        yield Rest(hand.dice.randint(200, 900))


def worker(hand: PlayerState) -> Script:
    while True:
        request = LeaseRequest(
            queues=(*hand.dice.sample(QUEUES, len(QUEUES)), "grave"),
            limit=hand.dice.randint(1, 4),
            worker=hand.name,
        )
        try:
            leases: list[Lease] = yield EngineRequest("lease", request)
        except EngineError:
            leases = []
        if not leases:
            yield Rest(hand.dice.randint(50, 300))
        for lease in leases:
            yield from _work(hand, lease)


def reaper(hand: PlayerState) -> Script:
    while True:
        yield Rest(hand.dice.randint(SWEEP_MS // 2, SWEEP_MS))
        try:
            overdue = yield EngineRequest("overdue", 20)
            settlements = [
                Settlement(lease=lease, verdict=_lapsed(hand, lease)) for lease in overdue.leases
            ]
            if settlements and hand.chance(0.3):
                # Its view grows stale: leases are settled or granted again meanwhile.
                yield Rest(hand.dice.randint(1, 2 * LEASE_MS))
            if settlements:
                yield EngineRequest("settle", settlements)
            if hand.chance(0.1):
                yield EngineRequest("recount", 100)
            expired = yield EngineRequest("expired", 20)
            for job in expired.jobs:
                yield _burial(job)
        except EngineError:
            continue


def operator(hand: PlayerState) -> Script:
    while not hand.calm:
        yield Rest(hand.dice.randint(200, 2_000))
        if hand.has("pauses") and hand.chance(0.2):
            yield from _pause(hand)
        if not hand.ids:
            continue
        wanted, amendment = _act(hand, hand.dice.choice(hand.ids))
        try:
            yield EngineRequest("amend", wanted, amendment)
        except EngineError:
            continue


def _new_job(hand: PlayerState) -> NewJob:
    dice = hand.dice
    hand.made += 1
    id_ = f"{hand.name}-{hand.made}"
    keyed = hand.has("keys") and hand.chance(0.3)
    policy: KeyPolicy = "replace" if hand.has("replace") and hand.chance(0.5) else "keep"
    return NewJob(
        id=id_,
        task="work",
        queue=dice.choice(QUEUES),
        payload=f"{id_} {dice.random()}".encode(),
        priority=dice.randint(-1, 1) if hand.has("priorities") else 0,
        delay_ms=dice.randint(1, 5_000) if hand.has("delays") and hand.chance(0.3) else 0,
        expires_ms=dice.randint(1, 8_000) if hand.has("expiry") and hand.chance(0.3) else None,
        key=f"key-{dice.randint(0, 5)}" if keyed else None,
        key_window_ms=dice.choice((0, 1_000, 10_000)),
        key_policy=policy,
        overrides=Overrides(max_attempts=dice.choice((1, 3, None))),
        tenant=f"tenant{dice.randint(0, 3)}",
        group=f"group{dice.randint(0, 2)}" if hand.has("groups") and hand.chance(0.5) else None,
        **_parents(hand),
    )


def _parents(hand: PlayerState) -> dict[str, Any]:
    """Parents among the jobs that were enqueued lately; never held for ever, so that the run
    ends."""
    if not hand.has("families") or not hand.ids or not hand.chance(0.4):
        return {}
    lately = hand.ids[-12:]
    return {
        "after": tuple(hand.dice.sample(lately, min(len(lately), hand.dice.randint(1, 3)))),
        "after_on": hand.dice.choice(("success", "success", "either", "death")),
        "parent_death": hand.dice.choice(("cancel", "run")),
    }


def _work(hand: PlayerState, lease: Lease) -> Part:
    """One lease from its grant until it is settled or abandoned."""
    dice = hand.dice
    slow = not hand.calm and hand.chance(0.1)
    yield Rest(dice.randint(0, 2 * LEASE_MS if slow else LEASE_MS // 4))
    if hand.has("renewals") and hand.chance(0.5):
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
    if hand.chance(0.05) and not hand.calm:
        return
    settlement = Settlement(lease=lease, verdict=_verdict(hand, lease))
    yield from insist(hand, EngineRequest("settle", [settlement]))


def _verdict(hand: PlayerState, lease: Lease) -> Verdict:
    dice, queue = hand.dice, _policy(hand, lease.job)
    roll = 0.0 if hand.calm else dice.random()
    if roll < 0.6:
        return Complete(b"done", _follow_ups(hand, lease.job))
    if roll < 0.85:
        crash = hand.chance(0.3)
        failure = Failure(kind=FailureKind.CRASH if crash else FailureKind.ERROR, message="no")
        return policy.after_failure(queue, lease.job, failure, dice.random())
    if roll < 0.90:
        return Release("not now", dice.choice((0, 300)))
    if roll < 0.93 and hand.has("forwards"):
        return Forward(dice.choice(QUEUES))
    if roll < 0.97:
        return Bury(Reason.EXPLICIT)
    return Retry(0, None) if not policy.exhausted(queue, lease.job) else Bury(Reason.REJECTED)


def _follow_ups(hand: PlayerState, job: Job) -> tuple[NewJob, ...]:
    """The follow-up jobs of a job, the same for every worker that completes it."""
    if not hand.has("follow_ups") or job.id.count(".then.") >= DEPTH_MAX:
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


def _policy(hand: PlayerState, job: Job) -> Queue:
    return hand.queues[job.queue]


def _lapsed(hand: PlayerState, lease: Lease) -> Verdict:
    return policy.after_overdue(_policy(hand, lease.job), lease.job)


def _burial(job: Job) -> EngineRequest:
    wanted = JobFilter(ids=(job.id,), states=(State.WAITING,), expired=True, version=job.version)
    return EngineRequest("amend", wanted, policy.after_expiry(job))


def _pause(hand: PlayerState) -> Part:
    queue = hand.queues["plain"]
    yield from insist(hand, EngineRequest("declare", replace(queue, paused=True)))
    yield Rest(hand.dice.randint(100, 2_000))
    yield from insist(hand, EngineRequest("declare", queue))


def _act(hand: PlayerState, id_: str) -> tuple[JobFilter, Amendment]:
    dice = hand.dice
    finished = (State.DEAD, State.CANCELLED, State.DONE)
    acts: Sequence[tuple[tuple[State, ...] | None, Amendment]] = (
        (None, Cancel(by=hand.name)),
        (finished, Redrive(by=hand.name, delay_ms=dice.choice((0, 500)))),
        (None, BuryWaiting(by=hand.name)),
        (None, Edit(by=hand.name, payload=f"edited {id_} {dice.random()}".encode())),
        (None, Edit(by=hand.name, priority=1, expires_ms=20_000)),
        (None, Move(queue=dice.choice(QUEUES), by=hand.name)),
        (None, Retime(delay_ms=dice.randint(0, 3_000), by=hand.name)),
        (None, Expedite(by=hand.name)),
        (None, Delete(force=hand.chance(0.3))),
    )
    states, amendment = dice.choice(acts)
    return JobFilter(ids=(id_,), states=states), amendment
