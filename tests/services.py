"""The services that tests use: one PostgreSQL for each test process, one database for each test;
one RabbitMQ for each run, one virtual host for each test process.

`HOLDFAST_TEST_PG_DSN` and `HOLDFAST_TEST_AMQP_URL` name servers to use instead of private ones: a
postgresql:// URL of a user who may create databases, an amqp:// URL of one who may do everything
in its virtual host. Where RabbitMQ, clients of SQS, Chromium, systemd-analyze, promtool or the
package index cannot be had, their tests are skipped, and the run ends with a line for each; they
fail if `HOLDFAST_TEST_REQUIRE` lists "rabbitmq", "sqs-clients", "chromium", "systemd", "promtool"
or "package-index".
"""

import asyncio
import contextlib
import os
import uuid
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

from holdfast.conformance.postgres_server import PrivatePostgres
from holdfast.conformance.private_server import ServiceUnavailable
from holdfast.engines.postgres import PostgresEngine


@contextlib.contextmanager
def postgres_server() -> Iterator[str]:
    """The URL of a server, private unless the environment names one."""
    given = os.environ.get("HOLDFAST_TEST_PG_DSN")
    if given is None:
        # Its files may be in memory, where a log of a gigabyte for each process is too much.
        with PrivatePostgres(settings={"max_wal_size": "256MB"}) as server:
            yield server.dsn
    else:
        _refuse_unless_reachable(given)
        yield given


@contextlib.contextmanager
def fresh_database(server_dsn: str, *, like: str = "template1") -> Iterator[str]:
    """The URL of a new database, dropped at the end whoever is still connected. It is empty, or as
    the one named, to which nobody is connected."""
    name = f"holdfast_{uuid.uuid4().hex}"
    # A copy of files: the other way writes all of it to the log first.
    _execute(server_dsn, "CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy", name, like)
    try:
        yield urlsplit(server_dsn)._replace(path=f"/{name}").geturl()
    finally:
        _execute(server_dsn, "DROP DATABASE {} WITH (FORCE)", name)


def open_once(dsn: str) -> None:
    """An engine makes its tables in there."""

    async def open_and_close() -> None:
        engine = PostgresEngine(dsn)
        await engine.open()
        await engine.close()

    _run_apart(open_and_close())


def name_anew(dsn: str) -> None:
    """A copy of a store is another store."""
    with psycopg.connect(dsn) as connection:
        connection.execute("UPDATE holdfast.meta SET store = DEFAULT")


def _refuse_unless_reachable(dsn: str) -> None:
    if not dsn.startswith(("postgresql://", "postgres://")):
        raise ServiceUnavailable("HOLDFAST_TEST_PG_DSN must be a postgresql:// URL")
    try:
        psycopg.connect(dsn, connect_timeout=10).close()
    except psycopg.Error as error:
        cause = " ".join(str(error).split())
        message = f"HOLDFAST_TEST_PG_DSN does not lead to a PostgreSQL: {cause}"
        raise ServiceUnavailable(message) from error


def _execute(dsn: str, statement: str, *databases: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(sql.SQL(statement).format(*map(sql.Identifier, databases)))


def given_broker() -> str | None:
    """The URL of a broker, if the environment names one. It must answer."""
    url = os.environ.get("HOLDFAST_TEST_AMQP_URL")
    if url is not None:
        _run_apart(_refuse_unless_broker(url))
    return url


async def _refuse_unless_broker(url: str) -> None:
    import aio_pika
    from aio_pika.exceptions import AMQPError

    try:
        await (await aio_pika.connect(url, timeout=10)).close()
    except (OSError, ValueError, AMQPError) as error:
        message = f"HOLDFAST_TEST_AMQP_URL does not lead to a RabbitMQ: {error!r}"
        raise ServiceUnavailable(message) from error


MISSING = " is missing: "


@contextlib.contextmanager
def rabbitmq_needed() -> Iterator[None]:
    """Skip the test if RabbitMQ is missing, or fail it where that is required."""
    with needed("RabbitMQ", "rabbitmq", "Or name a running one: HOLDFAST_TEST_AMQP_URL=amqp://..."):
        yield


@contextlib.contextmanager
def needed(title: str, name: str, remedy: str = "") -> Iterator[None]:
    """Skip the test if a service is missing, or fail it if `HOLDFAST_TEST_REQUIRE` lists `name`."""
    try:
        yield
        return
    except ServiceUnavailable as error:
        missing = f"{title}{MISSING}{error} {remedy}".rstrip()
    # Outside of the handler, so that the report is this line and no chain of causes.
    if name in os.environ.get("HOLDFAST_TEST_REQUIRE", "").split(","):
        pytest.fail(missing, pytrace=False)
    pytest.skip(missing)


def _run_apart(work: Coroutine[object, object, None]) -> None:
    """Run it in a thread, because the caller may have a loop."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, work).result()
