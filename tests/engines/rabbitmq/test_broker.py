"""RabbitBroker with a real RabbitMQ: notifications, worker queues, dead messages."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

import aiormq
import pytest
from aiormq.exceptions import DeliveryError

from holdfast.core import bounds
from holdfast.engines.broker import DeadMessage, JobMessage, WorkerQueueView
from holdfast.engines.rabbitmq import broker as broker_module
from holdfast.engines.rabbitmq.topology import (
    TTL_MS_MAX,
    RabbitNames,
    dead_arguments,
    inspect_queue,
    open_channel,
    worker_arguments,
)
from holdfast.errors import EngineUnavailable
from tests.engines.postgres.until import until
from tests.engines.rabbitmq.conftest import Bench, fetch, until_true

OWN = "worker.w1"


def message(id_: str = "a", expires_ms: int | None = None, queue: str = OWN) -> JobMessage:
    return JobMessage(id=id_, queue=queue, expires_ms=expires_ms)


async def publish(
    connection: aiormq.Connection, body: bytes, queue: str, properties: aiormq.spec.Basic.Properties
) -> None:
    """A queue that has just been made may refuse for a moment."""
    channel = await open_channel(connection, confirms=True)

    async def is_stored() -> bool:
        with contextlib.suppress(DeliveryError):
            await channel.basic_publish(body, routing_key=queue, properties=properties)
            return True
        return False

    await until(is_stored)
    await channel.close()


async def test_a_notification_wakes_those_who_listen(bench: Bench) -> None:
    sender, listener, other = [await bench.open() for _ in range(3)]
    await listener.hears("mail")
    await other.hears("reports")
    sender.broker.notify({"mail"})
    await listener.wakes()
    # The broker keeps the order of one sender, so the first one would have come before.
    sender.broker.notify({"reports"})
    await other.wakes()
    sender.broker.notify(())
    await asyncio.gather(listener.wakes(), other.wakes())
    assert not listener.woken.is_set()
    assert not other.woken.is_set()


async def test_names_with_dots_are_no_patterns(bench: Bench) -> None:
    sender, listener = await bench.open(), await bench.open()
    await listener.hears("a.b", "a", "b.a")
    for name in ("a.c", "a.b.c", "b"):
        sender.broker.notify({name})
        await until_true(lambda: not sender.broker._has_unsent)
    assert not listener.woken.is_set()
    sender.broker.notify({"a.b"})
    await listener.wakes()


async def test_a_notification_of_its_own_wakes_nobody(bench: Bench) -> None:
    """The ledger has done that already."""
    one, other = await bench.open(), await bench.open()
    await one.hears("mail")
    await other.hears("mail")
    one.broker.notify({"mail"})
    await other.wakes()
    other.broker.notify({"mail"})
    await one.wakes()
    assert not other.woken.is_set()


async def test_namespaces_and_prefixes_are_apart(bench: Bench, prefix: str) -> None:
    sender = await bench.open(namespace="a.b")
    same, other = await bench.open(namespace="a.b"), await bench.open(namespace="a")
    third = await bench.open(prefix=f"{prefix[:-1]}_", namespace="a.b")
    for one in (same, other, third):
        await one.hears("b.c", "c", OWN)
    sender.broker.notify({"c"})
    sender.broker.deliver([message()])
    await same.wakes()
    await until_true(lambda: same.broker.received([OWN]))
    assert not other.broker.received([OWN])
    assert not third.broker.received([OWN])
    assert not other.woken.is_set()
    assert not third.woken.is_set()


async def test_a_delivery_of_nothing_keeps_the_connection(bench: Bench) -> None:
    sender, worker = await bench.open(), await bench.open()
    connection = sender.broker._link.connection
    await worker.hears(OWN)
    sender.broker.deliver([message("first")])
    await until_true(lambda: worker.broker.received([OWN]) == ["first"])
    sender.broker.deliver([])
    sender.broker.deliver([message("second")])
    await until_true(lambda: worker.broker.received([OWN]) == ["first", "second"])
    sender.broker.deliver([])
    assert not (await sender.broker.status()).error
    assert sender.broker._link.connection is connection


async def test_without_listeners_nothing_piles_up(bench: Bench, plain: aiormq.Connection) -> None:
    sender, listener = await bench.open(), await bench.open()
    for _ in range(3):
        sender.broker.notify({"mail"})
        await until_true(lambda: not sender.broker._has_unsent)
    await listener.hears("mail")
    assert not listener.woken.is_set()


async def test_many_notifications_are_merged(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    publish = aiormq.Channel.basic_publish

    async def counted(channel: Any, body: bytes, **given: Any) -> Any:
        sent.append(given["routing_key"])
        return await publish(channel, body, **given)

    monkeypatch.setattr(aiormq.Channel, "basic_publish", counted)
    sender = await bench.open()
    for _ in range(1_000):
        sender.broker.notify({"mail"})
    await until_true(lambda: not sender.broker._has_unsent)
    assert sent == ["mail"]


async def test_a_job_gets_a_message_in_its_workers_queue(
    bench: Bench, plain: aiormq.Connection
) -> None:
    sender = await bench.open()
    sender.broker.deliver([message("a", 60_000), message("b"), message("c", 10**12)])
    queue = bench.names.full(OWN)
    await until(lambda: inspect_queue(plain, queue))
    found = [await fetch(plain, queue) for _ in range(3)]
    found.sort(key=lambda one: one.body)
    assert [one.body for one in found] == [
        b'{"id":"%s","queue":"worker.w1"}' % each for each in (b"a", b"b", b"c")
    ]
    first, second, third = [one.header.properties for one in found]
    assert (first.delivery_mode, first.content_type) == (2, "application/json")
    assert 0 < int(first.expiration or 0) <= 60_000
    assert second.expiration is None
    assert int(third.expiration or 0) == TTL_MS_MAX


async def test_a_worker_receives_and_acknowledges(bench: Bench, plain: aiormq.Connection) -> None:
    sender, worker = await bench.open(), await bench.open()
    worker.broker.listen([OWN])
    sender.broker.deliver([message("a"), message("b"), message("a")])
    await until_true(lambda: set(worker.broker.received([OWN])) == {"a", "b"})
    assert worker.broker.received(["worker.w2"]) == []
    worker.broker.acknowledge(["a", "unknown"])
    assert worker.broker.received([OWN]) == ["b"]
    await worker.broker.close()
    # Both messages of the first job are gone, the other one is still there.
    assert b'"b"' in (await fetch(plain, bench.names.full(OWN))).body
    left = await inspect_queue(plain, bench.names.full(OWN))
    assert left is not None
    assert left.messages == 0


async def test_messages_of_a_killed_worker_come_again(bench: Bench) -> None:
    sender, worker, other = [await bench.open() for _ in range(3)]
    worker.broker.listen([OWN])
    sender.broker.deliver([message()])
    await until_true(lambda: worker.broker.received([OWN]))
    connection = worker.broker._link.connection
    assert connection is not None
    other.broker.listen([OWN])
    connection._writer_task.cancel()
    await until_true(lambda: [*worker.broker.received([OWN]), *other.broker.received([OWN])])


async def test_held_messages_are_acknowledged_after_a_while(
    bench: Bench, plain: aiormq.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the broker would close the channel after half an hour."""
    monkeypatch.setattr(broker_module, "RETRY_S", 0.01)
    sender, worker = await bench.open(), await bench.open()
    worker.broker.listen([OWN])
    sender.broker.deliver([message()])
    await until_true(lambda: worker.broker.received([OWN]))
    monkeypatch.setattr(broker_module, "HELD_S_MAX", 0.0)
    await until_true(lambda: not worker.broker.received([OWN]))
    await worker.broker.close()
    left = await inspect_queue(plain, bench.names.full(OWN))
    assert left is not None
    assert left.messages == 0


async def test_an_expired_message_is_dead(bench: Bench) -> None:
    one = await bench.open()
    one.broker.deliver([message("a", 1)])
    (dead,) = await one.broker.take_dead(10, 60_000)
    assert (dead.id, dead.queue, dead.reason) == ("a", OWN, "expired")
    assert dead.dead_at is not None
    assert [each["queue"] for each in dead.history] == [bench.names.full(OWN)]
    assert dead.history[0]["count"] == 1
    assert (await one.broker.status()).dead_messages in (0, 1)
    await one.broker.settle_dead([dead])
    assert await one.broker.take_dead(10, 0) == []


async def test_dead_messages_that_are_put_back_come_again(bench: Bench) -> None:
    one, other = await bench.open(), await bench.open()
    one.broker.deliver([message("a", 1), message("b", 1)])
    taken: list[DeadMessage] = []
    while len(taken) < 2:
        taken += await one.broker.take_dead(1, 60_000)
    assert {each.id for each in taken} == {"a", "b"}
    await one.broker.settle_dead([taken[0]], [taken[1]])
    again: list[DeadMessage] = []
    while not again:
        again = [*await one.broker.take_dead(10, 50), *await other.broker.take_dead(10, 50)]
    assert [each.id for each in again] == [taken[1].id]
    # Of another connection: ignored.
    await bench.opened[0].broker.settle_dead([taken[1]])


async def test_messages_that_are_not_ours_become_dead_messages(
    bench: Bench, plain: aiormq.Connection
) -> None:
    worker = await bench.open()
    worker.broker.listen([OWN])
    name = bench.names.full(OWN)
    await until(lambda: inspect_queue(plain, name))
    bodies = [b"", b"\0\xff", b"[]", b'{"id":"a b","queue":"worker.w1"}', b'{"id":"a"}']
    for body in bodies:
        headers: Any = {"n": 1.5, "t": {"deep": [1]}}
        properties = aiormq.spec.Basic.Properties(content_type="text/plain", headers=headers)
        await publish(plain, body, name, properties)
    dead: list[DeadMessage] = []
    while len(dead) < len(bodies):
        dead += await worker.broker.take_dead(10, 60_000)
    assert sorted(one.body for one in dead) == sorted(bodies)
    for one in dead:
        assert (one.id, one.queue, one.reason) == (None, OWN, "rejected")
        assert one.content_type == "text/plain"
        assert one.headers["n"] == "1.5"
        assert one.headers["t"] == '{"deep":[1]}'


async def test_what_was_given_before_the_connection_is_sent_at_close(
    bench: Bench, plain: aiormq.Connection
) -> None:
    """As by a program that enqueues one job and ends."""
    listener = await bench.open()
    await listener.hears("mail")
    short = await bench.start()
    short.broker.notify({"mail"})
    short.broker.deliver([message()])
    await short.broker.close()
    await listener.wakes()
    assert b'"a"' in (await fetch(plain, bench.names.full(OWN))).body


async def test_open_again_after_close(bench: Bench) -> None:
    sender, listener = await bench.open(), await bench.open()
    await listener.broker.close()
    await listener.broker.close()
    await listener.broker.open("default", listener.woken.set)
    await listener.broker.open("default", listener.woken.set)
    await listener.hears("mail")
    sender.broker.notify({"mail"})
    await listener.wakes()


async def test_worker_queues_are_counted(bench: Bench) -> None:
    one, worker = await bench.open(), await bench.open()
    names = [OWN, "worker.w2", "worker.w3"]
    assert await one.broker.worker_queues(names) == []
    worker.broker.listen([OWN])
    one.broker.deliver([message("a", queue="worker.w2")])

    async def found() -> bool:
        return await one.broker.worker_queues(names) == [
            WorkerQueueView(queue=OWN, messages=0, consumers=1),
            WorkerQueueView(queue="worker.w2", messages=1, consumers=0),
        ]

    await until(found)


async def test_names_at_their_bounds(amqp_url: str) -> None:
    queue = "worker." + "w" * 73
    names = RabbitNames("p" * 30, "n" * 79 + ".")
    assert len(queue) == 80
    assert bounds.QUEUE_NAME.match(queue)
    assert len(names.full(queue)) <= 255
    bench = Bench(amqp_url, names.prefix)
    sender, worker = [await bench.open(namespace=names.namespace) for _ in range(2)]
    worker.broker.listen([queue])
    sender.broker.deliver([message("i" * 128, queue=queue)])
    await until_true(lambda: worker.broker.received([queue]) == ["i" * 128])
    worker.broker.acknowledge(["i" * 128])
    sender.broker.deliver([message("a", 1, queue="worker.v")])
    dead = await sender.broker.take_dead(1, 60_000)
    assert [one.queue for one in dead] == ["worker.v"]
    await sender.broker.settle_dead(dead)
    await bench.close()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"x-queue-type": "quorum"}, "x-dead-letter-exchange is not set"),
        ({"x-queue-type": "classic", "x-message-ttl": 60_000}, "x-message-ttl is '60000'"),
        ({"x-queue-type": "classic", "x-message-ttl": 60_000}, "expired messages are lost"),
        ({}, "x-queue-type is not set"),
    ],
)
async def test_a_queue_with_other_arguments_is_used_and_reported_once(
    bench: Bench,
    plain: aiormq.Connection,
    caplog: pytest.LogCaptureFixture,
    arguments: dict[str, Any],
    says: str,
) -> None:
    channel = await open_channel(plain)
    name = bench.names.full(OWN)
    await channel.queue_declare(name, durable=True, arguments=arguments)
    with caplog.at_level(logging.INFO, "holdfast.rabbitmq"):
        sender, worker = await bench.open(), await bench.open()
        worker.broker.listen([OWN])
        sender.broker.deliver([message()])
        await until_true(lambda: worker.broker.received([OWN]))
        await sender.broker.worker_queues([OWN])
        await sender.broker.worker_queues([OWN])
    for one in (sender, worker):
        (warning,) = (await one.broker.status()).warnings
        assert f"queue {name} " in warning
        assert says in warning
        assert sum(record.getMessage() == warning for record in caplog.records) == 2


async def test_another_dead_ttl_is_reported(bench: Bench, plain: aiormq.Connection) -> None:
    channel = await open_channel(plain)
    name = bench.names.dead
    await channel.queue_declare(name, durable=True, arguments=dead_arguments(60_000))
    one = await bench.open()
    (warning,) = (await one.broker.status()).warnings
    assert f"queue {name} " in warning
    assert "x-message-ttl is '60000'" in warning
    same = await bench.open(dead_ttl_ms=60_000)
    assert (await same.broker.status()).warnings == ()


async def test_a_full_queue_costs_only_the_message(
    bench: Bench,
    plain: aiormq.Connection,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A limit by the operator: the ledger has the jobs."""
    monkeypatch.setattr(broker_module, "REFUSED_S", 0.0)
    channel = await open_channel(plain)
    limited = worker_arguments(bench.names, OWN) | {"x-max-length": 1}
    await channel.queue_declare(bench.names.full(OWN), durable=True, arguments=limited)
    one = await bench.open()

    async def is_full() -> bool:
        one.broker.deliver([message()])
        await until_true(lambda: not one.broker._has_unsent)
        return bool((await one.broker.status()).warnings)

    await until(is_full)
    (warning,) = (await one.broker.status()).warnings
    assert "not sent because their queue at the broker is full" in warning
    assert len([one for one in caplog.records if "is full" in one.getMessage()]) == 1


async def test_too_many_messages_are_dropped_and_counted(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_module, "BUFFER_MAX", 2)
    one = await bench.start("amqp://127.0.0.1:1")
    one.broker.deliver([message(each) for each in "abcd"])
    assert [each.message.id for each in one.broker._messages] == ["c", "d"]
    warnings = (await one.broker.status()).warnings
    (warning,) = warnings
    assert warning.startswith("2 messages for addressed jobs not sent because too many wait")


async def test_a_deleted_queue_is_declared_again(
    bench: Bench, plain: aiormq.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an operator, while a worker consumes it."""
    monkeypatch.setattr(broker_module, "RETRY_S", 0.01)
    sender, worker = await bench.open(), await bench.open()
    worker.broker.listen([OWN])
    name = bench.names.full(OWN)
    await until_true(lambda: OWN in worker.broker._workers)
    await until_true(lambda: not worker.broker._workers[OWN].consumer.is_closed)
    before = worker.broker._workers[OWN]
    channel = await open_channel(plain)
    await channel.queue_delete(name)
    await until_true(lambda: worker.broker._workers[OWN] is not before)
    await until_true(lambda: not worker.broker._workers[OWN].consumer.is_closed)
    sender.broker.deliver([message()])
    await until_true(lambda: worker.broker.received([OWN]))


async def test_a_deleted_exchange_of_notifications_is_declared_again(
    bench: Bench, plain: aiormq.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that only listens has to find out by itself."""
    monkeypatch.setattr(broker_module, "REBIND_S", 0.01)
    listener = await bench.open()
    await listener.hears("mail")
    before = listener.broker._link.connection
    channel = await open_channel(plain)
    await channel.exchange_delete(bench.names.notifications)
    await until_true(lambda: listener.broker._link.connection not in (None, before))
    await listener.connected()
    await channel.exchange_declare(bench.names.notifications, passive=True)


async def test_a_deleted_queue_of_dead_messages_is_declared_again(
    bench: Bench, plain: aiormq.Connection
) -> None:
    one = await bench.open()
    assert await one.broker.take_dead(1, 0) == []
    channel = await open_channel(plain)
    await channel.queue_delete(bench.names.dead)
    with pytest.raises(EngineUnavailable, match="ended the delivery"):
        await one.broker.take_dead(1, 60_000)
    # Without a queue for it, RabbitMQ would try again only after minutes.
    assert await one.broker.take_dead(1, 0) == []
    one.broker.deliver([message("a", 1)])
    assert [dead.id for dead in await one.broker.take_dead(1, 60_000)] == ["a"]


async def test_of_very_many_queues_those_in_use_are_received(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each worker costs a channel, and a connection has a limited number of them."""
    monkeypatch.setattr(broker_module, "NAMES_MAX", 2)
    monkeypatch.setattr(broker_module, "RETRY_S", 0.01)
    one = await bench.open()
    one.broker.listen([OWN, "worker.w2"])
    await until_true(lambda: len(one.broker._workers) == 2)
    one.broker.listen(["worker.w3"])
    assert set(one.broker._listening) == {OWN, "worker.w2"}
    one.broker._listening["worker.w2"] -= broker_module.UNUSED_S
    one.broker.listen(["worker.w3"])
    await until_true(lambda: set(one.broker._workers) == {OWN, "worker.w3"})

    async def left() -> bool:
        views = await one.broker.worker_queues(["worker.w2"])
        return [view.consumers for view in views] == [0]

    await until(left)


async def test_calls_without_a_connection(bench: Bench) -> None:
    one = await bench.start("amqp://127.0.0.1:1")
    await one.fails()
    one.broker.listen([OWN])
    one.broker.notify({"mail"})
    one.broker.deliver([message()])
    one.broker.acknowledge(["a"])
    assert one.broker.received([OWN]) == []
    for call in (one.broker.take_dead(1, 60_000), one.broker.worker_queues([OWN])):
        with pytest.raises(EngineUnavailable, match=r"RabbitMQ at 127.0.0.1:1 "):
            await call
    await one.broker.settle_dead([])
