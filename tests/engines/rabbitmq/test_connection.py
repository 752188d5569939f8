"""Outages of RabbitMQ: nothing fails, one line in the log for each change, and it comes back."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from urllib.parse import urlsplit

import aiormq
import pytest
from aiormq.exceptions import AMQPError

from holdfast.conformance.rabbitmq_server import RabbitNode
from holdfast.engines.broker import JobMessage
from holdfast.engines.rabbitmq import broker as broker_module
from holdfast.engines.rabbitmq import connection as connection_module
from holdfast.engines.rabbitmq.connection import RabbitTarget, amqp_errors, dial, hang_up
from holdfast.engines.rabbitmq.topology import inspect_queue
from holdfast.errors import ConfigError, EngineUnavailable
from tests.certificates import self_signed
from tests.engines.postgres.until import until
from tests.engines.rabbitmq.conftest import Bench, BrokerProxy, until_true
from tests.stream_server import stream_server

OWN = "worker.w1"


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The lines that this process logged, without those of the tests themselves."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.name.startswith(("holdfast", "aiormq", "aio_pika", "asyncio"))
    ]


def message(id_: str) -> JobMessage:
    return JobMessage(id=id_, queue=OWN, expires_ms=60_000)


async def test_a_port_of_something_else_is_named() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with stream_server(answer) as port:
        with pytest.raises(EngineUnavailable, match="its answer is not AMQP: check the port"):
            await dial(RabbitTarget.parse(f"amqp://127.0.0.1:{port}"))
    with pytest.raises(EngineUnavailable, match=r"cannot be reached: Connection refused\Z"):
        await dial(RabbitTarget.parse(f"amqp://127.0.0.1:{port}"))


@pytest.mark.parametrize(
    ("user", "vhost", "says"),
    [
        ("guest:wrong", None, "refuses the user 'guest': check name and password"),
        ("nobody:x", None, "refuses the user 'nobody': check name and password"),
        (None, "missing", "refuses the virtual host 'missing': it does not exist"),
    ],
)
async def test_what_a_person_must_correct_is_said_once(
    bench: Bench,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    user: str | None,
    vhost: str | None,
    says: str,
) -> None:
    monkeypatch.setattr(connection_module, "PAUSE_S_MAX", 0.001)
    parts = urlsplit(bench.url)
    login, _, place = parts.netloc.rpartition("@")
    url = f"amqp://{user or login}@{place}/{vhost or parts.path[1:]}"
    attempts = 0
    real = dial

    async def counted(*given: object) -> aiormq.Connection:
        nonlocal attempts
        attempts += 1
        return await real(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(connection_module, "dial", counted)
    with caplog.at_level(logging.DEBUG, "holdfast"):
        one = await bench.start(url)
        await until_true(lambda: attempts > 3)
    status = await one.broker.status()
    assert says in status.error
    assert (status.version, status.dead_messages) == ("", None)
    (line,) = lines(caplog)
    assert says in line
    assert "wrong" not in line


async def test_a_broker_that_is_down_at_the_start(
    bench: Bench, proxy: BrokerProxy, caplog: pytest.LogCaptureFixture
) -> None:
    """It connects later, and what was given meanwhile is sent."""
    url = proxy.url
    await proxy.stop()
    with caplog.at_level(logging.DEBUG, "holdfast"):
        one = await bench.start(url)
        await one.fails()
        one.broker.deliver([message("a")])
        one.broker.listen([OWN])
        port = urlsplit(url).port
        assert port is not None
        again = BrokerProxy(bench.url)
        await again.start(port)
        await until_true(lambda: one.broker.received([OWN]) == ["a"])
    assert len(lines(caplog)) == 2
    assert "cannot be reached" in lines(caplog)[0]
    assert lines(caplog)[1].endswith(" is connected")
    await one.broker.close()
    await again.stop()
    # For the fixture, which stops it again.
    await proxy.start()


async def test_a_connection_that_is_cut_is_replaced(
    bench: Bench, proxy: BrokerProxy, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "holdfast"):
        sender, worker = await bench.open(), await bench.open(proxy.url)
        worker.broker.listen([OWN, "mail"])
        for number in range(3):
            sender.broker.deliver([message(f"a{number}")])
            await until_true(lambda: worker.broker.received([OWN]))
            proxy.cut()
            await worker.fails()
            await worker.connected()
            # The message comes again, and every waiting lease looks again.
            await until_true(lambda: worker.broker.received([OWN]))
            worker.broker.acknowledge(worker.broker.received([OWN]))
            await worker.wakes()
            sender.broker.notify({"mail"})
            await worker.wakes()
    told = [line for line in lines(caplog) if not line.endswith(" is connected")]
    assert len(told) == 3
    assert all("jobs are found by polling" in line for line in told)


async def test_unconfirmed_messages_are_sent_again(bench: Bench, proxy: BrokerProxy) -> None:
    """The replies of the broker are lost: each message arrives at least once."""
    sender, worker = await bench.open(proxy.url), await bench.open()
    worker.broker.listen([OWN])
    found: set[str] = set()
    for number in range(5):
        proxy.lose_reply(number + 1)
        sender.broker.deliver([message(f"{number}.{each}") for each in range(50)])
        while len(found) < (number + 1) * 50:
            await until_true(lambda: worker.broker.received([OWN]))
            ids = worker.broker.received([OWN])
            found.update(ids)
            worker.broker.acknowledge(ids)
        proxy.heal()


async def test_tls(rabbit_node: RabbitNode, tmp_path: Path, prefix: str) -> None:
    assert rabbit_node.ca is not None
    bench = Bench(rabbit_node.tls_url(), prefix)
    other, _ = self_signed(tmp_path, "other")
    one = await bench.open(ca=rabbit_node.ca)
    assert (await one.broker.status()).version
    for options in ({}, {"ca": str(other)}):
        stranger = await bench.start(**options)
        await stranger.fails()
        assert "TLS failed" in (await stranger.broker.status()).error
    await bench.close()


async def test_unusable_certificates(tmp_path: Path) -> None:
    target = RabbitTarget.parse("amqps://127.0.0.1", ca=str(tmp_path / "missing.pem"))
    with pytest.raises(ConfigError, match=r"missing\.pem cannot be read"):
        await dial(target)


async def test_a_user_without_permission(rabbit_node: RabbitNode, prefix: str) -> None:
    rabbit_node.add_vhost(prefix)
    rabbit_node.add_user(prefix, "secret")
    rabbit_node.permit(prefix, prefix, configure="^$", write=".*", read=".*")
    bench = Bench(rabbit_node.url(prefix, prefix, "secret"), prefix)
    one = await bench.start()
    await one.fails()
    assert f"give the user '{prefix}' permission" in (await one.broker.status()).error
    rabbit_node.permit(prefix, prefix)
    await one.connected()
    await bench.close()
    rabbit_node.delete_vhost(prefix)


async def test_a_queue_that_does_not_answer_delays_no_other(
    rabbit_node: RabbitNode, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a crash of RabbitMQ, if the queue was just made and has lost its leader."""
    bench = Bench(rabbit_node.add_vhost(prefix), prefix)
    sender, worker = await bench.open(), await bench.open()
    worker.broker.listen([OWN])
    sender.broker.deliver([message("a")])
    await until_true(lambda: worker.broker.received([OWN]))
    await worker.broker.close()
    monkeypatch.setattr(broker_module, "ANSWER_S_MAX", 0.2)
    process = f"'{prefix}_{bench.names.full(OWN)}'"
    rabbit_node.evaluate(f"sys:suspend({process})")
    sender.broker.deliver([message("b"), JobMessage(id="c", queue="worker.w2")])
    other = await bench.open()
    other.broker.listen([OWN, "worker.w2"])
    await until_true(lambda: other.broker.received(["worker.w2"]) == ["c"])

    async def warned() -> bool:
        await other.broker.worker_queues([OWN])
        texts = (*(await other.broker.status()).warnings, *(await sender.broker.status()).warnings)
        silent = f"queue {bench.names.full(OWN)} at "
        return any(silent in text for text in texts) and any("not sent" in text for text in texts)

    await until(warned)
    rabbit_node.evaluate(f"sys:resume({process})")
    await bench.close()
    rabbit_node.delete_vhost(prefix)


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("amqp://h", ("h", 5672, "guest", "guest", "/")),
        ("amqps://u%40:p%2F%3a@[::1]:5/a%2Fb", ("::1", 5, "u@", "p/:", "a/b")),
        ("amqp://u:p@h/", ("h", 5672, "u", "p", "/")),
        ("amqp://u:p@h/%2F", ("h", 5672, "u", "p", "/")),
    ],
)
def test_urls(url: str, target: tuple[str, int, str, str, str]) -> None:
    found = RabbitTarget.parse(url)
    assert (found.host, found.port, found.user, found.password, found.vhost) == target
    assert found.is_tls == url.startswith("amqps")


async def test_a_virtual_host_with_any_name(rabbit_node: RabbitNode, prefix: str) -> None:
    vhost = f"ä/b?&%{prefix}"
    connection = await dial(RabbitTarget.parse(rabbit_node.add_vhost(vhost)))
    assert await inspect_queue(connection, "missing") is None
    await hang_up(connection)
    rabbit_node.delete_vhost(vhost)


@pytest.mark.parametrize("given", [Exception, asyncio.CancelledError, AMQPError, OSError("gone")])
async def test_calls_of_a_lost_connection_have_one_error(given: BaseException) -> None:
    """The client library ends them in several ways, one of them a bare Exception."""
    with pytest.raises(EngineUnavailable), amqp_errors(RabbitTarget.parse("amqp://h")):
        raise given


def test_other_exceptions_are_not_taken_for_a_lost_connection() -> None:
    with pytest.raises(KeyError), amqp_errors(RabbitTarget.parse("amqp://h")):
        raise KeyError("a bug")
