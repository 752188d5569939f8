"""Addresses that webhooks may reach, and how responses are read."""

import asyncio
import ipaddress
from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast.worker.webhooks import client as module
from holdfast.worker.webhooks.client import (
    BODY_MAX,
    AddressRefused,
    NoAnswer,
    Unreachable,
    WebhookClient,
    WebhookRequest,
    WebhookResponse,
    effective_address,
    is_public,
)
from holdfast.worker.wire import WebhookSetup
from tests.worker.webhook_receiver import CERTIFICATE, Receiver, receiving

ONE = ("127.0.0.1/32",)


class Names:
    """A resolver whose answers differ from time to time."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


CHUNKED = b"Transfer-Encoding: chunked\r\n"


def client(*answers: list[str], **setup: Any) -> WebhookClient:
    given = {"secrets_file": "", "allow": ONE, **setup}
    return WebhookClient(WebhookSetup(**given), Names(*(answers or (["127.0.0.1"],))))


def request(port: int, **fields: Any) -> WebhookRequest:
    plain: dict[str, Any] = {
        "method": "POST", "secure": False, "host": "hooks.example", "port": port,
        "target": "/in?a=1", "headers": {"X-One": "1"}, "body": b'{"a":1}',
    }  # fmt: skip
    return WebhookRequest(**{**plain, **fields})


async def sent(receiver: Receiver, **fields: Any) -> WebhookResponse:
    return await client().ask(request(receiver.port, **fields), 10)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as made:
        yield made


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.8.8.8", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1",
        "169.254.169.254", "100.64.0.1", "192.0.2.1", "198.18.0.1", "224.0.0.1", "240.0.0.1",
        "255.255.255.255", "::", "::1", "fe80::1", "fc00::1", "fec0::1", "ff02::1", "2001:db8::1",
        "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "64:ff9b::10.0.0.1",
        "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "2002:7f00:1::", "2002:a00:1::1",
        "2001:0:4136:e378:8000:63bf:80ff:fffe", "fd00:ec2::254", "192.0.0.8", "192.88.99.1",
        "3fff::1", "::ffff:0:127.0.0.1", "168.63.129.16", "::ffff:168.63.129.16",
    ],
)  # fmt: skip
def test_private_addresses(address: str) -> None:
    assert not is_public(effective_address(ipaddress.ip_address(address)))
    assert not client(allow=()).may_reach(address)


@pytest.mark.parametrize(
    "address",
    ["1.1.1.1", "8.8.8.8", "2606:4700:4700::1111", "64:ff9b::8.8.8.8", "::ffff:8.8.8.8"],
)
def test_public_addresses(address: str) -> None:
    assert client(allow=()).may_reach(address)


def test_invalid_addresses() -> None:
    assert not client().may_reach("fe80::1%eth0")
    assert not client().may_reach("localhost")
    assert not client(allow=("fe80::/10",)).may_reach("127.0.0.1")
    assert client(allow=("10.0.0.0/8", "fd00::/8")).may_reach("::ffff:10.1.1.1")


def test_an_allowed_private_address() -> None:
    assert client(allow=("::1/128",)).may_reach("::1")
    assert client(allow=("2002:a00::/24",)).may_reach("2002:a00:1::1")
    assert not client(allow=("::1/128",)).may_reach("127.0.0.1")


async def test_the_request_as_it_arrives(receiver: Receiver) -> None:
    answer = await sent(receiver)
    assert (answer.status, answer.body, answer.truncated) == (200, b"ok", False)
    [got] = receiver.got
    assert got.line == "POST /in?a=1 HTTP/1.1"
    assert got.headers["host"] == f"hooks.example:{receiver.port}"
    assert got.headers["x-one"] == "1"
    assert got.headers["connection"] == "close"
    assert got.body == b'{"a":1}'


async def test_a_name_is_resolved_once_and_pinned() -> None:
    """The second answer would be a private address: it is never requested."""
    async with receiving("127.0.0.1") as meant_:
        async with receiving("127.0.0.2", meant_.port) as inside:
            rebound = client(["127.0.0.1"], ["127.0.0.2"])
            assert (await rebound.ask(request(meant_.port), 10)).status == 200
            assert rebound._resolve.asked == ["hooks.example"]  # type: ignore[attr-defined]
            with pytest.raises(AddressRefused, match=r"127\.0\.0\.2"):
                await rebound.ask(request(meant_.port), 10)
        assert (meant_.connections, inside.connections) == (1, 0)


@pytest.mark.parametrize("order", [1, -1])
async def test_a_name_with_a_private_address_too_is_refused(receiver: Receiver, order: int) -> None:
    mixed = client(["127.0.0.1", "127.0.0.2"][::order])
    with pytest.raises(AddressRefused, match="not a public address"):
        await mixed.ask(request(receiver.port), 10)
    assert receiver.connections == 0


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "2130706433", "0x7f.1", "[::1]"])
async def test_localhost_is_refused_in_every_notation(host: str) -> None:
    """By the system's own resolver."""
    real = WebhookClient(WebhookSetup(secrets_file=""))
    with pytest.raises((AddressRefused, Unreachable)) as caught:
        await real.ask(request(9, host=host.strip("[]")), 10)
    assert "127.0.0.1" in str(caught.value) or "::1" in str(caught.value)


async def test_another_address_is_tried_when_the_first_is_dead(receiver: Receiver) -> None:
    two = client(["127.0.0.3", "127.0.0.1"], allow=("127.0.0.0/8",))
    assert (await two.ask(request(receiver.port), 10)).status == 200


async def test_tls_is_for_the_name_and_not_the_address() -> None:
    async with receiving(tls=True) as receiver:
        trusting = client(ca_file=str(CERTIFICATE))
        assert (await trusting.ask(request(receiver.port, secure=True), 10)).status == 200
        with pytest.raises(Unreachable, match=r"certificate is not trusted.*mismatch"):
            await trusting.ask(request(receiver.port, secure=True, host="b.example"), 10)
        with pytest.raises(Unreachable, match="certificate is not trusted"):
            await client().ask(request(receiver.port, secure=True), 10)
        assert len(receiver.got) == 1, "the redirect was not followed"


async def test_a_receiver_without_tls_is_unreachable(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CONNECT_S", 0.2)
    with pytest.raises(Unreachable):
        await client().ask(request(receiver.port, secure=True), 10)


async def test_no_receiver() -> None:
    async with receiving() as gone:
        pass
    with pytest.raises(Unreachable, match="cannot be reached: Connection refused"):
        await sent(gone)
    with pytest.raises(Unreachable, match="has no address"):
        await client([]).ask(request(9), 10)


async def test_a_huge_response_is_truncated(receiver: Receiver) -> None:
    written = 0

    async def endless(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(b"x" * 65_536)
            written += 65_536
            await writer.drain()

    receiver.talk = endless
    answer = await sent(receiver)
    assert (len(answer.body), answer.truncated) == (BODY_MAX, True)
    await asyncio.wait_for(receiver.hung_up.wait(), 30)
    assert written < 64 * 1024 * 1024


@pytest.mark.parametrize("length", [BODY_MAX - 1, BODY_MAX, BODY_MAX + 1])
@pytest.mark.parametrize("way", ["length", "chunks", "until the end"])
async def test_bodies_around_the_bound(receiver: Receiver, length: int, way: str) -> None:
    body = b"x" * length
    head = b"HTTP/1.1 200 OK\r\n"
    if way == "length":
        head += b"Content-Length: %d\r\n" % length
    elif way == "chunks":
        head += b"Transfer-Encoding: chunked\r\n"
        cut = [body[at : at + 10_000] for at in range(0, length, 10_000)]
        body = b"".join(b"%x;a=b\r\n%s\r\n" % (len(each), each) for each in cut)
        body += b"0\r\n\r\n"
    receiver.answer = head + b"\r\n" + body
    answer = await sent(receiver)
    assert len(answer.body) == min(length, BODY_MAX)
    assert answer.truncated == (length > BODY_MAX)


async def test_a_slow_receiver_times_out(receiver: Receiver) -> None:
    """A byte now and then is no response."""

    async def drip(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(b"H")
            await writer.drain()
            await asyncio.sleep(0.01)

    receiver.talk = drip
    with pytest.raises(NoAnswer, match=r"within 0\.2 s"):
        await client().ask(request(receiver.port), 0.2)


@pytest.mark.parametrize("head", [b"", b"Content-Length: 999\r\n", CHUNKED])
async def test_an_endless_body_does_not_change_the_status(receiver: Receiver, head: bytes) -> None:
    """The receiver has the request: it must not be sent again."""

    async def drip(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n")
        while True:
            writer.write(b"1\r\nx\r\n" if head == CHUNKED else b"x")
            await writer.drain()
            await asyncio.sleep(0.01)

    receiver.talk = drip
    answer = await client().ask(request(receiver.port), 0.2)
    assert (answer.status, answer.truncated) == (200, True)


@pytest.mark.parametrize(
    "answer",
    [
        b"", b"SSH-2.0-OpenSSH\r\n\r\n", b"HTTP/1.1 200 OK\r\n", b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 20\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: " + b"y" * 40_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 103 Early Hints\r\n\r\n" * 9,
    ],
)  # fmt: skip
async def test_invalid_responses(receiver: Receiver, answer: bytes) -> None:
    receiver.answer = answer
    with pytest.raises(Unreachable):
        await sent(receiver)


async def test_interim_responses_are_skipped(receiver: Receiver) -> None:
    receiver.answer = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n"
    assert (await sent(receiver)).status == 204


async def test_a_body_that_breaks_off_is_kept_as_far_as_it_came(receiver: Receiver) -> None:
    receiver.answer = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"
    assert (await sent(receiver)).body == b"half"


async def test_no_proxy_is_used(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.9:1")
    assert (await sent(receiver)).status == 200


async def test_a_dead_address_does_not_use_up_the_timeout(
    monkeypatch: pytest.MonkeyPatch, receiver: Receiver
) -> None:
    monkeypatch.setattr(module, "_CONNECT_S", 0.1)
    tried: list[str] = []
    real = asyncio.open_connection

    async def connect(host: str, *args: Any, **named: Any) -> Any:
        tried.append(host)
        if host == "127.0.0.3":
            # The one that answers may take its time.
            monkeypatch.setattr(module, "_CONNECT_S", 30)
            await asyncio.sleep(60)
        return await real(host, *args, **named)

    monkeypatch.setattr(asyncio, "open_connection", connect)
    two = client(["127.0.0.3", "127.0.0.1"], allow=("127.0.0.0/8",))
    assert (await two.ask(request(receiver.port), 30)).status == 200
    assert tried == ["127.0.0.3", "127.0.0.1"]
