"""Dead messages of a broker: the outcome follows from the ledger alone."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core import bounds, checks
from holdfast.core.dead_messages import (
    OUTCOMES,
    DeadOutcome,
    history_text,
    is_ours,
    judge_message,
    left_ms,
    rejected_id,
)
from holdfast.core.model import Job, Reason, State
from tests.unit.core.strategies import jobs


def job(state: State, *, queue: str = "worker.a", **fields: object) -> Job:
    return Job(id="j", task="t", queue=queue, state=state, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("known", "is_expired", "outcome"),
    [
        (None, False, DeadOutcome.MISSING),
        (job(State.DONE), False, DeadOutcome.FINISHED),
        (job(State.DEAD, queue="grave"), False, DeadOutcome.FINISHED),
        (job(State.CANCELLED), False, DeadOutcome.FINISHED),
        (job(State.LEASED, reason=Reason.EXPIRED), False, DeadOutcome.FINISHED),
        (job(State.LEASED), False, DeadOutcome.LEASED),
        (job(State.WAITING, queue="worker.b"), True, DeadOutcome.MOVED),
        (job(State.WAITING, queue="worker.b"), False, DeadOutcome.MOVED),
        (job(State.WAITING), False, DeadOutcome.REDELIVERED),
        (job(State.WAITING), True, None),
    ],
)
def test_the_outcome_of_a_message(
    known: Job | None, is_expired: bool, outcome: DeadOutcome | None
) -> None:
    assert judge_message("worker.a", known, is_expired=is_expired) is outcome


@given(jobs(), st.booleans())
def test_only_a_job_that_waits_in_that_queue_past_its_expiry_is_ended(
    known: Job, is_expired: bool
) -> None:
    outcome = judge_message("worker.a", known, is_expired=is_expired)
    waits = known.state is State.WAITING and known.queue == "worker.a"
    assert (outcome is None) == (waits and is_expired)


@pytest.mark.parametrize(
    ("expires_at", "left"), [(None, None), (0, 1_000), (1_001, 1_000), (9_000, 8_000)]
)
def test_the_time_that_is_left(expires_at: int | None, left: int | None) -> None:
    assert left_ms(job(State.WAITING, expires_at=expires_at), 1_000) == left


@given(st.none() | st.text(), st.text() | st.text().map(lambda text: f"worker.{text}"))
def test_a_message_of_ours_names_a_job_and_a_worker(id: str | None, queue: str) -> None:
    if is_ours(id, queue):
        assert id is not None
        assert bounds.JOB_ID.match(id)
        assert bounds.QUEUE_NAME.match(queue)
        assert queue.startswith("worker.")
        assert len(queue) > len("worker.")


@settings(max_examples=30)
@given(
    st.lists(
        st.dictionaries(
            st.text(), st.none() | st.text() | st.floats() | st.binary() | st.lists(st.integers())
        )
    )
)
def test_any_history_is_bounded_and_printable(history: list[dict[str, object]]) -> None:
    text = history_text(history)
    assert bool(text) == bool(history)
    assert len(text) < 2_100
    assert text.replace("…", "").isascii()
    assert checks.clean_text(text) == text


MESSAGE = st.fixed_dictionaries(
    {
        "queue": st.text(max_size=100),
        "reason": st.text(max_size=100),
        "body": st.binary(max_size=50),
        "content_type": st.text(max_size=20),
        "headers": st.dictionaries(st.text(), st.text()),
        "history": st.lists(st.dictionaries(st.text(), st.text())),
    }
)


@given(MESSAGE, MESSAGE)
def test_a_message_that_is_kept_has_an_id_of_its_own(
    one: dict[str, Any], two: dict[str, Any]
) -> None:
    assert bounds.JOB_ID.match(rejected_id(**one))
    assert (rejected_id(**one) == rejected_id(**two)) == (one == two)
    again = {**one, "headers": {**one["headers"], "x-delivery-count": "3"}}
    assert rejected_id(**again) == rejected_id(**{**one, "headers": one["headers"]})


def test_every_outcome_is_described() -> None:
    assert list(OUTCOMES) == list(DeadOutcome)
