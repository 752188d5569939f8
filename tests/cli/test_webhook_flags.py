"""`enqueue --webhook`, and the webhook flags of a worker."""

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.workers import WebhookFlags
from holdfast.core.breaker import Breaker
from holdfast.errors import UsageError
from tests.cli import seed
from tests.cli.program import Cli


def payload(id_: str) -> Any:
    job = seed.with_app(lambda app: app.get(id_))
    assert job is not None
    assert job.task == "webhook"
    return json.loads(job.payload)


def test_a_webhook_is_enqueued(cli: Cli) -> None:
    seed.enqueue("first")
    url = "https://hooks.example/in"
    assert cli("enqueue", "--webhook", url, "--payload", '{"a": 1}', "--id", "a").code == 0
    assert payload("a") == {"url": url, "body": {"a": 1}}
    assert cli("enqueue", "--webhook", url, "--id", "b").code == 0
    assert payload("b") == {"url": url}
    line = {"id": "c", "webhook": url, "payload": "text"}
    assert cli("enqueue", json.dumps(line)).code == 0
    assert payload("c") == {"url": url, "body": "text"}


@pytest.mark.parametrize("other", [("--task", "t"), ("--command", "date")])
def test_a_job_is_a_webhook_or_a_task_or_a_command(cli: Cli, other: tuple[str, str]) -> None:
    seed.enqueue("first")
    ran = cli("enqueue", "--webhook", "https://hooks.example/in", *other)
    assert ran.code == 2
    assert "either a webhook" in ran.err


def test_webhook_flags_become_worker_options(tmp_path: Path) -> None:
    assert WebhookFlags().options() == {}
    secrets = tmp_path / "secrets"
    secrets.write_text("a secret of the tests\n")
    said = WebhookFlags(webhooks=True, webhook_secrets=secrets).options()
    assert said["webhook_secrets"] == str(secrets)
    assert "webhook_breaker" not in said, "on by default"
    flags = WebhookFlags(
        webhooks=True,
        webhook_secrets=secrets,
        webhook_allow=["10.0.0.0/8"],
        webhook_breaker="2 failures",
    )
    assert flags.options()["webhook_allow"] == ("10.0.0.0/8",)
    assert flags.options()["webhook_breaker"] == Breaker(failures=2)
    off = WebhookFlags(webhooks=True, webhook_secrets=secrets, webhook_breaker="off")
    assert off.options()["webhook_breaker"] is None
    with pytest.raises(UsageError, match="--webhooks is missing"):
        WebhookFlags(webhook_secrets=secrets).options()


def test_missing_files_are_reported_before_a_worker_starts(cli: Cli) -> None:
    seed.enqueue("first")
    ran = cli("worker", "start", "--webhooks")
    assert (ran.code, "--webhook-secrets" in ran.err) == (2, True)
