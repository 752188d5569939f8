"""Changes that the command line makes through a server are in its audit log."""

import json
from pathlib import Path

import pytest

from tests.cli.program import Cli
from tests.server.server_process import server_process


def test_changes_through_a_server_are_in_its_audit_log(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with server_process(tmp_path, "--auth") as server:

        def token(name: str, scopes: str) -> str:
            line = ("token", "create", name, "--scopes", scopes)
            return cli(*line, "--url", "sqlite:///jobs.db").out.strip()

        ann, bob = token("ann", "admin"), token("bob", "produce")
        monkeypatch.setenv("HOLDFAST_URL", server.url)

        def run(*line: str, token: str = ann) -> str:
            monkeypatch.setenv("HOLDFAST_TOKEN", token)
            ran = cli(*line)
            assert ran.code == 0, ran.err
            return ran.out

        run("queue", "create", "mail")
        again = cli("queue", "create", "mail")
        assert again.code != 0
        assert "exists already" in again.err
        run("queue", "create", "slow", "--lease", "5m")
        run("queue", "create", "theirs", token=bob)
        run("schedule", "add", "nightly", "--every", "1d", "--task", "t", "--queue", "mail")
        assert run("schedule", "run", "nightly").strip()
        acts = json.loads(run("audit", "--json"))
        assert [(act["who"], act["what"], act["on"].split()[0]) for act in reversed(acts)][2:] == [
            ("ann", "queue.declare", "mail"),
            ("ann", "queue.declare", "mail"),
            ("ann", "queue.declare", "slow"),
            ("ann", "schedule.save", "nightly"),
            ("ann", "schedule.run", "nightly"),
        ]
