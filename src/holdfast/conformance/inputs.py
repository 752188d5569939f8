"""Inputs for tests of engines: hostile values for every interface, strategies for every argument.

Hostile storable values must be returned byte for byte; all others must be refused with a reason.
The strategies serve random histories. There are few ids, keys and queues on purpose, so that they
collide. Each argument is one of some hundred prepared values, the plainest first: one draw each
keeps histories long, and shrinking leads to plain values. Most values are valid, or little would
happen.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.core import bounds
from holdfast.core.backoff import Backoff
from holdfast.core.limits import Limit, Rate
from holdfast.core.model import (
    Failure,
    FailureKind,
    JobFilter,
    KeyHold,
    LeaseRequest,
    NewJob,
    Note,
    Overrides,
    Queue,
    Reason,
    Record,
    State,
    WaitingKind,
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

PAYLOADS: tuple[bytes, ...] = (
    b"",
    b"\x00",
    b"before\x00after",
    b"\xff\xfe\x80 not UTF-8 \xc3\x28",
    b"\xed\xa0\x80 a surrogate in UTF-8",
    b'"\\ud800"',
    b"NaN",
    b'{"n":NaN,"i":Infinity,"m":-Infinity}',
    b'{"n":1e400}',
    b'{"a":1,"a":2}',
    b"[" * 10_000 + b"]" * 10_000,
    b'{"n":123456789012345678901234567890}',
    b"'; DROP TABLE job; --",
    b"\\x00 \\001 %s %(a)s {0} $1 ?1 :a",
    b"\xef\xbb\xbf{}",
    b"\r\n\r\n\x1b[31m",
    "\u202ertl \U0001f4a3 \u00e9 e\u0301".encode(),
    bytes(range(256)),
    b"x" * bounds.QUEUE_PAYLOAD_MAX,
)
"""Payloads are opaque bytes: each of these is stored exactly."""

PAYLOAD_TOO_LARGE = b"x" * (bounds.PAYLOAD_MAX + 1)

STORABLE_TEXTS: tuple[str, ...] = (
    "'; DROP TABLE job; --",
    '"quoted" `ticks` [brackets]',
    "100%_wild\\card*?",
    "../../etc/passwd",
    "a/b c\td\ne\r\x1b[31m\x7f",
    "\u202ertl\u200b",
    "\u00e9 e\u0301 \u017f \u212a \ufb01",
    "\U0001f4a3\uffff\U0010ffff",
    "\x01\x02\u0085\u2028",
    " spaces ",
    "$1 ?1 :a %s {0}",
    "null",
    "NaN",
    "é" * (bounds.NAME_BYTES_MAX // 2),
)
"""Values for key, tenant, group, worker and label names: stored exactly and found again."""

UNSTORABLE_TEXTS: tuple[str, ...] = (
    "",
    "\x00",
    "before\x00after",
    "\ud800",
    "lone \udfff low",
    "x" * (bounds.NAME_BYTES_MAX + 1),
    "é" * (bounds.NAME_BYTES_MAX // 2 + 1),
)

QUEUE_NAMES: tuple[str, ...] = (
    "a",
    "Mail",
    "mail",
    "..",
    "-",
    "0",
    "select",
    "x" * 64,
    "y" * 80,
)
"""Odd but valid; each names a queue of its own, whatever the case of its letters."""

BAD_QUEUE_NAMES: tuple[str, ...] = (
    "",
    " ",
    "a b",
    "it's",
    'say "so"',
    "a/b",
    "../up",
    "'; DROP TABLE job; --",
    "\u202egnirts",
    "é",
    "a\x00b",
    "\ud800",
    "line\n",
    "z" * 81,
    "%",
    "*",
)

ERROR_TEXTS: tuple[str, ...] = (
    *(text for text in UNSTORABLE_TEXTS if text),
    *STORABLE_TEXTS,
    "\x00" * 100,
    "trace\n" * 10_000,
)
"""Texts of exceptions: cleaned and cut, never refused."""

HUGE_NUMBERS: tuple[int, ...] = (2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**30)

_GOOD: dict[str, Any] = {"id": "bad", "task": "t"}

BAD_JOBS: tuple[tuple[str, NewJob], ...] = (
    *(("invalid_job", NewJob(**_GOOD | {"id": id_})) for id_ in ("", "a b", "é", "\x00", "\ud800")),
    ("invalid_job", NewJob(**_GOOD | {"id": "x" * 129})),
    *(("invalid_job", NewJob(**_GOOD | {"task": t})) for t in ("", "a b", "\x00", "x" * 201)),
    *(("invalid_queue", NewJob(**_GOOD, queue=name)) for name in BAD_QUEUE_NAMES),
    ("unknown_queue", NewJob(**_GOOD, queue="nowhere")),
    ("unknown_queue", NewJob(**_GOOD, queue="DEFAULT")),
    ("payload_too_large", NewJob(**_GOOD, payload=PAYLOAD_TOO_LARGE)),
    *(("invalid_job", NewJob(**_GOOD, priority=number)) for number in (-101, 101, *HUGE_NUMBERS)),
    *(("invalid_job", NewJob(**_GOOD, delay_ms=number)) for number in (-1, *HUGE_NUMBERS)),
    *(("invalid_job", NewJob(**_GOOD, expires_ms=number)) for number in (-1, *HUGE_NUMBERS)),
    *(("invalid_job", NewJob(**_GOOD, key=text)) for text in UNSTORABLE_TEXTS),
    *(("invalid_job", NewJob(**_GOOD, tenant=text)) for text in UNSTORABLE_TEXTS),
    *(("invalid_job", NewJob(**_GOOD, group=text)) for text in UNSTORABLE_TEXTS),
    *(("invalid_job", NewJob(**_GOOD, labels={text: "v"})) for text in UNSTORABLE_TEXTS),
    ("invalid_job", NewJob(**_GOOD, key="k", key_window_ms=-1)),
    ("invalid_job", NewJob(**_GOOD, key="k", key_hold=cast("KeyHold", "never"))),
    ("invalid_job", NewJob(**_GOOD, labels={"a": "\x00"})),
    ("invalid_job", NewJob(**_GOOD, headers={"a": "\ud800"})),
    ("invalid_job", NewJob(**_GOOD, labels={"a": "x" * (bounds.PAIR_VALUE_BYTES_MAX + 1)})),
    ("invalid_job", NewJob(**_GOOD, labels={f"l{n}": "" for n in range(bounds.PAIRS_MAX + 1)})),
    ("invalid_job", NewJob(**_GOOD, headers={f"h{n}": "x" * 4096 for n in range(16)})),
    *(("invalid_job", NewJob(**_GOOD, content_type=t)) for t in ("", "a\x00", "é", "x" * 128)),
)
"""Invalid jobs with the code of their refusal; the queue `default` exists, `nowhere` does not."""

any_texts: Final = st.sampled_from((*STORABLE_TEXTS, *UNSTORABLE_TEXTS)) | st.text(max_size=40)
small_payloads: Final = st.sampled_from(
    [data for data in PAYLOADS if len(data) < 1_000]
) | st.binary(max_size=60)
payloads: Final = st.sampled_from(PAYLOADS) | st.binary(max_size=300)


IDS = tuple(f"j{number}" for number in range(100))
"""Ids are used in this order, so that each history begins with `j0`."""
QUEUES = ("default", "q", "grave")
TASKS = ("x", "y")
LEASE_LENGTHS_MS = (30, 10, 100)
SHORT_MS = (0, 0, 0, 1, 5, 20, 60)
PARENT = "@"
"""Prefix of a parent in `after` that is resolved later, by its number."""

_PAYLOADS = tuple(data for data in PAYLOADS if len(data) < 1_000)
_PATCHES = (b"{}", b'{"a":1}', b'{"a":null,"b":{"c":2}}', b'{"b":{"d":"\\u00e9"}}', b"[1]")
_TEXTS = (*STORABLE_TEXTS, *UNSTORABLE_TEXTS)
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
        """Parents counted back from the job's own id: -1 is the job after it, 0 itself."""
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
        key_hold=dice.choice(("job", "job", "window")),
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
    """A limit under one of two names that all queues share, by concurrency or by rate."""
    rate = Rate(
        count=dice.choice((1, 2, 3)), per_ms=dice.choice((10, 60)), burst=dice.choice((1, 1, 3))
    )
    concurrency = dice.choice((1, 2, 3))
    which = dice.choice(("concurrency", "concurrency", "rate", "both"))
    return Limit(
        name=name,
        task=dice.choice((None, None, None, "x")),
        key=dice.choice(("", "", "{tenant}", "{tenant}", "{task}", "{l}")),
        concurrency=None if which == "rate" else concurrency,
        rate=None if which == "concurrency" else rate,
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
        expires_ms=dice.mostly(None, 5, 40),
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
        dead=dice.random() < 0.25,
    )


def _note(dice: _Dice) -> Note | None:
    return Note(
        progress=dice.choice((None, 0.0, 0.5, 1.0)),
        checkpoint=dice.choice((None, dice.choice(_PAYLOADS))),
        output=dice.choice((None, dice.choice(_PAYLOADS))),
    )


def _follow_up(dice: _Dice) -> NewJob:
    """A follow-up job; its parents are among the first ids, sometimes itself."""
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
        Retime(by=by, delay_ms=delay_ms, text=dice.choice(_TEXTS)),
        Expedite(by=by, text=dice.choice(_TEXTS)),
        Delete(force=dice.choice((False, True))),
    )
    return dice.choice(acts)


def _filter(dice: _Dice) -> JobFilter:
    """A filter with few fields, so that something matches."""
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
        "waiting": tuple(dice.sample(tuple(WaitingKind), k=dice.choice((1, 2)))),
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
    """Plain values half of the time, because those collide."""
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

# Without an id: most jobs are new, some are known already.
job_shapes: Final = _one_of(_PLAIN_JOBS, _prepared(300, _new_job))
flow_shapes: Final = st.sampled_from(_FLOW_JOBS)
queues: Final = _one_of(_PLAIN_QUEUES, _prepared(150, _queue))
flow_queues: Final = st.integers(0, len(_FLOW_QUEUES) - 1).map(_FLOW_QUEUES.__getitem__)
lease_requests: Final = _one_of(
    (LeaseRequest(queues=QUEUES, limit=5, worker="w1"),), _prepared(100, _lease_request)
)
notes: Final = _one_of((None,), _prepared(30, _note))
verdicts: Final = _one_of(_PLAIN_VERDICTS, _prepared(200, _verdict))
amendments: Final = _one_of((Cancel(), Redrive()), _prepared(200, _amendment))
filters: Final = _one_of((JobFilter(),), _prepared(200, _filter))
records: Final = _one_of((Record(kind="setting", key="a", value=b"1"),), _prepared(60, _record))
