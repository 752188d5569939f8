"""Kills the server, at a small size. Any size: ./hf torture server --help

It runs in a separate process, because it forks.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from random import SystemRandom

import pytest

from tests.crash.torture.test_engines import run

# One client over REST, the other through the remote engine.
KILLS, CLIENTS = 1, 2


@pytest.mark.torture
@pytest.mark.timeout(300)
def test_acknowledged_jobs_survive_and_clients_reconnect(tmp_path: Path) -> None:
    """On SQLite; `./hf torture server` also runs on PostgreSQL, whose own kills are in
    tests/crash/torture/test_engines.py."""
    given = os.environ.get("HOLDFAST_SEED")
    seed = SystemRandom().randrange(1_000_000) if given is None else int(given)
    figures = tmp_path / "figures.json"
    result = run(
        "torture", "server", "--engine", "sqlite", "--clients", str(CLIENTS), "--kills", str(KILLS),
        "--seed", str(seed), "--json", str(figures),
    )  # fmt: skip
    print(result.stdout)
    assert result.returncode == 0, result.stdout + result.stderr
    [found] = json.loads(figures.read_text())
    assert (found["lost"], found["resurrected"], found["stale_settles"]) == (0, 0, 0)
    assert found["violations"] == 0
    assert found["server_kills"] == KILLS
    assert found["back"] == KILLS * CLIENTS
    assert found["jobs"] > KILLS
    assert f"server on sqlite: killed {KILLS} times under {CLIENTS} clients" in result.stdout
