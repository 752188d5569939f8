"""The faulty disk loses, tears, fails, fills and stalls on request."""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random

import apsw
import pytest

from holdfast.conformance.faulty_disk import Call, FaultyDisk, VolatileFile

RUNS = 60


@pytest.fixture
def disk(request: pytest.FixtureRequest) -> FaultyDisk:
    return FaultyDisk(request.node.name, Random(0))


@pytest.fixture
def table(disk: FaultyDisk, tmp_path: Path) -> Iterator[apsw.Connection]:
    connection = open_table(tmp_path / "a.db", disk)
    yield connection
    disk.faults.mend()
    connection.close()


def test_synced_content_survives_every_cut() -> None:
    file = VolatileFile(named=True)
    file.write(0, b"a" * 2000)
    file.sync()
    file.write(2000, b"b" * 2000)
    found = [file.after_cut(Random(seed)) or b"" for seed in range(RUNS)]
    assert all(content.startswith(b"a" * 2000) for content in found)
    assert {len(content) for content in found} >= {2000, 4000}
    assert any(b"b" in content and content != b"a" * 2000 + b"b" * 2000 for content in found)


def test_later_writes_may_survive_earlier_ones() -> None:
    file = VolatileFile(named=True)
    file.write(0, b"1" * 512)
    file.write(512, b"2" * 512)
    found = [file.after_cut(Random(seed)) or b"" for seed in range(RUNS)]
    assert any(content == bytes(512) + b"2" * 512 for content in found)
    assert any(content == b"1" * 512 for content in found)


def test_a_new_file_may_be_gone_until_it_is_synced() -> None:
    file = VolatileFile()
    file.write(0, b"x")
    assert {file.after_cut(Random(seed)) for seed in range(RUNS)} >= {None, b"", b"x"}
    file.sync()
    assert {file.after_cut(Random(seed)) for seed in range(RUNS)} == {b"x"}


def test_a_deleted_file_may_come_back_until_its_directory_is_synced() -> None:
    file = VolatileFile(bytearray(b"old"), named=True).deleted()
    assert {file.after_cut(Random(seed)) for seed in range(RUNS)} == {None, b"old"}
    file.sync_name()
    assert {file.after_cut(Random(seed)) for seed in range(RUNS)} == {None}


def test_a_failed_sync_loses_its_writes_for_good() -> None:
    lost = 0
    for seed in range(RUNS):
        file = VolatileFile(named=True)
        file.write(0, b"x" * 512)
        file.fail_sync(Random(seed))
        file.sync()
        lost += file.after_cut(Random(seed)) == bytes(512)
    assert 0 < lost < RUNS


@pytest.mark.parametrize(("synchronous", "loses"), [("full", False), ("normal", True)])
def test_sqlite_loses_commits_only_without_full(
    tmp_path: Path, synchronous: str, loses: bool
) -> None:
    """Bare SQLite, to show that the model is neither too kind nor too cruel."""
    lost = 0
    for seed in range(RUNS):
        rng = Random(seed)
        disk = FaultyDisk(f"bare-{synchronous}-{seed}", rng)
        images: list[dict[str, bytes]] = []
        disk.faults.cut_power(rng.randrange(40, 500), lambda *_: images.append(disk.image(rng)))  # noqa: B023
        answered = insert_until_cut(tmp_path / f"{seed}.db", disk, synchronous)
        lost += rows_of(images[0], tmp_path / f"{seed}") < answered
    assert (lost > 0) == loses


@pytest.mark.parametrize("call", [Call.WRITE, Call.SYNC])
def test_the_nth_call_fails_and_the_next_does_not(
    disk: FaultyDisk, table: apsw.Connection, call: Call
) -> None:
    before = disk.faults.calls[call]
    disk.faults.fail(call, nth=3)
    with pytest.raises(apsw.IOError):
        insert(table, times=3)
    assert disk.faults.calls[call] == before + 3
    assert disk.faults.struck == 1
    insert(table)


def test_a_failing_read_is_reported(disk: FaultyDisk, tmp_path: Path) -> None:
    open_table(tmp_path / "a.db", disk).close()
    disk.faults.fail(Call.READ)
    with pytest.raises(apsw.IOError):
        apsw.Connection(str(tmp_path / "a.db"), vfs=disk.name)
    connection = apsw.Connection(str(tmp_path / "a.db"), vfs=disk.name)
    assert connection.execute("SELECT count(*) FROM t").get == 0
    connection.close()


def test_a_full_disk_refuses_writes_until_there_is_room(
    disk: FaultyDisk, table: apsw.Connection
) -> None:
    disk.faults.limit_room(20_000)
    with pytest.raises(apsw.FullError):
        insert(table, times=20)
    assert table.execute("SELECT count(*) FROM t").get > 0
    disk.faults.mend()
    insert(table)


def test_a_stalled_sync_continues_when_mended(disk: FaultyDisk, table: apsw.Connection) -> None:
    disk.faults.stall()
    writer = threading.Thread(target=insert, args=(table,))
    writer.start()
    assert disk.faults.stalled.wait(timeout=60)
    assert writer.is_alive()
    disk.faults.mend()
    writer.join(timeout=60)
    assert table.execute("SELECT count(*) FROM t").get == 1


def open_table(path: Path, disk: FaultyDisk, synchronous: str = "full") -> apsw.Connection:
    connection = apsw.Connection(str(path), vfs=disk.name)
    try:
        connection.execute(
            "PRAGMA journal_mode = wal; PRAGMA wal_autocheckpoint = 30;"
            f"PRAGMA synchronous = {synchronous};"
            "CREATE TABLE IF NOT EXISTS t (a INTEGER PRIMARY KEY, b BLOB)"
        ).fetchall()
    except apsw.Error:
        connection.close()
        raise
    return connection


def insert(connection: apsw.Connection, *, times: int = 1) -> None:
    for _ in range(times):
        connection.execute("INSERT INTO t (b) VALUES (zeroblob(500))")


def insert_until_cut(path: Path, disk: FaultyDisk, synchronous: str) -> int:
    connection = open_table(path, disk, synchronous)
    for answered in range(10_000):
        try:
            insert(connection)
        except apsw.IOError:
            with contextlib.suppress(apsw.IOError):
                connection.close()
            return answered
    raise AssertionError("the power was never cut")


def rows_of(image: dict[str, bytes], directory: Path) -> int:
    directory.mkdir()
    for name, content in image.items():
        (directory / name).write_bytes(content)
    (database,) = directory.glob("*.db")
    connection = apsw.Connection(str(database))
    assert connection.pragma("integrity_check") == "ok"
    there = connection.table_exists("main", "t")
    count = int(connection.execute("SELECT count(*) FROM t").get) if there else 0
    connection.close()
    return count
