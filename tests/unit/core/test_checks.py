"""Bounds checks on input, and the cleaning of text that must be stored anyway."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.conformance import inputs
from holdfast.core import bounds, checks
from holdfast.core.model import (
    Event,
    EventKind,
    Failure,
    Job,
    JobFilter,
    Lease,
    LeaseRequest,
    NewJob,
    Note,
    Overrides,
    Queue,
    Record,
    Renewal,
)
from holdfast.core.verdict import (
    Amendment,
    Bury,
    Complete,
    Delete,
    Edit,
    Forward,
    Move,
    Redrive,
    Release,
    Retime,
    Retry,
    Settlement,
    Verdict,
)
from holdfast.errors import BY_CODE, HoldfastError, InvalidJob, InvalidQueue, UsageError

LEASE = Lease(job=Job(id="a", task="t", queue="q"), token=1, lease_ms=10)


@pytest.mark.parametrize("number", range(len(inputs.BAD_JOBS)))
def test_bad_jobs_are_refused_with_their_code(number: int) -> None:
    code, bad = inputs.BAD_JOBS[number]
    if code == "unknown_queue":
        checks.check_job(bad)
        return
    with pytest.raises(HoldfastError) as caught:
        checks.check_job(bad)
    assert caught.value.code == code
    assert BY_CODE[code] is type(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("text", inputs.STORABLE_TEXTS)
def test_storable_texts_are_accepted_everywhere(text: str) -> None:
    checks.check_job(
        NewJob(id="a", task="t", key=text, tenant=text, group=text, labels={text: text})
    )
    checks.check_record(Record(kind="k", key=text, value=b""))
    checks.check_filter(JobFilter(key=text, search=text, labels={text: text}))


def test_the_largest_job_that_fits() -> None:
    labels = {f"l{number:03}": "x" * 1_000 for number in range(bounds.PAIRS_MAX)}
    checks.check_job(
        NewJob(
            id="x" * 128,
            task="x" * 200,
            queue="x" * 80,
            payload=b"x" * bounds.PAYLOAD_MAX,
            content_type="x" * 127,
            priority=bounds.PRIORITY_MAX,
            delay_ms=bounds.DELAY_MS_MAX,
            expires_ms=bounds.DELAY_MS_MAX,
            key="x" * bounds.NAME_BYTES_MAX,
            labels=labels,
            headers={"h": "x" * bounds.PAIR_VALUE_BYTES_MAX},
        )
    )


@pytest.mark.parametrize(
    "overrides",
    [{"lease_ms": 0}, {"timeout_ms": 0}, {"max_attempts": -1}, {"max_crashes": 0}],
    ids=str,
)
def test_bad_overrides_are_the_jobs_fault(overrides: dict[str, Any]) -> None:
    with pytest.raises(InvalidJob):
        checks.check_job(NewJob(id="a", task="t", overrides=Overrides(**overrides)))


@pytest.mark.parametrize(
    "settings",
    [
        {"name": ""},
        {"lease_ms": bounds.LEASE_MS_MIN - 1},
        {"lease_ms": bounds.LEASE_MS_MAX + 1},
        {"timeout_ms": 0},
        {"max_attempts": -1},
        {"max_attempts": bounds.ATTEMPTS_MAX + 1},
        {"max_crashes": 0},
        {"retention_ms": -1},
        {"dead_retention_ms": bounds.RETENTION_MS_MAX + 1},
        {"max_depth": 0},
        {"payload_max": 0},
        {"payload_max": bounds.PAYLOAD_MAX + 1},
        {"order": "fifo"},
        {"dead_queue": "q"},
        {"dead_queue": "a b"},
    ],
    ids=str,
)
def test_bad_queues_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidQueue):
        checks.check_queue(Queue(**{"name": "q"} | settings))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"queues": ("q",), "ids": ("a",)},
        {"queues": ("q",), "limit": 0},
        {"queues": ("q",), "limit": bounds.BATCH_MAX + 1},
        {"queues": ("q",), "wait_ms": -1},
        {"queues": ("q",), "lease_ms": 1},
        {"queues": ("q",), "worker": "\x00"},
        {"queues": ("q",), "tasks": frozenset({"\x00"})},
        {"queues": ("a b",)},
        {"ids": ("\ud800",)},
    ],
    ids=ascii,
)
def test_bad_requests_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        checks.check_request(LeaseRequest(**fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"queue": "\x00"},
        {"search": "\ud800"},
        {"key": "x" * (bounds.NAME_BYTES_MAX + 1)},
        {"labels": {"a": "\x00"}},
        {"ids": ("\x00",)},
        {"ids": ("a",) * (bounds.BATCH_MAX + 1)},
        {"version": -1},
        {"created_from": 2**63},
        {"finished_before_ms": 10**30},
    ],
    ids=lambda fields: ascii(fields)[:40],
)
def test_bad_filters_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        checks.check_filter(JobFilter(**fields))


def test_pages_and_batches_are_bounded() -> None:
    checks.check_page(1)
    checks.check_page(bounds.PAGE_MAX, 2**63 - 1)
    checks.check_batch(bounds.BATCH_MAX)
    checks.check_load("setting", "", 1)
    for limit, after in ((0, None), (bounds.PAGE_MAX + 1, None), (1, -1), (1, 2**63)):
        with pytest.raises(UsageError):
            checks.check_page(limit, after)
    with pytest.raises(UsageError):
        checks.check_batch(bounds.BATCH_MAX + 1)
    with pytest.raises(UsageError):
        checks.check_load("A", None, 1)
    with pytest.raises(UsageError):
        checks.check_load("setting", "\x00", 1)


GOOD_VERDICTS: list[Verdict] = [
    Complete(b"x" * bounds.RESULT_MAX),
    Complete(then=(NewJob(id="b", task="t", queue="unknown-is-not-its-business"),)),
    Retry(bounds.DELAY_MS_MAX),
    Release("\x00"),
    Bury(),
    Forward("any"),
]
BAD_VERDICTS: list[Verdict] = [
    Complete(b"x" * (bounds.RESULT_MAX + 1)),
    Complete(then=(NewJob(id="", task="t"),)),
    Complete(then=(NewJob(id="b", task="t"),) * (bounds.FOLLOW_UPS_MAX + 1)),
    Retry(-1),
    Release(delay_ms=bounds.DELAY_MS_MAX + 1),
]


def test_settlements_are_bounded() -> None:
    for verdict in GOOD_VERDICTS:
        checks.check_settlement(Settlement(lease=LEASE, verdict=verdict))
    for verdict in BAD_VERDICTS:
        with pytest.raises(UsageError):
            checks.check_settlement(Settlement(lease=LEASE, verdict=verdict))
    note = Note(progress=float("nan"))
    with pytest.raises(UsageError):
        checks.check_settlement(Settlement(lease=LEASE, verdict=Bury(), note=note))


def test_renewals_are_bounded() -> None:
    checks.check_renewals([Renewal(lease=LEASE, lease_ms=0, note=Note(progress=1.0))])
    for lease_ms, note in (
        (-1, None),
        (bounds.LEASE_MS_MAX + 1, None),
        (None, Note(progress=2.0)),
        (None, Note(checkpoint=b"x" * (bounds.CHECKPOINT_MAX + 1))),
    ):
        with pytest.raises(UsageError):
            checks.check_renewals([Renewal(lease=LEASE, lease_ms=lease_ms, note=note)])


@pytest.mark.parametrize(
    "act",
    [
        Edit(priority=101),
        Edit(labels={"": ""}),
        Edit(expires_ms=-1),
        Move(queue=""),
        Retime(delay_ms=-1),
        Redrive(delay_ms=2**63),
    ],
    ids=str,
)
def test_bad_amendments_are_refused(act: Amendment) -> None:
    with pytest.raises(UsageError):
        checks.check_amendment(act)


def test_good_amendments_are_not() -> None:
    for act in (Edit(), Edit(payload=b"", labels={}), Delete(force=True), Retime(delay_ms=0)):
        checks.check_amendment(act)


@given(inputs.any_texts | st.sampled_from(inputs.ERROR_TEXTS), st.integers(100, 300))
def test_cleaned_text_can_be_stored_and_is_short(text: str, most: int) -> None:
    cleaned = checks.clean_text(text, most)
    assert "\x00" not in cleaned
    cleaned.encode()
    assert len(cleaned) <= most
    if len(text) <= most and text in inputs.STORABLE_TEXTS:
        assert cleaned == text


@given(inputs.any_texts)
def test_cleaning_twice_is_cleaning_once(text: str) -> None:
    event = Event(at=1, kind=EventKind.RETRIED, by=text, text=text, failure=Failure(message=text))
    once = checks.clean_event(event)
    assert checks.clean_event(once) == once
    assert replace(once, by="", text="", failure=None) == Event(at=1, kind=EventKind.RETRIED)


@given(st.integers(0, 300_000))
def test_clipped_output_keeps_head_and_tail_within_the_bound(size: int) -> None:
    output = b"h" + b"." * size + b"t"
    clipped = checks.clip_output(output)
    assert len(clipped) <= bounds.OUTPUT_MAX
    assert clipped[:1] == b"h"
    assert clipped[-1:] == b"t"
    if len(output) <= bounds.OUTPUT_MAX:
        assert clipped == output
    else:
        assert b"bytes left out" in clipped


def test_a_long_text_says_how_much_is_left_out() -> None:
    cleaned = checks.clean_text("head" + "x" * 1_000 + "tail", 100)
    assert cleaned.startswith("headx")
    assert cleaned.endswith("xtail")
    assert f"{1_008 - cleaned.count('x') - 8} characters left out" in cleaned
