"""boto3 and signed URLs on a server that requires signatures."""

import datetime as dt
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import boto3
import botocore.auth
import pytest
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import ClientError

from holdfast.core import bounds
from holdfast.core.model import LeaseRequest, NewJob
from holdfast.core.verdict import Complete, Outcome, Settlement
from holdfast.engines.clock import SystemClock
from holdfast.engines.registry import open_engine
from holdfast.errors import ConfigError
from tests.cli.program import run_program
from tests.server.server_process import ServerProcess, server_process
from tests.server.signed_requests import signed

ACCOUNT = "000000000000"


STORE = ("--url", "sqlite:///jobs.db")


class Signed(NamedTuple):
    """A server, and access keys that were created before it started."""

    server: ServerProcess
    folder: Path
    operator: tuple[str, str]
    mailer: tuple[str, str]


@pytest.fixture(scope="module")
def at(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Signed]:
    folder = tmp_path_factory.mktemp("signed")
    operator = new_key(folder, "operator", "--scopes", "operate")
    mailer = new_key(folder, "mailer", "--scopes", "operate", "--prefix", "mail-")
    with server_process(folder, "--auth") as server:
        yield Signed(server, folder, operator, mailer)


def new_key(folder: Path, name: str, *flags: str) -> tuple[str, str]:
    line = ("token", "create", name, "--aws", "--json", *flags, *STORE)
    made = run_program(folder, *line).json
    return made["access_key_id"], made["secret_access_key"]


def client(server: ServerProcess, key: tuple[str, str], **more: Any) -> Any:
    config = Config(retries={"total_max_attempts": 1}, **more)
    return boto3.client(
        "sqs",
        endpoint_url=server.url,
        region_name="us-east-1",
        aws_access_key_id=key[0],
        aws_secret_access_key=key[1],
        config=config,
    )


def refusal(ask: Any, **members: Any) -> tuple[str, int]:
    with pytest.raises(ClientError) as refused:
        ask(**members)
    response = refused.value.response
    return response["Error"]["Code"], response["ResponseMetadata"]["HTTPStatusCode"]


def test_boto3_signs(at: Signed) -> None:
    server, (key, secret) = at.server, at.operator
    sqs = client(server, (key, secret))
    url = sqs.create_queue(QueueName="orders")["QueueUrl"]
    assert url == f"{server.url}/{ACCOUNT}/orders"
    assert url in sqs.list_queues()["QueueUrls"]
    wrong = client(server, (key, "x" * 40))
    assert refusal(wrong.list_queues) == ("SignatureDoesNotMatch", 403)
    for unknown in ("AKHFAAAABBBBCCCC2345", "AKIAIOSFODNN7EXAMPLE", "test"):
        assert refusal(client(server, (unknown, secret)).list_queues) == (
            "InvalidClientTokenId",
            403,
        )
    nobody = client(server, (key, secret), signature_version=UNSIGNED)
    assert refusal(nobody.list_queues) == ("MissingAuthenticationToken", 403)
    assert server.get("/v1/queues")[0] == 401


def test_a_key_is_confined_to_its_prefix(at: Signed) -> None:
    sqs = client(at.server, at.mailer)
    own = sqs.create_queue(QueueName="mail-a")["QueueUrl"]
    client(at.server, at.operator).create_queue(QueueName="hidden")
    assert sqs.list_queues()["QueueUrls"] == [own]
    assert refusal(sqs.create_queue, QueueName="other") == ("AccessDenied", 403)


def test_a_revoked_key_is_refused(at: Signed) -> None:
    sqs = client(at.server, at.mailer)
    sqs.list_queues()
    assert run_program(at.folder, "token", "revoke", at.mailer[0], *STORE).code == 0
    # A server sees what another process revoked within a second.
    found = next(filter(None, (code_of(sqs.list_queues) for _ in range(1_000))), None)
    assert found == "InvalidClientTokenId"


def code_of(ask: Callable[[], Any]) -> str | None:
    """The code of a refusal, if there is one."""
    try:
        ask()
    except ClientError as error:
        code: str = error.response["Error"]["Code"]
        return code
    return None


def test_a_signed_url(at: Signed) -> None:
    server, (key, secret) = at.server, at.operator
    client(server, at.operator).create_queue(QueueName="linked")
    path = f"/{ACCOUNT}/linked?Action=GetQueueAttributes&AttributeName.1=QueueArn"
    now = time.time_ns() // 1_000_000

    def get(at_ms: int = now, secret: str = secret, more: str = "") -> tuple[int, bytes]:
        request = signed(
            "query",
            method="GET",
            url=server.url + path,
            region="us-east-1",
            key=key,
            secret=secret,
            at_ms=at_ms,
        )
        target = f"{server.url}{request.path.decode()}?{request.query.decode()}{more}"
        try:
            with urllib.request.urlopen(target, timeout=60) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    status, body = get()
    assert (status, b"arn:aws:sqs:" in body) == (200, True), body
    for code, reply in (
        (b"SignatureDoesNotMatch", get(secret="x" * 40)),
        (b"SignatureDoesNotMatch", get(more="&AttributeName.2=All")),
        (b"RequestExpired", get(at_ms=now - 301_000)),
        (b"RequestExpired", get(at_ms=now + 1_000_000)),
        (b"IncompleteSignature", get(more="&X-Amz-Expires=604800")),
    ):
        assert reply[0] in (400, 403)
        assert b"<Code>%b</Code>" % code in reply[1], reply


@pytest.mark.anyio
@pytest.mark.parametrize(("minutes", "refused"), [(10, False), (-10, False), (20, True)])
async def test_the_engine_on_a_machine_whose_clock_is_wrong(
    at: Signed, monkeypatch: pytest.MonkeyPatch, minutes: int, *, refused: bool
) -> None:
    """A request is signed with the time of the machine. The engine takes times from
    the clock of the service."""
    off = dt.timedelta(minutes=minutes)
    now = botocore.auth.get_current_datetime
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda: now() + off)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", at.operator[0])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", at.operator[1])
    url = f"sqs://us-east-1/clock-?endpoint={at.server.url}&create=true"
    right = SystemClock.wall_ms
    off_ms = minutes * bounds.MINUTE_MS
    monkeypatch.setattr(SystemClock, "wall_ms", lambda self: right(self) + off_ms)
    engine = open_engine(url)
    try:
        if refused:
            with pytest.raises(ConfigError, match="clock of this machine"):
                await engine.open()
            return
        await engine.open()
        await engine.enqueue([NewJob(id="a", task="t", expires_ms=60_000)])
        [lease] = await engine.lease(LeaseRequest(queues=("default",), limit=1, wait_ms=5_000))
        assert lease.job.leased_at is not None
        assert abs(lease.job.leased_at / bounds.SECOND_MS - time.time()) < 60
        done = Settlement(lease=lease, verdict=Complete())
        assert await engine.settle([done]) == [Outcome.SETTLED]
    finally:
        await engine.close()
