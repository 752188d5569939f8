"""A job's timeline: from its own columns and from its event rows."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.core.amend import amend
from holdfast.core.lifecycle import apply, timeline
from holdfast.core.model import Event, EventKind, Failure, Job, Queue, Reason, State
from holdfast.core.verdict import (
    Bury,
    BuryWaiting,
    Cancel,
    Expedite,
    Forward,
    Release,
    Retry,
    Verdict,
)

JOB = Job(id="a", task="t", queue="q", created_at=10)


def test_the_happy_path_is_told_by_the_jobs_own_columns() -> None:
    done = replace(JOB, state=State.DONE, attempt=1, worker="w", leased_at=20, finished_at=30)
    assert timeline(done) == (
        Event(at=10, kind=EventKind.ENQUEUED),
        Event(at=20, kind=EventKind.LEASED, attempt=1, by="w"),
        Event(at=30, kind=EventKind.COMPLETED, attempt=1, by="w", started_at=20),
    )


def test_a_waiting_job_was_only_enqueued() -> None:
    assert timeline(JOB) == (Event(at=10, kind=EventKind.ENQUEUED),)


def test_a_dead_job_is_not_told_as_completed() -> None:
    buried = Event(at=30, kind=EventKind.BURIED, attempt=1)
    dead = replace(JOB, state=State.DEAD, attempt=1, leased_at=20, finished_at=30, events=(buried,))
    assert [event.kind for event in timeline(dead)] == ["enqueued", "leased", "buried"]


def test_the_end_of_each_attempt_tells_its_start() -> None:
    leased = replace(JOB, state=State.LEASED, attempt=1, leased_at=20, worker="w1", token=1)
    queue = Queue(name=JOB.queue)
    ends: list[tuple[Verdict, EventKind]] = [
        (Retry(0, Failure(message="no")), EventKind.RETRIED),
        (Release("busy"), EventKind.RELEASED),
        (Bury(Reason.REJECTED), EventKind.BURIED),
        (Forward("q"), EventKind.FORWARDED),
    ]
    for verdict, kind in ends:
        change = apply(leased, verdict, queue, 30)
        assert change is not None
        event = change.event
        assert event is not None
        assert (event.kind, event.by, event.started_at, event.at) == (kind, "w1", 20, 30)
    done = replace(leased, state=State.DONE, finished_at=30)
    assert [event.started_at for event in timeline(done)] == [None, None, 20]


def test_an_operators_act_on_a_waiting_job_tells_no_start() -> None:
    waiting = replace(JOB, attempt=1, leased_at=20, worker="w1", token=1)
    for act in (Cancel(by="ann"), BuryWaiting(by="ann"), Expedite(by="ann")):
        change = amend(waiting, act, Queue(name=JOB.queue), 30)
        assert change is not None
        assert change.event is not None
        assert change.event.started_at is None


def test_an_event_of_an_older_version_has_no_start() -> None:
    stored = b'{"at":30,"kind":"retried","attempt":1,"by":"w1"}'
    event = msgspec.json.decode(stored, type=Event)
    assert event.started_at is None
    assert msgspec.json.encode(event) == stored


def test_rows_of_one_millisecond_stay_in_their_order() -> None:
    rows = tuple(
        Event(at=10, kind=kind)
        for kind in (EventKind.RETRIED, EventKind.EDITED, EventKind.CANCELLED)
    )
    told = timeline(replace(JOB, events=rows))
    assert [event.kind for event in told] == ["enqueued", "retried", "edited", "cancelled"]


@given(st.lists(st.integers(0, 50).map(lambda at: Event(at=at, kind=EventKind.RETRIED))))
def test_every_row_is_told_once_and_in_time(rows: list[Event]) -> None:
    job = replace(JOB, leased_at=25, events=tuple(rows))
    told = timeline(job)
    assert len(told) == len(rows) + 2
    assert [event.at for event in told] == sorted(event.at for event in told)
