"""Every attack of the benchmark `hostile` is measured; no test checks speed."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import hostile
from bench.hostile import CASES, Sizes, run

TINY = Sizes(rounds=1, seconds=0.03, pause_s=0.0, streams=10)


async def test_everything_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a disk; `./hf bench hostile` runs the last cases in memory, too."""
    monkeypatch.setattr(hostile, "MEMORY", tmp_path / "missing")
    messages: list[str] = []
    report = await run(TINY, messages.append)
    titles = [section.title for section in report.sections]
    for case in CASES:
        assert any(title.startswith(f"{case.name}, disk") for title in titles)
    assert all(result.value > 0 for result in report.results)
    assert {result.metric for result in report.results} >= {
        "enqueue, p50, compared with neighbour",
        "enqueue 100, p95, compared with neighbour",
        "lease and settle, p50, compared with alone",
        "turn of the loop, the longest",
        "memory",
    }
    assert messages
