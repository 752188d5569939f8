"""`distribute` runs until it is stopped, or stores its task for upkeep."""

import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli import seed
from tests.cli.program import Cli, command, environment


@pytest.fixture
def tenants(cli: Cli) -> Cli:
    seed.begin()
    for name in ("mail", "mail.a", "mail.b"):
        cli("queue", "create", name)
    for n in range(5):
        seed.enqueue(f"a{n}", queue="mail.a")
    seed.enqueue("b", queue="mail.b")
    return cli


def waiting(cli: Cli, queue: str) -> int:
    return int(cli("queue", "show", queue, "--json").json["ready"])


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_distribute_runs_until_it_is_stopped(tenants: Cli, tmp_path: Path, stop: int) -> None:
    line = command("distribute", "--from", "mail.*", "--to", "mail", "--weight", "mail.a=2")
    run = subprocess.Popen(
        line, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        while run.poll() is None and waiting(tenants, "mail") < 6:
            pass
        run.send_signal(stop)
        out, _ = run.communicate()
    finally:
        run.kill()
        run.communicate()
    assert out == b"moved 6 jobs to mail\n"
    assert run.returncode == 0
    assert (waiting(tenants, "mail.a"), waiting(tenants, "mail.b")) == (0, 0)


def test_a_distribution_is_stored_listed_and_removed(tenants: Cli) -> None:
    stored = tenants("distribute", "--from", "mail.*", "--to", "mail", "--depth", "50", "--store")
    assert (stored.out, stored.err) == ("upkeep feeds mail from mail.*\n", "")
    early = tenants("distribute", "--from", "later.*", "--to", "default", "--store")
    assert early.err == "no other queue matches later.* yet; queues created later will\n"
    assert tenants("distribute", "--to", "default", "--forget").code == 0
    assert tenants("distribute", "--json").json == [
        {"source": "mail.*", "target": "mail", "depth": 50}
    ]
    assert tenants("distribute").out.splitlines()[1].split() == ["mail", "mail.*", "50"]
    assert tenants("distribute", "--to", "mail", "--forget").out == "upkeep no longer feeds mail\n"
    assert tenants("distribute", "--to", "mail", "--forget").code == 3
    assert tenants("distribute", "--json").json == []


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (["--to", "mail"], 2),
        (["--from", "mail.*"], 2),
        (["--from", "mail.*", "--to", "nope"], 3),
        (["--from", "mail.*", "--to", "mail", "--depth", "0"], 2),
        (["--from", "mail.*", "--to", "mail", "--weight", "mail.a"], 2),
        (["--from", "mail.*", "--to", "mail", "--weight", "mail.a=0"], 2),
        (["--from", "x y", "--to", "mail"], 2),
    ],
)
def test_invalid_values_are_refused(tenants: Cli, line: list[str], code: int) -> None:
    assert tenants("distribute", *line).code == code
