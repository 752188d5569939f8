"""Amendments: the states each applies to, and properties that hold for every job."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.conformance.inputs import amendments
from holdfast.core import amend, bounds
from holdfast.core.model import Event, EventKind, Job, JobFilter, Queue, Reason, State
from holdfast.core.verdict import (
    Amendment,
    BuryWaiting,
    Cancel,
    Delete,
    Edit,
    Expedite,
    Move,
    Redrive,
    Retime,
)
from tests.unit.core.strategies import NOW, jobs, queues

QUEUE = Queue(name="q")
WAITING = Job(id="a", task="t", queue="q", token=7, attempt=2, due_at=NOW - 5, version=3)
ANY = JobFilter(states=tuple(State))


@pytest.mark.parametrize(
    ("act", "states"),
    [
        (Cancel(), "waiting leased"),
        (Redrive(), "done dead cancelled"),
        (BuryWaiting(), "waiting"),
        (Retime(delay_ms=1), "waiting"),
        (Expedite(), "waiting"),
        (Edit(), "waiting dead"),
        (Move(queue="r"), "waiting dead"),
        (Delete(), "waiting done dead cancelled"),
        (Delete(force=True), "waiting done dead cancelled leased"),
    ],
    ids=str,
)
def test_each_act_has_its_states(act: Amendment, states: str) -> None:
    assert " ".join(amend.amendable(act, ANY)) == states
    only = JobFilter(states=(State.DONE, State.LEASED))
    assert set(amend.amendable(act, only)) == {State.DONE, State.LEASED} & set(states.split())
    assert amend.amendable(act, JobFilter(states=())) == ()


def test_a_redrive_that_names_no_state_means_dead_letters() -> None:
    assert amend.amendable(Redrive(), JobFilter()) == (State.DEAD,)


@given(queues, jobs(), amendments)
def test_what_every_act_has_in_common(queue: Queue, job: Job, act: Amendment) -> None:
    if job.state not in amend.amendable(act, ANY):
        return
    change = amend.amend(job, act, queue, NOW)
    if change is None:
        assert isinstance(act, Delete)
        return
    assert change.event is not None
    assert (change.event.at, change.event.attempt) == (NOW, job.attempt)
    assert change.job.version == job.version + 1
    assert change.job.id == job.id
    if job.state is State.LEASED:
        assert change.job == replace(job, cancel_requested=True, version=job.version + 1)
    else:
        assert change.job.token is None
        assert change.job.state is not State.LEASED
    assert change.job.payload == job.payload or isinstance(act, Edit)
    assert change.forgets == (isinstance(act, Edit) and act.payload is not None)
    resumed = (None, None) if change.forgets else (job.progress, job.checkpoint)
    assert (change.job.progress, change.job.checkpoint) == resumed


@given(jobs(State.DONE, State.DEAD, State.CANCELLED), st.integers(0, 9))
def test_a_redriven_job_starts_again_with_its_history(job: Job, delay_ms: int) -> None:
    change = amend.amend(job, Redrive(by="ann", delay_ms=delay_ms), QUEUE, NOW)
    assert change is not None
    again = change.job
    assert (again.state, again.due_at, change.tail) == (State.WAITING, NOW + delay_ms, True)
    assert (again.attempt, again.crashes, again.releases) == (0, 0, 0)
    assert (again.expires_at, again.finished_at, again.reason, again.result) == (None,) * 4
    assert not again.cancel_requested
    assert not again.alone
    assert (again.created_at, again.payload, again.key) == (job.created_at, job.payload, job.key)


def test_cancel() -> None:
    change = amend.amend(WAITING, Cancel(by="ann", text="why"), QUEUE, NOW)
    assert change is not None
    assert change.job == replace(
        WAITING, state=State.CANCELLED, finished_at=NOW, token=None, version=4
    )
    assert change.event == Event(at=NOW, kind=EventKind.CANCELLED, attempt=2, by="ann", text="why")


def test_bury_stays_or_moves() -> None:
    change = amend.amend(WAITING, BuryWaiting(by="ann"), QUEUE, NOW)
    assert change is not None
    assert (change.job.state, change.job.reason) == (State.DEAD, Reason.EXPLICIT)
    queue = replace(QUEUE, dead_queue="grave")
    change = amend.amend(WAITING, BuryWaiting(by="ann"), queue, NOW)
    assert change is not None
    assert (change.job.state, change.job.queue, change.job.attempt) == ("dead", "grave", 2)
    assert (change.job.origin, change.job.due_at) == ("q", min(WAITING.due_at, NOW))


def test_edit_changes_only_what_is_given() -> None:
    change = amend.amend(WAITING, Edit(payload=b"", expires_ms=0), QUEUE, NOW)
    assert change is not None
    assert change.job == replace(WAITING, payload=b"", expires_at=NOW, token=None, version=4)
    assert change.event is not None
    assert change.event.text == "expires_at, payload"
    assert not change.tail


def test_move_keeps_state_and_attempts() -> None:
    dead = replace(WAITING, state=State.DEAD, finished_at=5, reason=Reason.ATTEMPTS)
    for job in (WAITING, dead):
        change = amend.amend(job, Move(queue="r"), QUEUE, NOW)
        assert change is not None
        origin = "q" if job is WAITING else None
        assert change.job == replace(job, queue="r", origin=origin, token=None, version=4)
        assert change.tail


def test_a_redrive_returns_a_dead_letter_to_an_origin_that_exists() -> None:
    dead = replace(WAITING, state=State.DEAD, origin="o", reason=Reason.ATTEMPTS)
    for job, known, expected in (
        (dead, ("o", "q"), ("o", None)),
        (dead, ("q",), ("q", "o")),
        (replace(dead, origin=None), ("q",), ("q", None)),
        (replace(dead, state=State.DONE), ("o", "q"), ("q", "o")),
    ):
        change = amend.amend(job, Redrive(), QUEUE, NOW, known)
        assert change is not None
        assert (change.job.queue, change.job.origin) == expected


def test_retime_and_expedite() -> None:
    change = amend.amend(WAITING, Retime(delay_ms=9), QUEUE, NOW)
    assert change is not None
    assert (change.job.due_at, change.tail) == (NOW + 9, True)
    for due_at, expected in ((NOW - 5, NOW - 5), (NOW + 5, NOW)):
        change = amend.amend(replace(WAITING, due_at=due_at), Expedite(), QUEUE, NOW)
        assert change is not None
        assert (change.job.due_at, change.job.priority) == (expected, bounds.PRIORITY_MAX)
        assert not change.tail
