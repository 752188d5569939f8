"""`distribute` runs until it is stopped, or stores its task for upkeep."""

import signal
import subprocess
from pathlib import Path

import pytest

from holdfast.testing import sqs_client
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


def test_messages_of_sqs_are_distributed(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    with sqs_client() as sqs:
        urls = [sqs.create_queue(QueueName=name)["QueueUrl"] for name in ("mail-a", "work")]
        for n in range(9):
            sqs.send_message(QueueUrl=urls[0], MessageBody=str(n))
        url = f"sqs://us-east-1?endpoint={sqs.meta.endpoint_url}"
        line = ("distribute", "--from", "mail-*", "--to", "work", "--limit")
        done = cli(*line, "7", "--broker", f"aws={url}")
        assert done.out == "moved 7 messages to work\n"
        monkeypatch.setenv("HOLDFAST_BROKER_AWS", url)
        assert cli(*line, "2", "--broker", "aws", "--json").json == {"queue": "work", "moved": 2}
        found = sqs.receive_message(QueueUrl=urls[1], MaxNumberOfMessages=10)["Messages"]
        assert [each["Body"] for each in found] == [str(n) for n in range(9)]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (("--to", "work", "--broker", "aws=sqs://eu-west-1"), "--from is missing"),
        (("--from", "a", "--broker", "aws=sqs://eu-west-1"), "--to is missing"),
        (("--from", "a", "--to", "b", "--broker", "aws"), "or set HOLDFAST_BROKER_AWS"),
        (("--from", "a", "--to", "b", "--broker", "x=amqp://h"), "use one like sqs://REGION"),
        (("--from", "a", "--to", "b", "--broker", "x=sqs://R"), "sqs://REGION such as"),
        (
            ("--from", "a", "--to", "b", "--broker", "x=sqs://eu-west-1", "--store"),
            "neither --broker",
        ),
        (("--from", "a", "--to", "b", "--limit", "0"), "--limit 0 is out of range"),
    ],
)
def test_wrong_flags_are_explained(tenants: Cli, line: tuple[str, ...], text: str) -> None:
    done = tenants("distribute", *line)
    assert done.code == 2
    assert text in done.err


def test_so_many_jobs_are_moved(tenants: Cli) -> None:
    line = ("distribute", "--from", "mail.*", "--to", "mail", "--limit", "4")
    assert tenants(*line).out == "moved 4 jobs to mail\n"
    assert waiting(tenants, "mail") == 4
