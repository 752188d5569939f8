"""Circuit breakers as people write them."""

import pytest

from holdfast.app.application import Holdfast
from holdfast.core.breaker import Breaker
from holdfast.errors import UsageError
from holdfast.notation.policies import show_breaker, to_breaker


@pytest.mark.parametrize(
    ("text", "breaker"),
    [
        ("5 failures", Breaker(failures=5)),
        ("1 failure, 2s", Breaker(failures=1, cooldown_ms=2_000, cooldown_ms_max=40_000)),
        ("5 failures,30s to 10m", Breaker()),
        (
            "50% of 20 in 1m, 10s to 1h",
            Breaker(share=0.5, cooldown_ms=10_000, cooldown_ms_max=3_600_000),
        ),
        (
            "7% of 100 in 2h",
            Breaker(share=0.07, calls_min=100, window_ms=7_200_000),
        ),
    ],
)
def test_a_breaker_survives_a_round_trip(text: str, breaker: Breaker) -> None:
    assert to_breaker("breaker", text) == breaker
    assert to_breaker("breaker", show_breaker(breaker)) == breaker


@pytest.mark.parametrize(
    "wrong",
    [
        "", "five failures", "0 failures", "5 failures, ", "5 failures, soon", "5 failures, 30s to",
        "5 failures, 30s to 1s", "0% of 20 in 1m", "101% of 20 in 1m", "50% of 0 in 1m",
        "50% of 20", "50% of 20 in 10ms", 5, Breaker(failures=0), Breaker(share=2.0),
        Breaker(cooldown_ms=10), Breaker(failures="5"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_an_invalid_breaker_is_refused(wrong: object) -> None:
    with pytest.raises(UsageError, match="breaker"):
        to_breaker("breaker", wrong)  # type: ignore[arg-type]


def test_a_task_passes_its_breaker_to_workers() -> None:
    app = Holdfast("memory:")

    @app.task(name="t", breaker="3 failures, 1s")
    def t() -> None: ...

    @app.task(name="u")
    def u() -> None: ...

    assert t.handler.info.breaker == Breaker(failures=3, cooldown_ms=1_000, cooldown_ms_max=20_000)
    assert u.handler.info.breaker is None
    with pytest.raises(UsageError, match="breaker of task v"):
        app.task(name="v", breaker="often")(lambda: None)
