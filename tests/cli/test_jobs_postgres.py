"""The same commands on PostgreSQL, by changing one URL."""

import pytest

from tests.cli.program import Cli


def test_every_group_of_commands_works(
    cli: Cli, pg_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_URL", pg_dsn)
    assert cli("queue", "create", "mail", "--dead-queue", "default").code == 0
    assert cli("enqueue", "--task", "t", "--id", "a", "--queue", "mail", "--delay", "1h").code == 0
    assert cli("enqueue", "--id", "b", "--", "sleep", "2").code == 0
    listed = cli("list", "--json", "--since", "1h").json
    assert [job["id"] for job in listed] == ["b", "a"]
    reasons = cli("job", "explain", "a", "--json").json["reasons"]
    assert [reason["code"] for reason in reasons] == ["delayed", "queue_unserved"]
    assert cli("job", "edit", "a", "--label", "x=1", "--queue", "default").code == 0
    assert cli("job", "expedite", "a").code == 0
    assert cli("job", "cancel", "a", "b").code == 0
    assert cli("job", "retry", "a").code == 0
    events = [event["event"] for event in cli("job", "timeline", "a", "--json").json]
    assert events == ["enqueued", "edited", "moved", "expedited", "cancelled", "redriven"]
    assert cli("cleanup", "--days", "0", "--archive", "old.jsonl", "--json").json == {
        "deleted": 1,
        "archived": 1,
    }
    assert cli("dlq", "retry", "--all", "--dry-run", "--json").json["found"] == 0
    assert cli("schedule", "add", "s", "--every", "1d", "--task", "t").code == 0
    assert cli("schedule", "run", "s").code == 0
    assert cli("queue", "clear", "default", "--yes", "--json").json["deleted"] == 2
    assert cli("queue", "delete", "mail").code == 0
    answer = cli("doctor", "--deep", "--json").json
    assert answer["ok"] is True
    assert any("PostgreSQL " in finding["text"] for finding in answer["findings"])
    assert cli("status", "--json").json["queues"][0]["name"] == "default"
