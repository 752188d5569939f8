"""The workspace of a contestant: a directory and a new, empty file, database or virtual host of
RabbitMQ for every turn.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import asyncpg

from bench.peers.catalogue import SQS_PREFIX, StoreName
from bench.processes import background
from bench.server import SERVE
from bench.sqs_client import headers, queue_url
from bench.store_factory import SETTINGS
from bench.stores import EngineName
from holdfast.conformance.postgres_server import PrivatePostgres
from holdfast.conformance.rabbitmq_server import PrivateRabbitMQ, RabbitNode


@dataclass(frozen=True, slots=True)
class Workspace:
    """`store` is a path or a URL, as the peers expect it. The directory belongs to one turn. With a
    broker, `database` is the ledger and `amqp` the URL of the broker."""

    store: str
    directory: Path
    database: str = ""
    amqp: str = ""
    node: RabbitNode | None = None
    endpoint: str = ""
    """Of an SQS server: then `store` is the broker URL of Celery."""
    server_pid: int | None = None
    """Of the database server."""

    @property
    def url(self) -> str:
        if self.endpoint:
            control = f"sqlite:///{self.directory / 'control.db'}"
            return f"sqs://us-east-1/{SQS_PREFIX}?endpoint={self.endpoint}&create=true&control={control}"
        return self.store if "://" in self.store else f"sqlite:///{self.store}"

    def depth(self, queue: str) -> int:
        """Messages of a queue at the broker, those included that are not acknowledged."""
        if self.endpoint:
            return sqs_depth(int(self.endpoint.rpartition(":")[2]), queue)
        assert self.node is not None
        return self.node.depth(self.amqp.rpartition("/")[2], queue)


SQS_KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
_SQS_COUNTS = ("", "NotVisible", "Delayed")


def sqs_depth(port: int, queue: str, *, kinds: Sequence[str] = _SQS_COUNTS) -> int:
    """Messages of a queue at an SQS server; by default also those in flight and delayed ones."""
    names = [f"ApproximateNumberOfMessages{each}" for each in kinds]
    request = {"QueueUrl": queue_url(port, queue), "AttributeNames": names}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/", json.dumps(request), headers("GetQueueAttributes"))
    answer = json.loads(connection.getresponse().read())
    connection.close()
    return sum(int(each) for each in answer["Attributes"].values())


@asynccontextmanager
async def sqs_endpoint() -> AsyncIterator[str]:
    """The URL of an SQS server of our own with an empty store, in its own process."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        url = f"sqlite:///{Path(name) / 'served.db'}"
        line = ("-c", SERVE, "serve", "--url", url, "--port", "0", "--json", "--no-upkeep")
        async with background(*line, "--no-auth", "--sqs", "relaxed", quiet=True) as server:
            yield (await server.read())["server"]


@contextmanager
def sqs_workspace(endpoint: str) -> Iterator[Workspace]:
    """A workspace at an SQS server."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        celery = endpoint.replace("http://", "sqs://test:test@")
        yield Workspace(celery, Path(name), endpoint=endpoint)


class Workspaces:
    """Creates the workspaces of one engine."""

    def __init__(self, directory: Path, server: PrivatePostgres | None) -> None:
        self._directory = directory
        self._server = server
        self._dsn = server.dsn if server else None
        self._count = 0

    @asynccontextmanager
    async def new(self) -> AsyncIterator[Workspace]:
        """Create a workspace, deleted after the block."""
        with tempfile.TemporaryDirectory(dir=self._directory) as name:
            directory = Path(name)
            if self._dsn is None:
                yield Workspace(str(directory / "queue.db"), directory)
                return
            self._count += 1
            database = f"turn{self._count}"
            await self._execute(f"CREATE DATABASE {database}")
            try:
                assert self._server is not None
                store = f"{self._dsn.rpartition('/')[0]}/{database}"
                yield Workspace(store, directory, server_pid=self._server.pid)
            finally:
                # Dropping it also checkpoints, so no turn pays for the pages of another.
                await self._execute(f"DROP DATABASE {database} WITH (FORCE)")

    async def _execute(self, sql: str) -> None:
        connection = await asyncpg.connect(self._dsn)
        await connection.execute(sql)
        await connection.close()


class BrokerWorkspaces:
    """Creates workspaces with a database and a virtual host each."""

    def __init__(self, databases: Workspaces, node: RabbitNode) -> None:
        self._databases = databases
        self._node = node
        self._count = 0

    @asynccontextmanager
    async def new(self, store: StoreName) -> AsyncIterator[Workspace]:
        """Create a workspace for a contestant on this store, deleted after the block."""
        self._count += 1
        vhost = f"bench-{os.getpid()}-{self._count}"
        async with self._databases.new() as workspace:
            amqp = await asyncio.to_thread(self._node.add_vhost, vhost)
            database = workspace.store
            urls = {"rabbitmq": amqp, "brokered": f"brokered:{amqp},{database}"}
            try:
                yield replace(
                    workspace,
                    store=urls.get(store, database),
                    database=database,
                    amqp=amqp,
                    node=self._node,
                )
            finally:
                await asyncio.to_thread(self._node.delete_vhost, vhost)


@asynccontextmanager
async def broker_workspaces(node: RabbitNode | None = None) -> AsyncIterator[BrokerWorkspaces]:
    """Use a private PostgreSQL, and a private RabbitMQ unless a broker is given."""
    async with workspaces("postgres") as databases:
        if node is not None:
            yield BrokerWorkspaces(databases, node)
            return
        with PrivateRabbitMQ() as broker:
            yield BrokerWorkspaces(databases, broker.node)


@asynccontextmanager
async def workspaces(engine: EngineName) -> AsyncIterator[Workspaces]:
    """Use a private server with full durability, or a temporary directory."""
    server = PrivatePostgres(fsync=True, settings=SETTINGS) if engine == "postgres" else None
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name, server or nullcontext():
        yield Workspaces(Path(name), server)
