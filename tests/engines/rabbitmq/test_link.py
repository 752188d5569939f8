"""RabbitLink with a real RabbitMQ: messages of other programs, whatever they contain."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any

import aiormq
import pytest
from aiormq import spec

from holdfast.engines.broker import Message
from holdfast.engines.rabbitmq import RabbitLink
from holdfast.engines.rabbitmq.topology import inspect_queue, open_channel
from holdfast.errors import ConfigError, EngineUnavailable
from tests.engines.postgres.until import until
from tests.engines.rabbitmq.conftest import BrokerProxy, fetch

WAIT_MS = 60_000


@pytest.fixture
async def link(amqp_url: str) -> AsyncIterator[RabbitLink]:
    link = RabbitLink(amqp_url)
    await link.open()
    yield link
    await link.close()


@pytest.fixture
async def source(plain: aiormq.Connection, prefix: str) -> str:
    channel = await open_channel(plain)
    await channel.queue_declare(prefix, durable=True)
    return prefix


async def send(connection: aiormq.Connection, queue: str, *bodies: bytes, **given: Any) -> None:
    channel = await open_channel(connection, confirms=True)
    for body in bodies:
        await channel.basic_publish(
            body, routing_key=queue, properties=spec.Basic.Properties(**given)
        )
    await channel.close()


async def receive(link: RabbitLink, source: str, count: int, limit: int = 100) -> list[Message]:
    found: list[Message] = []
    while len(found) < count:
        found += await link.receive(source, limit, WAIT_MS)
    return found


async def until_left(connection: aiormq.Connection, queue: str, count: int) -> None:
    """Wait until so many messages are ready in a queue."""

    async def is_left() -> bool:
        found = await inspect_queue(connection, queue)
        return found is not None and found.messages == count

    await until(is_left)


async def test_messages_are_received_and_acknowledged(
    link: RabbitLink, plain: aiormq.Connection, source: str
) -> None:
    await send(
        plain, source, b"", b"\0" * 100, b"x" * 300_000,
        content_type="text/plain", message_id="m1", correlation_id="c1", priority=7,
        expiration="60000", headers={"traceparent": "t", "number": 5},
        content_encoding="gzip", message_type="order", reply_to="answers",
    )  # fmt: skip
    found = await receive(link, source, 3)
    assert [one.body for one in found] == [b"", b"\0" * 100, b"x" * 300_000]
    one = found[0]
    assert (one.content_type, one.message_id, one.correlation_id) == ("text/plain", "m1", "c1")
    assert (one.priority, one.expires_ms, one.routing_key) == (7, 60_000, source)
    assert one.headers == {"traceparent": "t", "number": "5"}
    assert (one.content_encoding, one.type, one.reply_to) == ("gzip", "order", "answers")
    assert not one.is_redelivered
    await link.acknowledge(source, found)
    assert await link.receive(source, 100, 0) == []
    await link.pause(source)
    await until_left(plain, source, 0)


async def test_no_more_than_the_limit_is_taken(
    link: RabbitLink, plain: aiormq.Connection, source: str
) -> None:
    await send(plain, source, *[b"%d" % number for number in range(20)])
    first = await receive(link, source, 5, limit=5)
    assert len(first) == 5
    assert await link.receive(source, 5, 0) == []
    await until_left(plain, source, 15)
    # A larger limit takes more, a smaller one none.
    more = await receive(link, source, 10, limit=15)
    assert await link.receive(source, 2, 0) == []
    await link.acknowledge(source, [*first, *more])
    await until_left(plain, source, 3)
    last = await receive(link, source, 2, limit=2)
    bodies = sorted(int(one.body) for one in (*first, *more, *last))
    assert len(set(bodies)) == len(bodies) == 17


async def test_some_of_many_are_acknowledged(
    link: RabbitLink, plain: aiormq.Connection, source: str
) -> None:
    await send(plain, source, *[b"%d" % number for number in range(10)])
    found = await receive(link, source, 10)
    await link.acknowledge(source, found[::2])
    await link.acknowledge(source, found[::2])
    await link.give_back(source, found[1:4:2])
    again = await receive(link, source, 2)
    assert {one.body for one in again} == {b"1", b"3"}
    assert all(one.is_redelivered for one in again)
    await link.pause(source)
    await until_left(plain, source, 5)
    with pytest.raises(EngineUnavailable, match="will be delivered again"):
        await link.acknowledge(source, again)


async def test_a_lost_connection_returns_the_messages(
    plain: aiormq.Connection, source: str, proxy: BrokerProxy
) -> None:
    link = RabbitLink(proxy.url)
    await send(plain, source, b"a")
    found = await receive(link, source, 1)
    waiting = asyncio.create_task(link.receive(source, 5, WAIT_MS))
    proxy.cut()
    with pytest.raises(EngineUnavailable):
        await waiting
    with pytest.raises(EngineUnavailable):
        await link.acknowledge(source, found)
    await link.give_back(source, found)
    (again,) = await receive(link, source, 1)
    assert again.body == b"a"
    assert again.tag != found[0].tag
    # The number of the first delivery means nothing any more.
    await link.acknowledge(source, found)
    await link.pause(source)
    await until_left(plain, source, 1)
    await link.close()


async def test_a_missing_source_is_an_error_to_fix(link: RabbitLink, prefix: str) -> None:
    with pytest.raises(ConfigError, match=rf"no queue '{prefix}'.*declare it there"):
        await link.receive(prefix, 1, 0)
    assert (await link.status()).error == ""


async def test_a_source_that_is_deleted(
    link: RabbitLink, plain: aiormq.Connection, source: str
) -> None:
    waiting = asyncio.create_task(link.receive(source, 5, WAIT_MS))
    channel = await open_channel(plain)

    async def is_consumed() -> bool:
        found = await inspect_queue(plain, source)
        return found is not None and found.consumers == 1

    await until(is_consumed)
    await channel.queue_delete(source)
    with pytest.raises(EngineUnavailable, match="ended the delivery"):
        await waiting
    with pytest.raises(ConfigError, match="no queue"):
        await link.receive(source, 5, 0)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("ä\0b", "ä\0b"),
        (None, "null"),
        (True, "true"),
        (2**62, str(2**62)),
        (1.5, "1.5"),
        (Decimal("1.25"), '"1.25"'),
        (b"\xff\xfe", '"//4="'),
        (dt.datetime(2030, 1, 1, tzinfo=dt.UTC), "1893456000"),
        ({"a": {"b": [1, {"c": None}]}}, '{"a":{"b":[1,{"c":null}]}}'),
        ([], "[]"),
    ],
)
async def test_headers_become_text(
    link: RabbitLink, plain: aiormq.Connection, source: str, value: Any, text: str
) -> None:
    value = bytearray(value) if isinstance(value, bytes) else value
    await send(plain, source, b"a", headers={"h": value})
    (found,) = await receive(link, source, 1)
    assert found.headers == {"h": text}


async def test_many_and_deep_headers(
    link: RabbitLink, plain: aiormq.Connection, source: str
) -> None:
    deep: Any = "end"
    for _ in range(50):
        deep = [{"d": deep}]
    await send(plain, source, b"a", headers={str(number): number for number in range(10_000)})
    await send(plain, source, b"b", headers={"deep": deep})
    first, second = await receive(link, source, 2)
    assert len(first.headers) == 10_000
    assert first.headers["9999"] == "9999"
    assert "…" in second.headers["deep"]


async def test_properties_that_are_no_text(
    link: RabbitLink, plain: aiormq.Connection, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the broker nor AMQP demands UTF-8; such a message must not end the connection."""
    marshal = spec.Basic.Properties.marshal

    def broken(properties: Any) -> bytes:
        return marshal(properties).replace(b"XX", b"\xff\xfe").replace(b"YY", b"\xfe\xff")

    with monkeypatch.context() as patch:
        patch.setattr(spec.Basic.Properties, "marshal", broken)
        await send(
            plain, source, b"a",
            message_id="idXX", content_type="XX", headers={"kXX": "vXX"},
        )  # fmt: skip
        await send(plain, source, b"b", message_id="idYY")
    first, second = await receive(link, source, 2)
    assert (first.message_id, second.message_id) == (r"id\xff\xfe", r"id\xfe\xff")
    assert first.content_type == r"\xff\xfe"
    assert first.headers == {r"k\xff\xfe": '"dv/+"'}


async def test_publish(link: RabbitLink, plain: aiormq.Connection, source: str) -> None:
    message = Message(
        body=b"\0body", content_type="a/b", message_id="m", correlation_id="c",
        headers={"h": "ä"}, priority=3, expires_ms=60_000, routing_key=source,
        content_encoding="gzip", type="order", reply_to="answers",
    )  # fmt: skip
    many = [Message(body=b"%d" % number, routing_key=source) for number in range(1_000)]
    answers = await link.publish([message, *many, message])
    assert [one.error for one in answers] == [""] * 1_002
    found = await fetch(plain, source)
    properties = found.header.properties
    assert found.body == b"\0body"
    assert (properties.content_type, properties.message_id) == ("a/b", "m")
    assert (properties.correlation_id, properties.headers) == ("c", {"h": "ä"})
    assert (properties.content_encoding, properties.message_type) == ("gzip", "order")
    assert properties.reply_to == "answers"
    assert (properties.priority, properties.delivery_mode) == (3, 2)
    assert 0 < int(properties.expiration or 0) <= 60_000
    await until_left(plain, source, 1_001)


async def test_what_cannot_be_published_does_not_affect_the_others(
    link: RabbitLink, plain: aiormq.Connection, source: str
) -> None:
    good = Message(body=b"good", routing_key=source)
    bad = {
        "no queue is bound": Message(routing_key=f"{source}.missing", message_id="m"),
        "no exchange": Message(exchange=f"{source}.missing"),
        "the routing key is 300 bytes": Message(routing_key="ä" * 150),
        "the message id is": Message(message_id="m" * 256, routing_key=source),
        "the name of the header": Message(headers={"h" * 256: ""}, routing_key=source),
        "its headers are": Message(headers={"h": "x" * 200_000}, routing_key=source),
        "the priority is 300": Message(priority=300, routing_key=source),
        "the reply address": Message(reply_to="amq.rabbitmq.reply-to", routing_key=source),
    }
    answers = await link.publish([good, *bad.values(), good])
    assert [answers[0].error, answers[-1].error] == ["", ""]
    for says, answer in zip(bad, answers[1:-1], strict=True):
        assert says in answer.error
        assert not answer.is_unknown
    await until_left(plain, source, 2)


async def test_returned_messages_with_the_same_id(link: RabbitLink, source: str) -> None:
    """The client library knows a returned message by its id."""
    lost = Message(routing_key=f"{source}.missing", message_id="m")
    kept = Message(routing_key=source, message_id="m")
    answers = await link.publish([lost, kept, lost, kept])
    assert [bool(one.error) for one in answers] == [True, False, True, False]


async def test_a_connection_lost_while_publishing_is_unknown(
    source: str, proxy: BrokerProxy
) -> None:
    link = RabbitLink(proxy.url)
    messages = [Message(body=b"x" * 10_000, routing_key=source) for _ in range(200)]
    publishing = asyncio.create_task(link.publish(messages))
    while link._channel is None or not link._channel.confirmations:  # noqa: ASYNC110
        await asyncio.sleep(0)
    proxy.fall_silent()
    proxy.cut()
    answers = await publishing
    assert all(one.is_unknown == bool(one.error) for one in answers)
    assert any(one.is_unknown for one in answers)
    proxy.heal()
    assert [one.error for one in await link.publish([messages[0]])] == [""]
    await link.close()


async def test_an_unreachable_broker() -> None:
    link = RabbitLink("amqp://127.0.0.1:1")
    for call in (link.open(), link.receive("q", 1, 0), link.publish([Message()])):
        with pytest.raises(EngineUnavailable, match=r"RabbitMQ at 127.0.0.1:1 cannot be reached"):
            await call
    assert "cannot be reached" in (await link.status()).error
    await link.pause("q")
    await link.close()
