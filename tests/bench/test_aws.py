"""The benchmark `aws` measures everything and applies its goals; no test checks speed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from bench import aws
from bench.aws import Options, Sizes, run
from bench.peers.catalogue import BARE_SQS, ON_SQS, SQS_PEERS
from bench.report import Report
from bench.sqs_counter import RequestCounter
from holdfast.testing.sqs import sqs_server

TINY = Sizes(jobs=20, repeats=1, noisy=10, quiet=3)


async def test_calls_and_tenants_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a worker of one process. The other measurements need more processes than a test should
    start."""
    worker = replace(ON_SQS, settings={**ON_SQS.settings, "processes": 0})
    monkeypatch.setattr(aws, "ON_SQS", worker)
    with sqs_server() as url:
        options = Options(sizes=TINY, peers=False, parts=("calls", "tenants"), endpoint=url)
        report = await run(options, lambda _: None)
    assert not report.notes
    assert {result.metric for result in report.results} >= {
        *("SendMessageBatch", "ReceiveMessage", "DeleteMessageBatch", "all", "a million jobs"),
        *("fair queue, alone", "fair queue, beside a noisy tenant"),
        *("distributor, alone", "distributor, beside a noisy tenant"),
    }
    assert [result.goal for result in report.results if result.goal is not None] == [1, 1]


def test_calls_and_their_cost() -> None:
    report = Report("aws")
    report.section("calls")
    aws.add_calls(report, Counter(SendMessageBatch=100, ReceiveMessage=110, Other=90), 1_000)
    found = {result.metric: result for result in report.results}
    assert found["SendMessageBatch"].value == 0.1
    assert (found["all"].value, found["all"].met) == (0.3, True)
    assert found["a million jobs"].value == pytest.approx(0.12)
    report.section("more calls")
    aws.add_calls(report, Counter(SendMessageBatch=360), 1_000)
    assert [result.met for result in report.results if result.metric == "all"] == [True, False]


def test_goals_apply_to_the_bare_loop_and_to_the_faster_peer() -> None:
    rates = {each.name: 100.0 * number for number, each in enumerate(SQS_PEERS, start=1)}
    rates |= {ON_SQS.name: 590.0, BARE_SQS.name: 1_000.0}
    report = Report("aws")
    report.section("rates")
    aws.compare(report, rates)
    assert {result.metric: result.met for result in report.results if result.goal} == {
        f"compared with {BARE_SQS.name}": True,
        f"compared with {SQS_PEERS[-1].name}": False,
    }


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_requests_are_counted_in_any_pieces(size: int) -> None:
    head = (
        "POST / HTTP/1.1\r\nHost: x\r\nX-Amz-Target: AmazonSQS.{}\r\nContent-Length: 2\r\n\r\n{{}}"
    )
    actions = ["SendMessageBatch", "ReceiveMessage", "ReceiveMessage"]
    stream = "".join(map(head.format, actions)).encode()
    counts: Counter[str] = Counter()
    counter = RequestCounter(counts)
    for at in range(0, len(stream), size):
        counter.feed(stream[at : at + size])
    assert counts == Counter(actions)
