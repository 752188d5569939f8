from __future__ import annotations

from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.core.flow import Limit, Rate
from holdfast.errors import InvalidQueue
from holdfast.rates import show_limit, show_rate, to_rate


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
def test_a_rate_is_read_and_shown_as_it_can_be_read(text: str, rate: Rate) -> None:
    assert to_rate("rate", text) == rate
    assert to_rate("rate", show_rate(rate)) == rate
    assert to_rate("rate", rate) is rate


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("often", "rate 'often' is no rate: write"),
        ("0/m", "lets nothing start: to stop a queue, pause it"),
        ("5/s burst 0", "lets nothing start"),
        ("5/0s", "lets nothing start"),
        ("5/fortnight", "is no duration"),
        ("5/2d", "per more than a day"),
        ("99999999/s", "is over 1000000"),
        (5, "rate is a int: give a Rate or a text"),
    ],
)
def test_what_is_no_rate_is_refused(given: Any, says: str) -> None:
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
