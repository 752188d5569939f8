"""Every measurement of the benchmark `dashboard` runs; no test checks speed."""

from __future__ import annotations

from bench.dashboard import Options, Sizes, run
from bench.dashboard_pages import PAGES

TINY = Sizes(
    jobs=100,
    queues=2,
    repeats=1,
    turn_s=0.1,
    idle_s=0.1,
    rate=100,
    acts=2,
    viewers=2,
    clients=1,
)


async def test_everything_is_measured() -> None:
    messages: list[str] = []
    report = await run(Options(engines=("sqlite",), sizes=TINY), messages.append)
    work, times, acts, viewers, idle, drain = report.sections
    for section in (work, times):
        assert [result.metric for result in section.results] == list(PAGES)
        assert all(result.value > 0 for result in section.results)
    assert {result.metric for result in acts.results} == {
        f"act of {whose}, on the page {page}, p{part}"
        for whose in ("this server", "another process")
        for page in ("queue", "overview")
        for part in (50, 95)
    }
    assert [result.metric for result in viewers.results] == ["no viewer", "one viewer", "2 viewers"]
    assert [result.metric for result in idle.results] == [
        "an idle viewer",
        "each of 2 idle viewers",
    ]
    assert [result.metric for result in drain.results] == [
        "drained with 2 viewers",
        "CPU of a job of it",
    ]
    assert all(result.value > 0 for result in drain.results)
    assert len([result for result in report.results if result.goal is not None]) == 12
    assert messages
