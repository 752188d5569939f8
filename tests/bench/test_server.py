"""Every measurement of the benchmark `server` runs; no test checks speed."""

from __future__ import annotations

from bench.server import Sizes, run

TINY = Sizes(turns=1, turn_s=0.05, connections=2, wake_ups=2)


async def test_everything_is_measured() -> None:
    messages: list[str] = []
    report = await run(TINY, messages.append)
    found = {result.metric: result for result in report.results}
    assert set(found) >= {
        "enqueue, durable",
        "answer, p50",
        "answer, p99",
        "enqueue, 100 in a request",
        "full cycle",
        "wake-up, p50",
        "wake-up, p99",
    }
    assert all(result.value > 0 for result in report.results)
    assert len([result for result in report.results if result.goal is not None]) == 4
    assert messages
