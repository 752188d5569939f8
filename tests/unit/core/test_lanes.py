"""The lane of a job, and the key that a limit counts by."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import bounds
from holdfast.core.lanes import Lane, fields_of, is_same_flow, lane_of
from holdfast.core.limits import Limit, Rate, SlotKey
from holdfast.core.model import Job, NewJob, Queue
from holdfast.errors import InvalidJob, InvalidQueue

ALL = Limit(name="all", concurrency=1)
EACH = Limit(name="each", key="{tenant}", concurrency=1)


def a_job(**fields: Any) -> NewJob:
    return NewJob(**{"id": "a", "task": "t", "queue": "q"} | fields)


def a_queue(*bounds: Limit, **settings: Any) -> Queue:
    return Queue(name="q", limits=bounds, **settings)


def test_a_plain_job_has_no_lane() -> None:
    assert lane_of(a_job(), a_queue()) is None
    assert lane_of(a_job(), a_queue(Limit(name="l", task="other", concurrency=1))) is None
    assert lane_of(a_job(tenant="x", group="g"), a_queue(aging_ms=5, group_batch=3)) is None


def test_a_lane_is_of_a_task_and_its_slots_are_in_order() -> None:
    lane = lane_of(a_job(tenant="x"), a_queue(EACH, ALL))
    slots = (SlotKey("all", ""), SlotKey("each", "x"))
    assert lane == Lane(queue="q", task="t", tenant=None, slots=slots)


@pytest.mark.parametrize("fairness", ["shares", "noisy"])
def test_where_a_queue_is_fair_every_job_has_a_tenant(fairness: str) -> None:
    queue = a_queue(fairness=fairness)
    assert lane_of(a_job(), queue) == Lane(queue="q", task="t", tenant="", slots=())
    assert lane_of(a_job(tenant="x"), queue) == Lane(queue="q", task="t", tenant="x", slots=())


def test_a_label_goes_before_the_payload() -> None:
    queue = a_queue(Limit(name="l", key="{n}", concurrency=1))
    payload = b'{"n": 2}'
    both = lane_of(a_job(labels={"n": "1"}, payload=payload), queue)
    inside = lane_of(a_job(payload=payload), queue)
    assert both is not None
    assert inside is not None
    assert (both.slots[0].key, inside.slots[0].key) == ("1", "2")


def test_a_payload_does_not_say_whose_job_it_is() -> None:
    """Else a producer could take somebody else's slots."""
    with pytest.raises(InvalidJob, match="tenant"):
        lane_of(
            a_job(payload=b'{"tenant": "x"}', labels={"tenant": "x"}), a_queue(EACH), strict=True
        )


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"[]",
        b'{"n": null}',
        b'{"n": 1.5}',
        b'{"n": true}',
        b'{"n": {}}',
        b'{"n": "\xff"}',
        b'{"n": "\\u0000"}',
        b'{"n": "' + b"x" * 300 + b'"}',
        b'{"n": ' + b"9" * 5_000 + b"}",
        b'{"n": ' + b"[" * 100_000,
    ],
)
def test_an_invalid_key_is_refused_on_enqueue_and_empty_later(payload: bytes) -> None:
    queue = a_queue(Limit(name="l", key="<{n}>", concurrency=1))
    with pytest.raises(InvalidJob, match=r"limit l|which limit l"):
        lane_of(a_job(payload=payload), queue, strict=True)
    lane = lane_of(a_job(payload=payload), queue)
    assert lane is not None
    assert lane.slots == (SlotKey("l", "<>"),)


@given(st.binary(max_size=60), st.dictionaries(st.text(max_size=3), st.text(max_size=300)))
def test_a_job_that_is_in_always_has_a_lane(payload: bytes, labels: dict[str, str]) -> None:
    queue = a_queue(Limit(name="l", key="{a}:{b}", concurrency=1))
    lane = lane_of(Job(id="a", task="t", queue="q", payload=b"{" + payload, labels=labels), queue)
    assert lane is not None
    assert len(lane.slots[0].key.encode()) <= bounds.NAME_BYTES_MAX


@pytest.mark.parametrize(
    ("template", "fields"),
    [("", ()), ("plain", ()), ("{a}", ("a",)), ("{a}-{b_1}!", ("a", "b_1")), ("{{a}}", ())],
)
def test_fields(template: str, fields: tuple[str, ...]) -> None:
    assert fields_of(template) == fields


@pytest.mark.parametrize("template", ["{", "}", "{}", "{0}", "{a.b}", "{a[0]}", "{a!r}", "{a:>3}"])
def test_no_template(template: str) -> None:
    with pytest.raises(InvalidQueue, match="template"):
        fields_of(template)


def test_changed_numbers_keep_every_job_in_its_lane() -> None:
    before = a_queue(ALL, EACH, fairness="shares", weights={"x": 2})
    faster = Limit(name="all", concurrency=9, rate=Rate(count=1, per_ms=1))
    assert is_same_flow(before, a_queue(EACH, faster, fairness="noisy", aging_ms=4, group_batch=2))


@pytest.mark.parametrize(
    "after",
    [
        a_queue(EACH, fairness="shares"),
        a_queue(ALL, EACH),
        a_queue(ALL, Limit(name="each", key="{group}", concurrency=1), fairness="shares"),
        a_queue(
            ALL, Limit(name="each", key="{tenant}", task="t", concurrency=1), fairness="shares"
        ),
        a_queue(ALL, Limit(name="each2", key="{tenant}", concurrency=1), fairness="shares"),
    ],
    ids=["fewer", "unfair", "key", "task", "name"],
)
def test_what_a_lane_is_made_of_moves_them(after: Queue) -> None:
    assert not is_same_flow(a_queue(ALL, EACH, fairness="shares"), after)
