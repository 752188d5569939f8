"""Rates and limits as people write them."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.core.limits import Limit, Rate
from holdfast.errors import InvalidQueue
from holdfast.notation.policies import show_limit, show_rate, to_rate


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("100/m", Rate(count=100, per_ms=60_000)),
        ("5/s", Rate(count=5, per_ms=1_000)),
        ("1000/10m", Rate(count=1000, per_ms=600_000)),
        ("1/1.5s", Rate(count=1, per_ms=1_500)),
        (" 100 / h  burst 20 ", Rate(count=100, per_ms=3_600_000, burst=20)),
        ("3/250ms", Rate(count=3, per_ms=250)),
    ],
)
def test_a_rate_survives_a_round_trip(text: str, rate: Rate) -> None:
    assert to_rate("rate", text) == rate
    assert to_rate("rate", show_rate(rate)) == rate
    assert to_rate("rate", rate) is rate


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("often", 'rate "often": expected a rate such as'),
        ("0/m", "allows no start at all: to stop a queue, pause it"),
        ("5/s burst 0", "allows no start at all"),
        ("5/0s", "allows no start at all"),
        ("5/fortnight", "expected a duration"),
        ("5/2d", "period of at most a day"),
        ("99999999/s", "at most 1000000 per period"),
        (5, "rate is an int: give a Rate or a text"),
    ],
)
def test_an_invalid_rate_is_refused(given: Any, says: str) -> None:
    with pytest.raises(InvalidQueue, match=says):
        to_rate("rate", given)


def test_the_limits_of_a_task_are_named_after_it() -> None:
    app = Holdfast("memory:")

    @app.task(name="send", rate="100/m burst 5", concurrency=(10, "{tenant}"))
    def send() -> None: ...

    slots, starts = send.limits
    assert slots == Limit(name="send/concurrency", task="send", key="{tenant}", concurrency=10)
    assert starts.rate == Rate(count=100, per_ms=60_000, burst=5)
    assert send.handler.info.limits == send.limits
    assert show_limit(slots) == "10 at a time for each {tenant} of send"
    assert show_limit(starts) == "100/m burst 5 of send"
