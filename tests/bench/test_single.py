"""The benchmark `single` measures every way to enqueue one job; no test checks speed."""

from __future__ import annotations

import pytest

from bench import single
from bench.peers.run import SingleCalls
from bench.report import Report
from bench.single import ASYNC, BLOCKING, RAW, Options, Sizes, run
from bench.stores import ENGINES, EngineName

TINY = Sizes(jobs=3, repeats=1)


@pytest.mark.timeout(600)
async def test_everything_is_measured() -> None:
    report = await run(Options(engines=("sqlite",), sizes=TINY, peers=False), lambda _: None)
    assert not report.notes
    assert [result.metric for result in report.results] == [
        RAW,
        BLOCKING,
        ASYNC,
        "16 threads",
    ]
    assert all(result.value > 0 for result in report.results)


@pytest.mark.parametrize(("engine", "count"), [("sqlite", 1), ("postgres", 2)])
def test_goals_are_about_the_client(engine: EngineName, count: int) -> None:
    report = Report("single")
    found = {
        RAW: SingleCalls(client_us=100.0, server_us=50.0),
        BLOCKING: SingleCalls(client_us=200.0, server_us=100.0),
        ASYNC: SingleCalls(client_us=400.0, server_us=0.0),
        "huey": SingleCalls(client_us=50.0, server_us=0.0),
    }
    single.add_results(report, engine, found)
    assert [result.met for result in report.results if result.goal] == [True, False]
    assert len(report.results) == count * len(found)


def test_each_peer_takes_part_once() -> None:
    names = {engine: [each.name for each in single.peers(engine)] for engine in ENGINES}
    assert names == {
        "sqlite": ["huey", "litequeue"],
        "postgres": ["pgqueuer", "procrastinate", "graphile", "pgboss"],
    }
    assert single.peers("sqlite")[0].settings["fsync"]
