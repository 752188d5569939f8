"""A waiting job when a later one arrives with its key: replaced or merged."""

from msgspec.structs import replace

from holdfast.core import lifecycle
from holdfast.core.model import EventKind, Job, NewJob, Queue, State
from tests.unit.core.strategies import NOW

JOB = Job(id="a", task="t", queue="q", state=State.LEASED, token=7, attempt=1, worker="w")


def test_replacing_takes_over_everything_but_identity_and_history() -> None:
    old = replace(
        JOB,
        state=State.WAITING,
        created_at=5,
        key="k",
        version=4,
        leased_at=6,
        alone=True,
        progress=0.5,
        checkpoint=b"c",
        output=b"o",
    )
    new = NewJob(
        id="b", task="u", queue="q", payload=b"2", priority=3, delay_ms=9, expires_ms=20, key="k"
    )
    change = lifecycle.replace_waiting(old, new, NOW)
    assert change.job == Job(
        id="a",
        task="u",
        queue="q",
        payload=b"2",
        priority=3,
        version=5,
        attempt=1,
        created_at=5,
        due_at=NOW + 9,
        expires_at=NOW + 20,
        leased_at=6,
        worker="w",
        alone=True,
        key="k",
        output=b"o",
    )
    assert change.tail
    assert change.forgets
    assert change.event is not None
    assert change.event.kind is EventKind.REPLACED


def test_merging_changes_the_payload_alone() -> None:
    old = replace(JOB, state=State.WAITING, version=4, alone=True, output=b"o")
    noted = replace(old, progress=0.5, checkpoint=b"c")
    change = lifecycle.merge_waiting(noted, b"m", NOW)
    assert change.job == replace(old, payload=b"m", token=None, version=5)
    assert change.forgets
    assert not change.tail


def test_a_job_that_was_moved_on_is_out_of_reach_of_its_key() -> None:
    moved = replace(JOB, state=State.WAITING, queue="elsewhere")
    for policy in ("replace", "merge"):
        new = NewJob(id="new", task=moved.task, queue="q", key_policy=policy, payload=b"{}")
        assert lifecycle.apply_key_policy(moved, new, Queue(name="q"), NOW) is None
