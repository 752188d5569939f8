"""Every measurement of the benchmark `sqs` runs; no test checks speed."""

from __future__ import annotations

from bench.sqs import Options, Sizes, run

TINY = Options(sizes=Sizes(turns=1, turn_s=0.05, connections=2, wake_ups=2, polls=5), peers=False)


async def test_everything_is_measured() -> None:
    messages: list[str] = []
    report = await run(TINY, messages.append)
    found = {result.metric: result for result in report.results}
    assert set(found) >= {
        "SendMessage, durable",
        "SendMessage, CPU",
        "answer, p50",
        "answer, p99",
        "SendMessageBatch, 10 in a request",
        "send, receive, delete",
        "wake-up, p50",
        "wake-up, p99",
        "memory",
        "polls that one send wakes",
    }
    rates = [result for result in report.results if result.unit.endswith("/s")]
    assert rates
    assert all(result.value > 0 for result in rates)
    assert found["polls that one send wakes"].value == 1
    assert len([result for result in report.results if result.goal is not None]) == 6
    assert messages
