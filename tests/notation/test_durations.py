"""Durations as people write them."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.text import show_ms
from holdfast.errors import InvalidJob, InvalidQueue
from holdfast.notation.durations import show_at, to_ms


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        (30, 30_000),
        (0, 0),
        (0.25, 250),
        ("31", 31_000),
        ("30s", 30_000),
        (" 5m ", 300_000),
        ("2h", 7_200_000),
        ("1d", 86_400_000),
        ("2w", 1_209_600_000),
        ("250ms", 250),
        ("1.5h", 5_400_000),
        (timedelta(minutes=2, milliseconds=3), 120_003),
    ],
)
def test_valid_durations(value: Any, ms: int) -> None:
    assert to_ms("delay", value) == ms


@pytest.mark.parametrize(
    "value",
    [
        *(-1, "-1s", "", "s", "1 fortnight", "1h30m", "١s", "1e3", "inf", "nan", "0x10"),
        *(float("nan"), float("inf"), 10**30, -(10**30), 2**53, "9" * 16, "9" * 15 + "w"),
        *(True, None, b"1s", [1], timedelta(days=-1), timedelta.max),
    ],
    ids=repr,
)
def test_an_invalid_duration_is_refused_by_its_name(value: Any) -> None:
    with pytest.raises(InvalidQueue, match=r"^delay ") as caught:
        to_ms("delay", value, InvalidQueue)
    assert len(str(caught.value)) < 200


def test_the_default_error_is_invalid_job() -> None:
    with pytest.raises(InvalidJob):
        to_ms("delay", "soon")


@given(st.integers(0, 2**53 - 1))
def test_a_shown_duration_can_be_read_back(ms: int) -> None:
    shown = show_ms(ms)
    if ms < 10**15:
        assert to_ms("x", shown) == ms


def test_durations_are_shown_in_the_largest_exact_unit() -> None:
    shown = [show_ms(ms) for ms in (0, 1, 1000, 90_000, 3_600_000, 86_400_000 * 7)]
    assert shown == ["0ms", "1ms", "1s", "90s", "1h", "1w"]


def test_instants_are_shown_in_rfc_3339() -> None:
    assert show_at(1_800_000_000_000) == "2027-01-15T08:00:00Z"
    assert show_at(1_800_000_000_250) == "2027-01-15T08:00:00.250Z"
