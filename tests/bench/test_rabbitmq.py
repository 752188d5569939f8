"""The benchmark `rabbitmq` measures everything and applies its goals; no test checks speed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench import rabbitmq, worker_usage
from bench.peers.catalogue import BROKER_PEERS, BROKERED, HOLDFAST, PLAIN, Contestant
from bench.peers.program import timed_calls
from bench.rabbitmq import Options, Sizes, run
from bench.report import Report
from holdfast.conformance.rabbitmq_server import RabbitNode

TINY = Sizes(jobs=10, repeats=1, wake_ups=1, idle_s=0.1, messages=20, waiting=100)


# It starts several workers and gates, and waits until they stop.
@pytest.mark.timeout(600)
async def test_everything_is_measured(
    rabbit_node: RabbitNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With workers of one process each; the benchmark `drain` has the default worker."""
    monkeypatch.setattr(rabbitmq, "PLAIN", in_one_process(PLAIN))
    monkeypatch.setattr(rabbitmq, "BROKERED", in_one_process(BROKERED))
    monkeypatch.setattr(worker_usage, "HOLDFAST", (in_one_process(HOLDFAST[0]),))
    options = Options(sizes=TINY, peers=False, node=rabbit_node)
    report = await run(options, lambda _: None)
    assert not report.notes
    assert {result.metric for result in report.results} == {
        *(each.name for each in (PLAIN, BROKERED)),
        *(f"{each.name} (commit synced)" for each in (PLAIN, BROKERED)),
        f"compared with {PLAIN.name}",
        *(f"wake-up, {how}, p{part}" for how in ("polling", "broker") for part in (50, 99)),
        "inlet, compared with consume and acknowledge",
        "outlet, compared with confirmed publishes",
        "idle worker",
        "memory of an inlet, growth while 100 messages wait",
    }
    assert len([result for result in report.results if result.goal is not None]) == 6


def in_one_process(contestant: Contestant) -> Contestant:
    return replace(contestant, settings={**contestant.settings, "processes": 0})


def test_goals_apply_to_postgres_alone_and_to_the_fastest_peer() -> None:
    rates = {each.name: 100.0 * number for number, each in enumerate(BROKER_PEERS, start=1)}
    rates |= {PLAIN.name: 1_000.0, BROKERED.name: 890.0}
    report = Report("rabbitmq")
    rabbitmq.compare(report, rates)
    assert {result.metric: result.goal for result in report.results if result.goal} == {
        f"compared with {PLAIN.name}": 0.9,
        f"compared with {BROKER_PEERS[-1].name}": 1.5,
    }
    assert [result.met for result in report.results if result.goal] == [False, True]
    assert len(report.results) == 1 + len(BROKER_PEERS)


def test_peers_are_durable_and_acknowledge_after_the_run() -> None:
    assert {each.program for each in BROKER_PEERS} == {"dramatiq", "celery"}
    for each in BROKER_PEERS:
        assert "durable queue, confirms, acknowledged after the run" in each.durability


@pytest.mark.parametrize("jobs", [0, 3, 20])
def test_timed_calls_makes_one_call_per_job(jobs: int) -> None:
    calls: list[None] = []
    assert timed_calls(lambda: calls.append(None), jobs) > 0
    assert len(calls) == jobs
