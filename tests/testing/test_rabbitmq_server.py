"""The private RabbitMQ survives kills, keeps its data and address, and leaves nothing behind."""

import asyncio
import gc
import json
import os
import ssl
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, NamedTuple

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel, AbstractQueue
from aio_pika.exceptions import AMQPError

from holdfast.conformance.private_server import ServiceUnavailable
from holdfast.conformance.rabbitmq_server import PrivateRabbitMQ, RabbitNode
from holdfast.worker import processes
from tests import services
from tests.certificates import self_signed
from tests.wait import wait_until

# It does what it reads from its input, and answers with the broker's process.
OWNER = """
import json, sys
from holdfast.conformance.rabbitmq_server import PrivateRabbitMQ
server = PrivateRabbitMQ(settings={"channel_max": "123"})
server.start()
print(json.dumps([server.node, str(server._directory), server.pid]), flush=True)
for line in sys.stdin:
    getattr(server, line.strip())()
    print(json.dumps(server.pid), flush=True)
"""
REPOSITORY = Path(__file__).parents[2]
MISSING = """
from holdfast.conformance import rabbitmq_server
from holdfast.conformance.private_server import ServiceUnavailable

def nothing():
    raise ServiceUnavailable("there is none\\nin this test.")

rabbitmq_server.find_programs = nothing
"""


class Owner(NamedTuple):
    process: "subprocess.Popen[str]"
    node: RabbitNode
    directory: Path
    pid: int

    def do(self, what: str) -> int | None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(what, file=self.process.stdin, flush=True)
        pid: int | None = read_answer(self.process.stdout)
        return pid


def read_answer(stream: IO[str]) -> Any:
    line = stream.readline()
    assert line, "the owner of the broker failed"
    return json.loads(line)


@pytest.fixture
def owner(rabbit_node: RabbitNode) -> Iterator[Owner]:
    """Another process, with a broker of its own besides the one of this run."""
    command = [sys.executable, "-c", OWNER]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        node, directory, pid = read_answer(process.stdout)
        yield Owner(process, RabbitNode(*node), Path(directory), pid)
        process.kill()


def programs_in(directory: Path) -> dict[int, str]:
    """The processes that work in a directory, and their names."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "cwd").readlink().is_relative_to(directory):
                found[int(entry.name)] = (entry / "comm").read_text().strip()
        except OSError:
            continue
    return found


async def refused(
    url: str,
    *kinds: type[Exception],
    match: str | None = None,
    ssl_context: ssl.SSLContext | None = None,
) -> None:
    """Connect in vain. A connection that failed is closed when it is collected, which needs the
    event loop: else a later test would get the warning that nobody awaited this."""
    with pytest.raises(kinds, match=match):
        await aio_pika.connect(url, ssl_context=ssl_context)
    gc.collect()
    await asyncio.sleep(0)


def is_running(pid: int) -> bool:
    found = processes.stat(pid)
    return found is not None and found.state != "Z"


async def durable_queue(channel: AbstractChannel) -> AbstractQueue:
    return await channel.declare_queue("kept", durable=True, arguments={"x-queue-type": "quorum"})


async def publish(channel: AbstractChannel, queue: str, *bodies: bytes) -> None:
    for body in bodies:
        message = aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        await channel.default_exchange.publish(message, queue)


async def first_two(url: str) -> list[bytes]:
    """Of the durable queue, to which they return. Its count is wrong until it has a leader."""
    async with await aio_pika.connect(url) as connection:
        queue = await durable_queue(await connection.channel())
        async with queue.iterator() as messages:
            return [(await anext(messages)).body for _ in range(2)]


async def test_it_keeps_its_data_and_address_and_ends_with_its_owner(
    owner: Owner, rabbit_node: RabbitNode
) -> None:
    url = owner.node.url()
    assert url != rabbit_node.url()
    assert owner.node.evaluate("application:get_env(rabbit, channel_max)") == "{ok, 123}"
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        await durable_queue(channel)
        await publish(channel, "kept", b"one", b"two")

    owner.node.flush()
    assert owner.do("kill") is None
    await refused(url, OSError, match="Connect call failed")
    second = owner.do("start")
    assert second != owner.pid
    assert await first_two(url) == [b"one", b"two"]

    running = programs_in(owner.directory)
    assert {"beam.smp", "epmd"} < set(running.values())
    owner.process.kill()
    wait_until(lambda: not owner.directory.exists())
    # A process that was killed may take a moment to end.
    wait_until(lambda: not any(is_running(pid) for pid in running))


async def test_each_process_has_a_virtual_host(amqp_url: str) -> None:
    async with await aio_pika.connect(amqp_url) as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(exclusive=True)
        await publish(channel, queue.name, b"hello")
        assert (await queue.get(no_ack=True)).body == b"hello"


async def test_users_permissions_and_policies(rabbit_node: RabbitNode) -> None:
    vhost, user, password = f"odd /%ü-{os.getpid()}", f"reader {os.getpid()}", 'p:@/"ß'
    url = rabbit_node.add_vhost(vhost)
    rabbit_node.add_user(user, password)
    rabbit_node.permit(user, vhost, configure="^$")
    rabbit_node.set_policy(vhost, "short", "^short", {"max-length": 1})
    async with await aio_pika.connect(rabbit_node.url(vhost, user, password)) as connection:
        channel = await connection.channel()
        with pytest.raises(AMQPError, match="ACCESS_REFUSED"):
            await channel.declare_queue("mine")
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        await channel.declare_queue("short")
        await publish(channel, "short", b"one", b"two")
        assert (await channel.declare_queue("short")).declaration_result.message_count == 1
        rabbit_node.clear_policy(vhost, "short")
        await publish(channel, "short", b"three")
        assert (await channel.declare_queue("short")).declaration_result.message_count == 2
    rabbit_node.delete_vhost(vhost)
    await refused(url, AMQPError)


def test_calls_from_several_threads_do_not_collide(rabbit_node: RabbitNode) -> None:
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(rabbit_node.evaluate, [f"{n} + 1" for n in range(40)]))
    assert answers == [str(n + 1) for n in range(40)]


def test_a_wrong_call_says_why(rabbit_node: RabbitNode) -> None:
    assert rabbit_node.evaluate("1 + 1") == "2"
    with pytest.raises(RuntimeError, match="undef"):
        rabbit_node.evaluate("rabbit:nothing()")
    with pytest.raises(RuntimeError, match="no_such_vhost"):
        rabbit_node.permit("guest", "nowhere")
    with pytest.raises(RuntimeError, match="max-length"):
        rabbit_node.set_policy("/", "wrong", "^never$", {"max-length": "many"})


async def test_clients_and_broker_prove_who_they_are(
    rabbit_node: RabbitNode, tmp_path: Path
) -> None:
    assert rabbit_node.ca is not None
    trusting = ssl.create_default_context(cafile=rabbit_node.ca)
    await (await aio_pika.connect(rabbit_node.tls_url(), ssl_context=trusting)).close()

    authority = Path(rabbit_node.ca).parent
    trusting.load_cert_chain(*self_signed(authority, f"client-{os.getpid()}", signer="server"))
    await (await aio_pika.connect(rabbit_node.tls_url(), ssl_context=trusting)).close()

    trusting.load_cert_chain(*self_signed(tmp_path, "stranger"))
    await refused(rabbit_node.tls_url(), OSError, AMQPError, ssl_context=trusting)
    unknown = ssl.create_default_context()
    url = rabbit_node.tls_url()
    await refused(url, OSError, match="CERTIFICATE_VERIFY_FAILED", ssl_context=unknown)


@pytest.mark.usefixtures("rabbit_node")
def test_a_failed_start_says_why_and_leaves_nothing() -> None:
    server = PrivateRabbitMQ(settings={"channel_max": "many"})
    with pytest.raises(ServiceUnavailable, match="channel_max"):
        server.start()
    assert server.pid is None
    assert server.log == ""


def test_the_environment_names_another_broker(
    monkeypatch: pytest.MonkeyPatch, rabbit_node: RabbitNode
) -> None:
    monkeypatch.setenv("HOLDFAST_TEST_AMQP_URL", rabbit_node.url())
    assert services.given_broker() == rabbit_node.url()
    monkeypatch.setenv("HOLDFAST_TEST_AMQP_URL", rabbit_node.url(password="wrong"))
    with pytest.raises(ServiceUnavailable, match=r"HOLDFAST_TEST_AMQP_URL .*wrong|refused|login"):
        services.given_broker()


@pytest.mark.parametrize("url", ["127.0.0.1", "amqp://guest@127.0.0.1:1/none"])
def test_a_wrong_environment_fails(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("HOLDFAST_TEST_AMQP_URL", url)
    with pytest.raises(ServiceUnavailable, match="HOLDFAST_TEST_AMQP_URL"):
        services.given_broker()


@pytest.mark.parametrize("required", [False, True])
def test_a_run_without_rabbitmq_says_so_at_its_end(tmp_path: Path, required: bool) -> None:
    (tmp_path / "missing.py").write_text(MISSING)
    tests = ["test_each_process_has_a_virtual_host", "test_a_wrong_call_says_why"]
    command = [sys.executable, "-m", "pytest", "-p", "missing", "-p", "no:cacheprovider", "-q"]
    command += ["-p", "tests.parallel", "--workers", "0" if required else "2"]
    command += [f"{Path(__file__).relative_to(REPOSITORY)}::{test}" for test in tests]
    names = {"HOLDFAST_TEST_AMQP_URL", "HOLDFAST_TEST_REQUIRE"}
    environment = {name: value for name, value in os.environ.items() if name not in names}
    environment["PYTHONPATH"] = str(tmp_path)
    if required:
        environment["HOLDFAST_TEST_REQUIRE"] = "rabbitmq"
    ran = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False
    )
    last = ran.stdout.splitlines()[-1]
    if required:
        assert ran.returncode == 1, ran.stdout
        assert "RabbitMQ is missing: there is none" in ran.stdout
    else:
        assert ran.returncode == 0, ran.stdout
        assert last.startswith(
            "2 tests did not run. RabbitMQ is missing: there is none in this test."
        )
