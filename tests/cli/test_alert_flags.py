"""The alert flags of `holdfast up` and its server."""

import socket
from pathlib import Path

import msgspec
import pytest

from holdfast.cli.serve import AlertFlags, server_program
from holdfast.server.main import ServeOptions
from tests.cli.program import Cli

HOOK = "https://example.org/alerts?secret=s3cret"


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    path = tmp_path / "secrets"
    path.write_text("0123456789abcdef" * 4)
    path.chmod(0o600)
    return path


def test_up_passes_alert_settings_to_its_server_through_a_pipe(secrets: Path) -> None:
    """The URL may contain a secret, and every user can see arguments and variables."""
    flags = AlertFlags(
        alert_webhook=HOOK, alert_webhook_secrets=secrets, alert_webhook_allow=["10.0.0.0/8"]
    )
    with socket.create_server(("127.0.0.1", 0)) as listening:
        program = server_program("sqlite:///q.db", listening, flags.settings())
    settings = msgspec.json.decode(program.options, type=ServeOptions).settings
    assert (settings.alert_webhook, settings.alert_webhook_allow) == (HOOK, ("10.0.0.0/8",))
    assert "s3cret" not in f"{program.what} {program.module}"


def test_alert_flags_without_a_server_are_refused(cli: Cli, secrets: Path) -> None:
    hook = ("--alert-webhook", HOOK, "--alert-webhook-secrets", str(secrets))
    ran = cli("up", "--no-serve", *hook)
    assert ran.code == 2
    assert "leave out --no-serve" in ran.err
    assert "s3cret" not in ran.err
    ran = cli("up", "--alert-webhook-allow", "10.0.0.0/8")
    assert (ran.code, "--alert-webhook" in ran.err) == (2, True)
