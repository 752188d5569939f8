"""The life of a job on the command line."""

import subprocess
import sys
from pathlib import Path

from holdfast import __version__
from tests.cli.program import Cli


def test_the_life_of_a_job(cli: Cli, tmp_path: Path) -> None:
    assert cli("queue", "create", "mail", "--lease", "1m", "--max-attempts", "2").out == (
        "created queue mail\n"
    )
    sent = cli("enqueue", "--task", "send", "--queue", "mail", "--payload", '{"to": "ä"}', "--json")
    id_ = sent.json["id"]
    assert sent.json["status"] == "new"
    assert cli("enqueue", "--task", "send", "--id", id_).out == f"{id_} (already known)\n"
    shown = cli("job", "show", id_, "--json").json
    wanted = """id queue task state attempts max_attempts priority created_at due_at finished_at
        worker result error reason exit_code output duration_ms failures"""
    assert set(wanted.split()) <= set(shown)
    assert (shown["state"], shown["payload"], shown["max_attempts"]) == (
        "waiting",
        {"to": "ä"},
        2,
    )
    text = cli("job", "show", id_).out
    assert "enqueued" in text
    assert '{"to": "ä"}' in text
    status = cli("status", "--json").json
    queues = {queue["name"]: queue for queue in status["queues"]}
    assert (queues["mail"]["ready"], queues["default"]["ready"]) == (1, 0)
    fields = "name ready delayed blocked leased overdue done dead oldest_age_ms"
    assert set(fields.split()) <= set(queues["mail"])
    assert "mail" in cli("status").out
    assert "1m" in cli("queue", "list").out
    listed = cli("queue", "list", "--json").json
    assert [queue["name"] for queue in listed] == ["default", "mail"]
    assert cli("backup", "copy.db").code == 0
    copied = cli("--url", f"sqlite:///{tmp_path}/copy.db", "job", "show", id_, "--json").json
    assert copied == shown


def test_the_package_runs_as_a_module(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "holdfast"]
    ran = subprocess.run(
        [*line, "--version"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout) == (0, f"holdfast {__version__}\n")
