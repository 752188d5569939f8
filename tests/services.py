"""The services that tests use: one PostgreSQL for each test process, one database for each test.

`HOLDFAST_TEST_PG_DSN` names a server to use instead of a private one: a postgresql:// URL of a
user who may create databases. A service that cannot be had fails the test, it never skips it.
"""

import asyncio
import contextlib
import os
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

from holdfast.conformance.postgres_server import PrivatePostgres, ServiceUnavailable
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
    """An engine makes its tables in there. In a thread, because the caller may have a loop."""

    async def open_and_close() -> None:
        engine = PostgresEngine(dsn)
        await engine.open()
        await engine.close()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, open_and_close()).result()


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
