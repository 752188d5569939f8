"""Backoff as people write it."""

from typing import Any

import pytest

from holdfast import Backoff
from holdfast.errors import InvalidJob, InvalidQueue
from holdfast.notation.policies import show_backoff, to_backoff


@pytest.mark.parametrize(
    ("text", "backoff"),
    [
        ("exponential(2s, max=10m)", Backoff(first_ms=2_000, cap_ms=600_000)),
        ("exponential(2s)", Backoff()),
        (" linear( 5s , max = 1m )", Backoff(kind="linear", first_ms=5_000, cap_ms=60_000)),
        ("constant(5)", Backoff(kind="constant", first_ms=5_000)),
        ("constant(0)", Backoff(kind="constant", first_ms=0)),
        ("constant(250ms, jitter=0)", Backoff(kind="constant", first_ms=250, jitter=0.0)),
        (
            "exponential(1s, factor=1.5, jitter=0.5)",
            Backoff(first_ms=1_000, factor=1.5, jitter=0.5),
        ),
        # A first delay beyond the default bound is not cut down by it.
        ("constant(10m)", Backoff(kind="constant", first_ms=600_000, cap_ms=600_000)),
    ],
)
def test_a_text_survives_a_round_trip(text: str, backoff: Backoff) -> None:
    assert to_backoff("backoff", text) == backoff
    assert to_backoff("backoff", show_backoff(backoff)) == backoff


def test_a_backoff_is_returned_as_it_is() -> None:
    backoff = Backoff(first_ms=7)
    assert to_backoff("backoff", backoff) is backoff


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("2s", 'backoff "2s": expected a backoff such as "exponential'),
        ("", "expected a backoff such as"),
        ("quadratic(2s)", "expected a backoff such as"),
        ("exponential", "expected a backoff such as"),
        ("exponential()", "must begin with its first delay"),
        ("exponential(max=1m)", "must begin with its first delay"),
        ("exponential(soon)", 'backoff "soon": expected a duration'),
        ("exponential(2s, max=often)", 'max of backoff "often": expected a duration'),
        ("exponential(2s, 10m)", 'option "10m" of backoff: use max=10m, factor=2 or jitter=0.5'),
        ("exponential(2s, jitter=2)", "jitter is 2.0; use 0 to 1"),
        ("exponential(2s, jitter=nan)", 'unknown option "jitter=nan"'),
        ("exponential(2s, factor=-1)", 'unknown option "factor=-1"'),
        ("exponential(2s, max=1m, max=2m)", "gives max twice"),
        ("exponential(2m, max=1m)", "a max below its first delay"),
        ("exponential(9999999w)", "first_ms"),
        (7, "backoff is an int: give a Backoff or a text"),
        ({"kind": "linear"}, "backoff is a dict"),
    ],
)
def test_an_invalid_backoff_is_refused_with_an_example(wrong: Any, says: str) -> None:
    for error in (InvalidQueue, InvalidJob):
        with pytest.raises(error) as caught:
            to_backoff("backoff", wrong, error)
        assert says in str(caught.value)
