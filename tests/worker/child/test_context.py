"""The Context of a job, without a runner."""

import threading
import time
from typing import Any

import pytest

from holdfast.core import bounds
from holdfast.core.model import NewJob
from holdfast.engines.sqs.delivery import SqsDelivery
from holdfast.errors import InvalidJob, UsageError
from holdfast.worker.child.context import CallState, Context
from holdfast.worker.wire import NoteUpdate
from tests.worker.child_driver import given_job


def make(**fields: Any) -> tuple[Context, CallState]:
    state = CallState("sample", number=3)
    return Context(given_job(None, **fields), state, 1), state


def test_it_shows_its_job() -> None:
    context, _ = make(
        id="j9",
        attempt=2,
        last=True,
        token=5,
        tenant="acme",
        key="k",
        labels={"a": "b"},
        headers={"h": "1"},
        created_at=99,
    )
    assert (context.id, context.queue, context.task) == ("j9", "q", "sample")
    assert (context.attempt, context.last, context.token) == (2, True, 5)
    assert (context.tenant, context.key, context.created_at) == ("acme", "k", 99)
    assert (context.labels, context.headers) == ({"a": "b"}, {"h": "1"})


def test_it_shows_its_message_on_sqs_only() -> None:
    context, _ = make(headers={"sqs.message-id": "forged"})
    assert context.sqs is None
    context, _ = make(sqs=SqsDelivery("m", "q", "u", "a", "h", 5, True))
    assert context.sqs is not None
    assert (context.sqs.message_id, context.sqs.visible_at, context.sqs.poison) == ("m", 5, True)


def test_it_asks_for_more_time() -> None:
    context, state = make()
    context.more_time("1m")
    assert context.take_note() is None, "it has no timeout"
    began = time.monotonic()
    state.timeout_ms, state.ends_at = 10_000, began + 5
    context.more_time(1)
    assert (context.take_note(), state.timeout_ms) == (None, 10_000), "it is later already"
    context.more_time("1m")
    note, deadline = context.take_note(), context.deadline
    passed_s = time.monotonic() - began
    assert note is not None
    assert 64_999 <= (note.timeout_ms or 0) <= 65_001 + passed_s * 1_000
    assert (note.number, note.progress, note.output) == (3, None, None)
    assert 60 - passed_s <= (deadline or 0) <= 60
    assert context.take_note() is None, "it is told once"
    with pytest.raises(UsageError, match="duration"):
        context.more_time("soon")


def test_deadline_counts_down_to_zero() -> None:
    context, state = make()
    assert context.deadline is None
    context, state = make()
    state.ends_at = time.monotonic() + 1_000
    assert context.deadline is not None
    assert 0 < context.deadline <= 1_000
    state.ends_at = time.monotonic() - 1
    assert context.deadline == 0


def test_cancelled_and_lost() -> None:
    context, state = make()
    assert (context.cancelled, context.lost) == (False, False)
    state.cancelled = state.lost = True
    assert (context.cancelled, context.lost) == (True, True)


def test_each_note_is_taken_once() -> None:
    context, _ = make()
    assert context.take_note() is None
    context.progress(0.25, "a quarter")
    context.checkpoint({"at": 5})
    assert context.take_note() == NoteUpdate(3, 1, 0.25, b'{"at":5}', b"a quarter\n")
    assert context.take_note() is None
    context.log("more")
    assert context.take_note() == NoteUpdate(3, 1, output=b"a quarter\nmore\n")
    assert context.take_rest() == (None, ())


def test_an_ending_takes_the_output_along() -> None:
    context, _ = make()
    context.progress(1, "done")
    assert context.take_note(ending=True) == NoteUpdate(3, 1, 1.0)
    assert context.take_rest() == (b"done\n", ())


@pytest.mark.parametrize(("given", "kept"), [(0, 0.0), (1, 1.0), (-5, 0.0), (1.0001, 1.0)])
def test_progress_is_from_zero_to_one(given: float, kept: float) -> None:
    context, _ = make()
    context.progress(given)
    told = context.take_note()
    assert told is not None
    assert told.progress == kept


@pytest.mark.parametrize("given", [float("nan"), float("inf"), "half", None])
def test_progress_that_is_no_number_is_refused(given: Any) -> None:
    with pytest.raises(UsageError):
        make()[0].progress(given)


def test_resume_gives_the_last_checkpoint() -> None:
    context, _ = make()
    assert context.resume() is None
    assert context.resume(7) == 7
    context, _ = make(checkpoint=b'{"at":1}')
    assert context.resume() == {"at": 1}
    context.checkpoint([2])
    assert context.resume() == [2]
    context.checkpoint(None)
    assert context.resume("default") is None


def test_a_checkpoint_that_cannot_be_kept_is_refused_and_the_last_one_stays() -> None:
    context, _ = make(checkpoint=b"1")
    with pytest.raises(InvalidJob):
        context.checkpoint(object())
    with pytest.raises(UsageError, match=str(bounds.CHECKPOINT_MAX)):
        context.checkpoint("x" * bounds.CHECKPOINT_MAX)
    assert context.resume() == 1
    assert context.take_note() is None


def test_log_is_bounded_and_takes_anything() -> None:
    state = CallState("sample", output_max=1_000)
    context = Context(given_job(), state)
    context.log("\ud800", 5, None)
    for index in range(10_000):
        context.log("line", index)
    output, _ = context.take_rest()
    assert output is not None
    assert output.startswith(b"? 5 None\nline 0\n")
    assert output.endswith(b"line 9999\n")
    assert len(output) <= 1_000


def test_follow_ups_are_jobs_and_bounded() -> None:
    context, _ = make()
    jobs = [NewJob(id=f"n{index}", task="t") for index in range(bounds.FOLLOW_UPS_MAX)]
    context.then(*jobs[:10])
    context.then(*jobs[10:])
    with pytest.raises(UsageError, match="at most"):
        context.then(jobs[0])
    with pytest.raises(UsageError, match="str"):
        context.then("job")  # type: ignore[arg-type]
    with pytest.raises(InvalidJob):
        make()[0].then(NewJob(id="n", task="t", labels={"a": "\ud800"}))
    assert context.take_rest()[1] == tuple(jobs)


def test_the_runner_is_notified_once_until_it_takes_the_note() -> None:
    heard: list[Context] = []
    state = CallState("sample", noted=heard.append)
    context = Context(given_job(), state)
    for _ in range(5):
        context.log("x")
        context.progress(0.5)
    assert heard == [context]
    context.take_note()
    context.log("x")
    assert heard == [context, context]


def test_it_may_be_used_from_many_threads() -> None:
    context, _ = make()

    def work() -> None:
        for _ in range(500):
            context.log("x")
            context.then(NewJob(id="n", task="t")) if len(context.take_rest()[1]) < 10 else None
            context.take_note()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    context.log("end")
    output, follow_ups = context.take_rest()
    assert output == b"x\n" * 4_000 + b"end\n"
    assert len(follow_ups) >= 10
