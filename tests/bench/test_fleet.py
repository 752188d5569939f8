"""The benchmark `fleet` measures everything and applies its goals; no test checks speed."""

from __future__ import annotations

from collections import Counter

import pytest

from bench import fleet
from bench.fleet import Options, Sizes, run
from bench.report import Report
from bench.sqs_counter import RequestCounter
from tests.engines.sqs import servers
from tests.fleet.infra.declared import cloudformation

TINY = Sizes(messages=5, repeats=1, burst=10)


async def test_everything_is_measured() -> None:
    with servers.running("ministack") as url:
        report = await run(Options(sizes=TINY, endpoint=url), lambda _: None)
    assert not report.notes
    found = {result.metric: result for result in report.results}
    assert found["holdfast fleet run"].goal == fleet.BARE_GOAL
    assert (found["visibility lapses"].met, found["dead letters"].met) == (True, True)
    for action in ("UpdateItem", "DeleteParameter", "PutMetricData"):
        assert found[action].value == 1
    # The role grants every call that the fleet makes while it handles terminations.
    granted = {
        action.partition(":")[2]
        for statement in cloudformation().statements.values()
        for action in statement.actions
    }
    called = {result.metric for result in report.results if result.unit == "calls/message"}
    assert {each.removesuffix("Batch") for each in called - {"all"}} <= granted


def test_goals() -> None:
    report = Report("fleet")
    report.section("one")
    fleet.add_rates(report, [60.0, 40.0, 50.0], [90.0, 110.0, 100.0])
    fleet.add_lapses(report, 0, 0)
    fleet.add_lapses(report, 1, 2)
    assert [result.met for result in report.results] == [None, True, True, True, False, False]


def test_calls_of_each_message() -> None:
    report = Report("fleet")
    report.section("one")
    fleet.add_calls(report, Counter(UpdateItem=10, ReceiveMessage=2), 10)
    assert {result.metric: result.value for result in report.results} == {
        "UpdateItem": 1.0,
        "ReceiveMessage": 0.2,
        "all": 1.2,
    }


@pytest.mark.parametrize("size", [1, 9, 10_000])
def test_actions_of_both_protocols_are_counted(size: int) -> None:
    heads = [
        "POST / HTTP/1.1\r\nX-Amz-Target: DynamoDB_20120810.UpdateItem\r\n\r\n{}",
        "POST /service/GraniteServiceVersion20100801/operation/PutMetricData HTTP/1.1\r\n\r\n{}",
        "POST / HTTP/1.1\r\nX-Amz-Target: AmazonSSM.DeleteParameter\r\n\r\n{}",
    ]
    stream = "".join(heads).encode()
    counts: Counter[str] = Counter()
    counter = RequestCounter(counts)
    for at in range(0, len(stream), size):
        counter.feed(stream[at : at + size])
    assert counts == Counter(["UpdateItem", "PutMetricData", "DeleteParameter"])
