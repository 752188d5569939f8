"""How many workers keep a queue's waiting time below a target: the arithmetic.

Pure. The advice never exceeds the number of jobs or what the queue's limits allow. Where too little
is known, it advises the current number.
"""

from __future__ import annotations

import math

import msgspec

from holdfast.core.text import counted, show_ms

SLOTS_MAX = 100_000
SLOTS_DEFAULT = 16
_ENDED_MIN = 10
"""If at least this many attempts ended and all failed, more workers would not help."""


class Activity(msgspec.Struct, frozen=True, kw_only=True):
    """The recent jobs of a queue. `arrivals` are jobs per second. `run_ms` is how long an attempt
    holds a slot, None if unknown; `attempts` is the mean number per job. Of the `ended` jobs
    `failed` died."""

    arrivals: float = 0.0
    run_ms: float | None = None
    attempts: float = 1.0
    ended: int = 0
    failed: int = 0


class Load(Activity, frozen=True, kw_only=True):
    """The current load of a queue. `oldest_age_ms` is None if no job waits, or if it is unknown.
    `slots` and `workers` serve the queue now. `slots_bound` and `rate_bound` are the limits of the
    queue."""

    waiting: int = 0
    leased: int = 0
    oldest_age_ms: int | None = None
    slots: int = 0
    workers: int = 0
    paused: bool = False
    slots_bound: int | None = None
    rate_bound: float | None = None


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """The target: jobs start within `wait_ms`, with workers of `worker_slots` slots each."""

    wait_ms: int = 30_000
    worker_slots: int = SLOTS_DEFAULT
    workers_min: int = 0
    workers_max: int = 1_000


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """The advised numbers and their reason. `wait_ms` estimates how long a job that arrives now
    would wait with the current slots; None if unknown."""

    slots: int
    workers: int
    wait_ms: int | None
    reason: str


def advise(load: Load, goal: Goal) -> Advice:
    """The number of slots that meets the goal, and the workers that provide them."""
    wait_ms = wait_of(load)
    if load.paused:
        return _advice(0, goal, wait_ms, "the queue is paused: no job starts")
    if load.run_ms is None:
        return _unknown(load, goal, wait_ms)
    if load.waiting and load.ended >= _ENDED_MIN and load.failed == load.ended:
        text = (
            f"all of the last {load.ended} attempts failed: more workers would only fail more often"
        )
        return _advice(load.slots, goal, wait_ms, text)
    if not load.waiting and not load.leased and load.arrivals == 0:
        return _advice(0, goal, wait_ms, "no job waits and none arrives")
    steady = steady_slots(load, goal.wait_ms)
    behind = backlog_slots(load, goal.wait_ms)
    text = (
        f"{load.arrivals:.2g} jobs/s of {show_ms(round(_service_ms(load)))} each fill"
        f" {counted(steady, 'slot')}"
        if steady >= behind
        else _waiting_text(load)
    )
    wanted = max(steady, behind)
    bound = _bound(load)
    if bound is not None and wanted > bound:
        return _advice(bound, goal, wait_ms, f"{text}; its limits allow {bound} at a time")
    return _advice(wanted, goal, wait_ms, text)


def steady_slots(load: Load, wait_ms: int) -> int:
    """The fewest slots that keep up with arrivals: the mean wait stays within `wait_ms` for random
    arrivals and run times (Erlang C)."""
    service_ms = _service_ms(load)
    busy = load.arrivals * service_ms / 1000
    if busy <= 0:
        return 0
    if busy >= SLOTS_MAX / 2:
        return SLOTS_MAX
    # Erlang B, the probability that all slots are busy, computed slot by slot.
    blocked = 1.0
    slots = 0
    while slots < SLOTS_MAX:
        slots += 1
        blocked = busy * blocked / (slots + busy * blocked)
        if slots > busy:
            waits = blocked / (1 - busy / slots * (1 - blocked))
            if waits * service_ms / (slots - busy) <= wait_ms:
                break
    return slots


def backlog_slots(load: Load, wait_ms: int) -> int:
    """The slots that start all waiting jobs, and those that arrive in the meantime, in the time
    left. For jobs that are already late, half of the target is assumed, so that the number stays
    finite; also if the age of the oldest is unknown, because it may be late.
    """
    if not load.waiting:
        return 0
    age_ms = wait_ms if load.oldest_age_ms is None else load.oldest_age_ms
    left_ms = max(wait_ms - age_ms, wait_ms / 2, 1)
    rounds = left_ms / _service_ms(load)
    due = load.waiting + load.arrivals * left_ms / 1000
    running = load.leased
    if due <= running * rounds:
        return math.ceil(due / rounds)
    # A free slot starts one job at once and then one more per round.
    more = (due - running * rounds) / (1 + rounds)
    return min(SLOTS_MAX, running + math.ceil(more), running + load.waiting + math.ceil(due))


def wait_of(load: Load) -> int | None:
    """How long a job that arrives now waits for those ahead of it; None if unknown."""
    if load.waiting == 0:
        return 0
    if load.run_ms is None or load.slots == 0 or load.paused:
        return None
    return round(load.waiting * _service_ms(load) / load.slots)


def _service_ms(load: Load) -> float:
    """The total time a job holds a slot over all its attempts; at least 1 ms."""
    return max(1.0, (load.run_ms or 0) * max(1.0, load.attempts))


def _waiting_text(load: Load) -> str:
    if load.oldest_age_ms is None:
        return f"{load.waiting} jobs wait, and for how long is unknown"
    age_ms = load.oldest_age_ms
    if age_ms >= 1000:
        age_ms -= age_ms % 1000
    return f"{load.waiting} jobs wait, the oldest for {show_ms(age_ms)}"


def _bound(load: Load) -> int | None:
    bounds = [] if load.slots_bound is None else [load.slots_bound]
    if load.rate_bound is not None:
        bounds.append(max(1, math.ceil(load.rate_bound * _service_ms(load) / 1000)))
    return min(bounds, default=None)


def _unknown(load: Load, goal: Goal, wait_ms: int | None) -> Advice:
    if not load.waiting and not load.leased:
        return _advice(0, goal, wait_ms, "no job waits, and none has ended yet")
    text = "jobs wait, but none has ended yet: their run time is unknown"
    return _advice(max(load.slots, 1), goal, wait_ms, text)


def _advice(slots: int, goal: Goal, wait_ms: int | None, reason: str) -> Advice:
    wanted = math.ceil(slots / max(1, goal.worker_slots))
    workers = min(max(wanted, goal.workers_min), goal.workers_max)
    if workers < wanted:
        reason += f"; {wanted} workers are needed, {goal.workers_max} are allowed"
    elif workers > wanted:
        reason += f"; at least {goal.workers_min} workers"
    return Advice(slots=slots, workers=workers, wait_ms=wait_ms, reason=reason)
