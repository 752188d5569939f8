"""What random histories are made of: Hypothesis strategies for every argument of an engine.

The world is small on purpose: few ids, keys and queues, so that they meet.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from holdfast.core.backoff import Backoff
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

IDS = tuple(f"j{number}" for number in range(14))
QUEUES = ("default", "q", "grave")
TASKS = ("x", "y")
WORKERS = ("w1", "w2", "")

ids = st.sampled_from(IDS)
queue_names = st.sampled_from((*QUEUES, "nowhere"))
short_ms = st.sampled_from((0, 0, 1, 5, 20, 60))
priorities = st.sampled_from((0, 0, 0, 1, -1, 100))
lease_lengths_ms = st.sampled_from((10, 30, 100))
pairs = st.dictionaries(st.sampled_from("lm"), st.sampled_from(("1", "2")), max_size=2)

failures = st.builds(
    Failure,
    kind=st.sampled_from(FailureKind),
    type=st.sampled_from(("", "ValueError")),
    message=hostile.any_texts,
    exit_code=st.none() | st.integers(-1, 255),
)

overrides = st.builds(
    Overrides,
    lease_ms=st.none() | lease_lengths_ms,
    max_attempts=st.none() | st.integers(0, 2),
    backoff=st.none() | st.just(Backoff(first_ms=5, jitter=0.0)),
)

new_jobs = st.builds(
    NewJob,
    id=ids,
    task=st.sampled_from(TASKS),
    queue=st.sampled_from(QUEUES) | queue_names,
    payload=hostile.json_payloads | hostile.small_payloads,
    priority=priorities | st.just(101),
    delay_ms=short_ms,
    expires_ms=st.none() | st.none() | short_ms,
    key=st.none() | st.sampled_from(("k1", "k2")),
    key_window_ms=st.sampled_from((0, 20, 1_000)),
    key_policy=st.sampled_from(("keep", "replace", "merge")),
    tenant=st.none() | st.sampled_from(("t1", "t2")),
    group=st.none() | st.just("g"),
    labels=pairs,
    headers=pairs,
    overrides=st.just(Overrides()) | overrides,
)

queues = st.builds(
    Queue,
    name=st.sampled_from(QUEUES),
    lease_ms=lease_lengths_ms,
    max_attempts=st.integers(0, 3),
    order=st.sampled_from(("tail", "keep")),
    retention_ms=st.sampled_from((0, 20, 10_000)),
    dead_retention_ms=st.sampled_from((0, 50, 10_000)),
    dead_queue=st.none() | st.sampled_from((*QUEUES, "nowhere")),
    max_depth=st.none() | st.none() | st.integers(1, 6),
    payload_max=st.sampled_from((1_000, 1_000, 10)),
    accepting=st.sampled_from((True, True, True, False)),
    paused=st.sampled_from((False, False, False, True)),
)

_asked = {
    "limit": st.integers(1, 5),
    "worker": st.sampled_from(WORKERS),
    "lease_ms": st.none() | lease_lengths_ms,
    "tasks": st.none() | st.none() | st.frozensets(st.sampled_from(TASKS)),
}
lease_requests = st.builds(
    LeaseRequest,
    queues=st.lists(queue_names, min_size=1, max_size=3).map(tuple),
    **_asked,
) | st.builds(
    LeaseRequest,
    ids=st.lists(ids, min_size=1, max_size=4).map(tuple),
    **_asked,
)

notes = st.none() | st.builds(
    Note,
    progress=st.none() | st.sampled_from((0.0, 0.5, 1.0)),
    checkpoint=st.none() | hostile.small_payloads,
    output=st.none() | hostile.small_payloads,
)

verdicts: st.SearchStrategy[Verdict] = st.one_of(
    st.builds(
        Complete,
        result=st.none() | hostile.small_payloads,
        then=st.just(()) | st.lists(new_jobs, max_size=2).map(tuple),
    ),
    st.builds(Retry, delay_ms=short_ms | st.just(-1), failure=st.none() | failures),
    st.builds(Bury, reason=st.sampled_from(Reason), failure=st.none() | failures),
    st.builds(Release, text=hostile.any_texts, delay_ms=short_ms),
    st.builds(Forward, queue=queue_names),
)

_by = st.sampled_from(("", "ann"))
amendments: st.SearchStrategy[Amendment] = st.one_of(
    st.builds(Cancel, by=_by, text=hostile.any_texts),
    st.builds(Redrive, by=_by, delay_ms=short_ms),
    st.builds(BuryWaiting, by=_by, reason=st.sampled_from(Reason), failure=st.none() | failures),
    st.builds(
        Edit,
        by=_by,
        payload=st.none() | hostile.small_payloads,
        priority=st.none() | priorities,
        expires_ms=st.none() | short_ms,
        labels=st.none() | pairs,
        headers=st.none() | pairs,
    ),
    st.builds(Move, by=_by, queue=queue_names),
    st.builds(Retime, by=_by, delay_ms=short_ms),
    st.builds(Expedite, by=_by),
    st.builds(Delete, force=st.booleans()),
)


def _filter(fields: dict[str, Any]) -> JobFilter:
    return JobFilter(**fields)


filters: st.SearchStrategy[JobFilter] = st.fixed_dictionaries(
    {},
    optional={
        "ids": st.lists(ids, max_size=5).map(tuple),
        "queue": queue_names,
        "states": st.lists(st.sampled_from(State), max_size=3).map(tuple),
        "task": st.sampled_from(TASKS),
        "tenant": st.sampled_from(("t1", "t2")),
        "key": st.sampled_from(("k1", "k2")),
        "worker": st.sampled_from(("w1", "w2")),
        "reason": st.sampled_from(Reason),
        "labels": pairs,
        "search": st.sampled_from(("j1", "x", "k", "%", "t2")),
        "finished_before_ms": short_ms,
        "expired": st.booleans(),
        "version": st.integers(1, 5),
    },
).map(_filter)

records = st.builds(
    Record,
    kind=st.sampled_from(("setting", "worker")),
    key=st.sampled_from(("a", "B", "é")),
    value=st.none() | hostile.small_payloads,
    version=st.integers(0, 3),
)
