"""A mistyped URL is reported, and creates nothing."""

import os
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest

from tests.cli.program import Cli

READING = [
    ["status"],
    ["list"],
    ["job", "list", "--json"],
    ["job", "show", "j1"],
    ["job", "explain", "j1"],
    ["job", "logs", "j1"],
    ["job", "cancel", "j1"],
    ["queue", "list"],
    ["queue", "pause", "default"],
    ["worker", "list", "--json"],
    ["worker", "stop", "--all"],
    ["dlq", "list"],
    ["dlq", "retry", "--all"],
    ["schedule", "list"],
    ["config", "list"],
    ["config", "unset", "lease"],
    ["cleanup", "--days", "1"],
    ["doctor"],
    ["backup", "copy.db"],
    ["top", "--json"],
    ["scaling"],
    ["distribute"],
    ["move-store", "--to", "sqlite:///new.db"],
]
CREATING = [
    ["enqueue", "--task", "t"],
    ["queue", "create", "q"],
    ["config", "set", "lease", "1m"],
    ["schedule", "add", "s", "--every", "1h", "--", "true"],
    ["bench", "--jobs", "1", "--batch", "1"],
]


@pytest.mark.parametrize("line", READING, ids=" ".join)
def test_commands_that_read_report_a_missing_store(
    cli: Cli, tmp_path: Path, line: list[str]
) -> None:
    for url, says in (
        ("sqlite:///tpyo.db", f"there is no file {tmp_path / 'tpyo.db'}: start with"),
        ("sqlite:///tpyo/x.db", f"there is no folder {tmp_path / 'tpyo'}: correct the URL"),
    ):
        ran = cli(*line, "--url", url)
        assert (ran.code, ran.out) == (3, ""), ran
        assert ran.err.startswith(f"holdfast: {says}")
        assert ran.err.endswith(" (not_found)\n")
    assert list(tmp_path.iterdir()) == []


def test_commands_that_read_create_no_schema(cli: Cli, empty_pg_dsn: str) -> None:
    missing = f"there is no Holdfast schema 'holdfast' in {empty_pg_dsn.partition('?')[0]}"
    for line in READING:
        ran = cli(*line, "--url", empty_pg_dsn)
        assert (ran.code, ran.out) == (3, ""), ran
        assert ran.err.startswith(
            f'holdfast: {missing}: start with "holdfast up" or "holdfast enqueue"'
        )
        assert ran.err.endswith(" (not_found)\n")
    with psycopg.connect(empty_pg_dsn) as connection:
        [[exists]] = connection.execute("SELECT to_regnamespace('holdfast') IS NOT NULL")
    assert not exists


def test_commands_that_store_create_the_schema(cli: Cli, empty_pg_dsn: str) -> None:
    assert cli("enqueue", "--task", "t", "--url", empty_pg_dsn).code == 0
    assert cli("status", "--url", empty_pg_dsn).code == 0


@pytest.mark.parametrize("line", CREATING, ids=" ".join)
def test_commands_that_store_create_the_file_but_no_folder(
    cli: Cli, tmp_path: Path, line: list[str]
) -> None:
    ran = cli("--url", "sqlite:///tpyo/x.db", *line)
    assert (ran.code, ran.out) == (2, ""), ran
    assert f"there is no folder {tmp_path / 'tpyo'}: create it first" in ran.err
    assert list(tmp_path.iterdir()) == []
    assert cli(*line).code == 0
    assert (tmp_path / "holdfast.db").exists()


def test_a_missing_folder_is_not_created_by_starting_there(cli: Cli, tmp_path: Path) -> None:
    ran = cli("--url", "sqlite:///tpyo/x.db", "status")
    missing = f"there is no folder {tmp_path / 'tpyo'}"
    text = f"holdfast: {missing}: correct the URL, or create the folder first (not_found)\n"
    assert (ran.code, ran.err) == (3, text)


def test_a_denied_file_names_the_remedy(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """As another user, which a test that runs as root cannot be."""
    assert cli("enqueue", "--task", "t").code == 0

    open_file = os.open

    def denied(path: Any, *flags: Any, **more: Any) -> int:
        if str(path).endswith("-lock"):
            raise PermissionError(13, "Permission denied", str(path))
        return open_file(path, *flags, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", denied)
        ran = cli("status")
    assert ran.code == 1
    assert "holdfast.db-lock cannot be opened (Permission denied): run as the user who" in ran.err


@pytest.mark.parametrize(
    "line", [["up"], ["worker", "start"], ["worker", "run", "x:app"], ["demo"]]
)
def test_workers_need_the_folder_too(cli: Cli, tmp_path: Path, line: list[str]) -> None:
    ran = cli("--url", "sqlite:///tpyo/x.db", *line)
    assert (ran.code, "there is no folder" in ran.err) == (2, True), ran
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("line", [["status"], ["enqueue", "--task", "t"]], ids=" ".join)
def test_a_file_that_is_not_a_database_gets_no_companions(
    cli: Cli, tmp_path: Path, line: list[str]
) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("buy milk\n" * 1000)
    ran = cli(*line, "--url", "sqlite:///notes.txt")
    assert (ran.code, ran.out) == (2, ""), ran
    assert f"{notes} is not a database" in ran.err
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]
    assert notes.read_text() == "buy milk\n" * 1000


@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_reading_leaves_a_foreign_database_unchanged(cli: Cli, tmp_path: Path, mode: str) -> None:
    own = tmp_path / "own.db"
    connection = apsw.Connection(str(own))
    connection.pragma("journal_mode", mode)
    connection.execute("CREATE TABLE orders(id)")
    connection.close()
    before = own.read_bytes()
    ran = cli("status", "--url", "sqlite:///own.db")
    assert (ran.code, f"there are no queues in {own}" in ran.err) == (3, True), ran
    assert [file.name for file in tmp_path.iterdir()] == ["own.db"]
    assert own.read_bytes() == before
    assert cli("enqueue", "--task", "t", "--url", "sqlite:///own.db").code == 0
    assert cli("status", "--url", "sqlite:///own.db").code == 0


@pytest.mark.parametrize("line", [["status"], ["enqueue", "--task", "t"]], ids=" ".join)
def test_a_database_is_not_created_beside_a_log_that_waits_for_it(
    cli: Cli, tmp_path: Path, line: list[str]
) -> None:
    assert cli("enqueue", "--task", "t").code == 0
    log = tmp_path / "holdfast.db-wal"
    log.write_bytes(b"commits")
    away = (tmp_path / "holdfast.db").rename(tmp_path / "away.db")
    names = sorted(file.name for file in tmp_path.iterdir())
    ran = cli(*line)
    assert (ran.code, ran.out) == (1, ""), ran
    assert f"{log} holds commits that belong to it: put the database back" in ran.err
    assert ran.err.endswith(" (unavailable)\n")
    assert (sorted(file.name for file in tmp_path.iterdir()), log.read_bytes()) == (
        names,
        b"commits",
    )
    away.rename(tmp_path / "holdfast.db")
    assert cli("status").code == 0


def test_an_empty_file_has_no_queues(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "holdfast.db").touch()
    assert (cli("status").code, (tmp_path / "holdfast.db").stat().st_size) == (3, 0)
    assert [file.name for file in tmp_path.iterdir()] == ["holdfast.db"]


def test_a_store_with_its_tables_in_the_wal_is_found(cli: Cli, tmp_path: Path) -> None:
    """The files that a crash leaves right after the store was created."""
    connection = apsw.Connection(str(tmp_path / "new.db"))
    connection.pragma("journal_mode", "wal")
    connection.execute("CREATE TABLE hf_meta(one)")
    for ending in ("", "-wal"):
        made = (tmp_path / f"new.db{ending}").read_bytes()
        assert (b"hf_meta" in made) == (ending == "-wal")
        (tmp_path / f"left.db{ending}").write_bytes(made)
    connection.close()
    ran = cli("status", "--url", "sqlite:///left.db")
    assert "there are no queues" not in ran.err
