"""The benchmark `start` measures every command and worker; no test checks speed."""

from __future__ import annotations

from bench.start import QUICK, WORKERS, run


async def test_everything_is_measured() -> None:
    report = await run(QUICK, print)
    assert [result.metric for result in report.results] == ["--help", "status", *WORKERS]
    assert all(result.value > 0 for result in report.results)
