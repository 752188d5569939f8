"""What random histories are made of: strategies for every argument of an engine.

The world is small on purpose: few ids, keys and queues, so that they meet. Each argument is one of
some hundred prepared values, the plainest first: one draw each keeps histories long, and shrinking
leads to plain ones. `hostile` has what is only bad; here most is good, or little would happen.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, TypeVar

from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.core.backoff import Backoff
from holdfast.core.flow import Limit, Rate
from holdfast.core.model import (
    Failure,
    FailureKind,
    JobFilter,
    LeaseRequest,
    NewJob,
    Note,
    Overrides,
    Queue,
    Reason,
    Record,
    State,
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
    Verdict,
)
from holdfast.testing import hostile

IDS = tuple(f"j{number}" for number in range(100))
"""Given out in this order, so that each history begins with `j0`."""
QUEUES = ("default", "q", "grave")
TASKS = ("x", "y")
LEASE_LENGTHS_MS = (30, 10, 100)
SHORT_MS = (0, 0, 0, 1, 5, 20, 60)
PARENT = "@"
"""Begins an id in `after` that is still to be found, by its number."""

_PAYLOADS = tuple(data for data in hostile.PAYLOADS if len(data) < 1_000)
_PATCHES = (b"{}", b'{"a":1}', b'{"a":null,"b":{"c":2}}', b'{"b":{"d":"\\u00e9"}}', b"[1]")
_TEXTS = (*hostile.STORABLE_TEXTS, *hostile.UNSTORABLE_TEXTS)
T = TypeVar("T")


class _Dice(random.Random):
    def mostly(self, usual: T, *others: T) -> T:
        return self.choice(others) if self.random() < 0.07 else usual

    def pairs(self) -> dict[str, str]:
        return {name: self.choice("12") for name in "lm" if self.random() < 0.4}

    def failure(self) -> Failure | None:
        kind, text = self.choice(tuple(FailureKind)), self.choice(_TEXTS)
        return self.choice((None, Failure(kind=kind, type="E", message=text, exit_code=1)))

    def queue_name(self) -> str:
        return self.mostly(self.choice(QUEUES), "nowhere")

    def parents(self) -> tuple[str, ...]:
        """Counted back from the job's own id: -1 is the one that comes after it, 0 itself."""
        if self.random() < 0.7:
            return ()
        count = self.choice((1, 1, 2, 3))
        places = [self.mostly(self.choice((1, 2, 3, 4, 6)), 0, -1, -1) for _ in range(count)]
        return tuple(f"{PARENT}{place}" for place in places)


def _prepared(count: int, make: Callable[[_Dice], T]) -> tuple[T, ...]:
    dice = _Dice(count)
    return tuple(make(dice) for _ in range(count))


def _new_job(dice: _Dice) -> NewJob:
    overrides = Overrides(
        lease_ms=dice.choice((None, *LEASE_LENGTHS_MS)),
        max_attempts=dice.choice((None, 0, 1)),
        backoff=dice.choice((None, Backoff(first_ms=5, jitter=0.0))),
    )
    return NewJob(
        id="-",
        task=dice.choice(TASKS),
        queue=dice.queue_name(),
        payload=dice.mostly(dice.choice(_PATCHES), *_PAYLOADS),
        priority=dice.mostly(dice.choice((0, 0, 1, -1, 100)), 101),
        delay_ms=dice.choice(SHORT_MS),
        expires_ms=dice.choice((None, None, None, None, None, dice.choice(SHORT_MS))),
        key=dice.choice((None, None, "k1", "k2")),
        key_window_ms=dice.choice((0, 20, 1_000)),
        key_policy=dice.choice(("keep", "replace", "merge")),
        tenant=dice.choice(("t1", "t1", "t2", None)),
        group=dice.choice((None, None, "g", "h")),
        labels=dice.pairs(),
        headers=dice.pairs(),
        overrides=dice.mostly(Overrides(), overrides),
        after=dice.parents(),
        after_on=dice.choice(("success", "success", "either", "death")),
        parent_death=dice.choice(("cancel", "run", "hold")),
    )


def _limit(dice: _Dice, name: str) -> Limit:
    """Under two names, which all queues share; each with a bound of the one sort or the other."""
    rate = Rate(
        count=dice.choice((1, 2, 3)), per_ms=dice.choice((10, 60)), burst=dice.choice((1, 1, 3))
    )
    bounds = dice.choice((1, 2, 3)), rate
    which = dice.choice(("concurrency", "concurrency", "rate", "both"))
    return Limit(
        name=name,
        task=dice.choice((None, None, None, "x")),
        key=dice.choice(("", "", "{tenant}", "{tenant}", "{task}", "{l}")),
        concurrency=None if which == "rate" else bounds[0],
        rate=None if which == "concurrency" else bounds[1],
    )


def _flowing(dice: _Dice, queue: Queue) -> Queue:
    names = dice.choice(((), ("l",), ("l",), ("m",), ("l", "m")))
    return replace(
        queue,
        limits=tuple(_limit(dice, name) for name in names),
        fairness=dice.choice(("off", "off", "shares", "noisy")),
        weights=dice.choice(({}, {"t1": 3})),
        aging_ms=dice.choice((None, None, 5, 50)),
        group_batch=dice.choice((1, 1, 2, 3)),
    )


def _flow_queue(dice: _Dice) -> Queue:
    return _flowing(dice, Queue(name=dice.choice(QUEUES[:2]), lease_ms=30))


def _queue(dice: _Dice) -> Queue:
    queue = _plain_queue(dice)
    return _flowing(dice, queue) if dice.random() < 0.6 else queue


def _plain_queue(dice: _Dice) -> Queue:
    return Queue(
        name=dice.choice(QUEUES),
        lease_ms=dice.choice(LEASE_LENGTHS_MS),
        max_attempts=dice.choice((0, 1, 2, 3)),
        order=dice.choice(("tail", "keep")),
        retention_ms=dice.choice((10_000, 0, 20)),
        dead_retention_ms=dice.choice((10_000, 0, 50)),
        dead_queue=dice.choice((None, None, "grave", "q", "nowhere")),
        max_depth=dice.mostly(None, 1, 3, 6),
        payload_max=dice.mostly(1_000, 10),
        accepting=dice.mostly(True, False),
        paused=dice.mostly(False, True),
    )


def _lease_request(dice: _Dice) -> LeaseRequest:
    names = tuple(dice.queue_name() for _ in range(dice.choice((1, 2, 3))))
    by_id = dice.random() < 0.15
    return LeaseRequest(
        queues=() if by_id else names,
        ids=tuple(dice.choices(IDS[:20], k=4)) if by_id else (),
        limit=dice.choice((1, 2, 5)),
        worker=dice.choice(("w1", "w2", "")),
        lease_ms=dice.choice((None, *LEASE_LENGTHS_MS)),
        tasks=dice.mostly(None, frozenset({"x"}), frozenset({"x", "y"}), frozenset()),
    )


def _note(dice: _Dice) -> Note | None:
    return Note(
        progress=dice.choice((None, 0.0, 0.5, 1.0)),
        checkpoint=dice.choice((None, dice.choice(_PAYLOADS))),
        output=dice.choice((None, dice.choice(_PAYLOADS))),
    )


def _follow_up(dice: _Dice) -> NewJob:
    """Its parents are among the first ids, and now and then itself."""
    new = _new_job(dice)
    after = tuple(dice.choice(IDS[:11]) for _ in new.after) if dice.random() < 0.5 else ()
    return replace(new, id=dice.choice(IDS[::5]), after=after)


def _verdict(dice: _Dice) -> Verdict:
    delay_ms = dice.choice(SHORT_MS)
    result = dice.choice((None, dice.choice(_PAYLOADS)))
    follow_ups = tuple(_follow_up(dice) for _ in range(2))
    verdicts: tuple[Verdict, ...] = (
        Complete(result),
        Complete(result, follow_ups),
        Retry(dice.mostly(delay_ms, -1), dice.failure()),
        Bury(dice.choice(tuple(Reason)), dice.failure()),
        Release(dice.choice(_TEXTS), delay_ms, dice.choice((False, True))),
        Forward(dice.queue_name()),
    )
    return dice.choice(verdicts)


def _amendment(dice: _Dice) -> Amendment:
    by, delay_ms = dice.choice(("", "ann")), dice.choice(SHORT_MS)
    edit = Edit(
        by=by,
        payload=dice.choice((None, dice.choice(_PAYLOADS))),
        priority=dice.choice((None, 0, 1, -100)),
        expires_ms=dice.choice((None, *SHORT_MS)),
        labels=dice.choice((None, dice.pairs())),
        headers=dice.choice((None, dice.pairs())),
    )
    acts: tuple[Amendment, ...] = (
        Cancel(by=by, text=dice.choice(_TEXTS)),
        Redrive(by=by, delay_ms=delay_ms),
        BuryWaiting(by=by, reason=dice.choice(tuple(Reason)), failure=dice.failure()),
        edit,
        Move(by=by, queue=dice.queue_name()),
        Retime(by=by, delay_ms=delay_ms),
        Expedite(by=by),
        Delete(force=dice.choice((False, True))),
    )
    return dice.choice(acts)


def _filter(dice: _Dice) -> JobFilter:
    """Few fields, or nothing would match."""
    fields: dict[str, Any] = {
        "ids": tuple(dice.choices(IDS[:20], k=5)),
        "queue": dice.queue_name(),
        "states": tuple(dice.sample(tuple(State), k=dice.choice((1, 3, 5)))),
        "task": dice.choice(TASKS),
        "tenant": dice.choice(("t1", "t2")),
        "group": dice.choice(("g", "h")),
        "key": dice.choice(("k1", "k2")),
        "worker": dice.choice(("w1", "w2")),
        "reason": dice.choice(tuple(Reason)),
        "labels": dice.pairs(),
        "search": dice.choice(("j1", "x", "k", "%", "t2")),
        "finished_before_ms": dice.choice(SHORT_MS),
        "expired": dice.choice((True, False)),
        "version": dice.choice((1, 2, 3, 4)),
    }
    names = dice.sample(tuple(fields), k=dice.choice((0, 1, 1, 2)))
    return JobFilter(**{name: fields[name] for name in names})


def _record(dice: _Dice) -> Record:
    return Record(
        kind=dice.choice(("setting", "worker")),
        key=dice.choice(("a", "B", "é")),
        value=dice.mostly(dice.choice(_PAYLOADS), None),
        version=dice.choice((0, 0, 1, 2, 3)),
    )


def _one_of(plain: tuple[T, ...], prepared: tuple[T, ...]) -> st.SearchStrategy[T]:
    """As often plain as not, because it is the plain ones that meet."""
    return st.sampled_from(plain) | st.integers(0, len(prepared) - 1).map(prepared.__getitem__)


_PLAIN_JOBS = (
    *(
        NewJob(id="-", task=task, queue=queue, payload=b"{}")
        for queue in QUEUES[:2]
        for task in TASKS
    ),
    NewJob(id="-", task="x", payload=b"{}", tenant="t1"),
    NewJob(id="-", task="x", payload=b"{}", group="g"),
    NewJob(id="-", task="x", payload=b"{}", after=(f"{PARENT}1",)),
)
_PLAIN_QUEUES = (
    Queue(name="default", lease_ms=30),
    Queue(name="q", lease_ms=30, dead_queue="grave"),
    Queue(name="default", lease_ms=30, order="keep"),
)
_PLAIN_VERDICTS: tuple[Verdict, ...] = (Retry(), Release(), Complete(), Bury(), Retry(5))

_FLOW_QUEUES = (
    Queue(name="default", lease_ms=30, limits=(Limit(name="l", concurrency=1),)),
    Queue(name="default", lease_ms=30, fairness="shares"),
    Queue(name="default", lease_ms=30, group_batch=2),
    *_prepared(80, _flow_queue),
)

_FLOW_JOBS = tuple(
    NewJob(id="-", task=task, queue=queue, payload=b"{}", tenant=tenant, group=group, after=after)
    for group in ("g", None, "h")
    for after in ((), (), (f"{PARENT}1",), (f"{PARENT}2", f"{PARENT}5"))
    for tenant in ("t1", "t2")
    for queue in QUEUES[:2]
    for task in TASKS
)

# Without an id: most are new, some are known already.
job_shapes = _one_of(_PLAIN_JOBS, _prepared(300, _new_job))
flow_shapes = st.sampled_from(_FLOW_JOBS)
queues = _one_of(_PLAIN_QUEUES, _prepared(150, _queue))
flow_queues = st.integers(0, len(_FLOW_QUEUES) - 1).map(_FLOW_QUEUES.__getitem__)
lease_requests = _one_of(
    (LeaseRequest(queues=QUEUES, limit=5, worker="w1"),), _prepared(100, _lease_request)
)
notes = _one_of((None,), _prepared(30, _note))
verdicts = _one_of(_PLAIN_VERDICTS, _prepared(200, _verdict))
amendments = _one_of((Cancel(), Redrive()), _prepared(200, _amendment))
filters = _one_of((JobFilter(),), _prepared(200, _filter))
records = _one_of((Record(kind="setting", key="a", value=b"1"),), _prepared(60, _record))
