"""The services that tests use: one PostgreSQL for each test process, one database for each test.

`HOLDFAST_TEST_PG_DSN` names a server to use instead of a private one: a postgresql:// URL of a
user who may create databases. A service that cannot be had fails the test, it never skips it.
"""

import contextlib
import os
import uuid
from collections.abc import Iterator
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

from holdfast.testing.services import PrivatePostgres, ServiceUnavailable


@contextlib.contextmanager
def postgres_server() -> Iterator[str]:
    """The URL of a server, private unless the environment names one."""
    given = os.environ.get("HOLDFAST_TEST_PG_DSN")
    if given is None:
        with PrivatePostgres() as server:
            yield server.dsn
    else:
        _refuse_unless_reachable(given)
        yield given


@contextlib.contextmanager
def fresh_database(server_dsn: str) -> Iterator[str]:
    """The URL of a new, empty database, dropped at the end whoever is still connected."""
    name = f"holdfast_{uuid.uuid4().hex}"
    _execute(server_dsn, "CREATE DATABASE {}", name)
    try:
        yield urlsplit(server_dsn)._replace(path=f"/{name}").geturl()
    finally:
        _execute(server_dsn, "DROP DATABASE {} WITH (FORCE)", name)


def _refuse_unless_reachable(dsn: str) -> None:
    if not dsn.startswith(("postgresql://", "postgres://")):
        raise ServiceUnavailable("HOLDFAST_TEST_PG_DSN must be a postgresql:// URL")
    try:
        psycopg.connect(dsn, connect_timeout=10).close()
    except psycopg.Error as error:
        cause = " ".join(str(error).split())
        message = f"HOLDFAST_TEST_PG_DSN does not lead to a PostgreSQL: {cause}"
        raise ServiceUnavailable(message) from error


def _execute(dsn: str, statement: str, database: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(sql.SQL(statement).format(sql.Identifier(database)))
