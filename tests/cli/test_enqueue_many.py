"""`enqueue -` and `--file`: no line is lost, each wrong line is reported, memory is bounded."""

import asyncio
import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast.app.application import Holdfast
from holdfast.cli import enqueue
from holdfast.cli.enqueue import LineFault, LineFeed, LineReader
from holdfast.core.model import NewJob, Receipt, Status
from holdfast.errors import EngineError, EngineUnavailable, OutcomeUnknown
from holdfast.notation.job_lines import JobDefaults
from tests.cli.program import Cli, command, environment, run_program


def lines_of(*values: object) -> bytes:
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)


async def read_all(data: bytes, size: int) -> list[tuple[int, bytes]]:
    """The lines of a pipe into which the data is written in parts of this size."""
    reader, writer = os.pipe()
    lines = LineReader(reader)
    got = []
    for at in range(0, len(data), size):
        os.write(writer, data[at : at + size])
        got += await lines.read() or []
    os.close(writer)
    while (more := await lines.read()) is not None:
        got += more
    os.close(reader)
    return got


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
async def test_lines_are_complete_however_they_arrive(size: int) -> None:
    data = b"one\n\ntwo\r\nthree \xff\n\nlast"
    wanted = [(1, b"one"), (2, b""), (3, b"two\r"), (4, b"three \xff"), (5, b""), (6, b"last")]
    assert await read_all(data, size) == wanted
    assert await read_all(data + b"\n", size) == wanted


@pytest.mark.parametrize("size", [1, 4, 50])
async def test_an_endless_line_is_cut_and_the_next_keeps_its_number(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enqueue, "LINE_BYTES_MAX", 10)
    got = await read_all(b"a\n" + b"x" * 40 + b"\nb\n" + b"y" * 30 + b"\n" + b"z" * 20, size)
    short = [(number, line) for number, line in got if len(line) <= 10]
    assert short == [(1, b"a"), (3, b"b")]
    assert sorted({number for number, _ in got}) == [1, 2, 3, 4, 5]
    assert len(got) == 5, "each is reported once"
    assert max(len(line) for _, line in got) <= 10 + size + 40


class Store:
    """A stand-in for an engine: `free` lets it answer, `fail_at` is the batch that fails."""

    def __init__(self, *, fail_at: int | None = None) -> None:
        self.batches: list[list[NewJob]] = []
        self.called = asyncio.Event()
        self.free = asyncio.Event()
        self.fail_at = fail_at

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        self.batches.append(list(jobs))
        self.called.set()
        await self.free.wait()
        if len(self.batches) == self.fail_at:
            raise EngineUnavailable("gone")
        return [Receipt(id=job.id, status=Status.NEW) for job in jobs]


def feed_into(store: Store, faults: list[LineFault] | None = None) -> LineFeed:
    reported: list[LineFault] = [] if faults is None else faults
    return LineFeed(store.enqueue, JobDefaults({}), reported.append, lambda _count: None)


def file_of(folder: Path, data: bytes) -> int:
    (folder / "lines").write_bytes(data)
    return os.open(folder / "lines", os.O_RDONLY)


async def test_batches_are_bounded_in_jobs_and_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store()
    store.free.set()
    many = [{"task": "t", "payload": number} for number in range(2500)]
    feed = feed_into(store)
    await feed.run(LineReader(file_of(tmp_path, lines_of(*many))))
    assert max(map(len, store.batches)) == 1000
    payloads = [job.payload for batch in store.batches for job in batch]
    assert payloads == [b"%d" % number for number in range(2500)]
    assert (feed.counts.lines, feed.counts.new, feed.counts.settled) == (2500, 2500, 2500)
    monkeypatch.setattr(enqueue, "_BATCH_BYTES_MAX", 5000)
    store = Store()
    store.free.set()
    big = [{"task": "t", "payload": "x" * 998} for _ in range(12)]
    await feed_into(store).run(LineReader(file_of(tmp_path, lines_of(*big))))
    assert list(map(len, store.batches)) == [5, 5, 2]


async def test_reading_stops_while_batches_wait(tmp_path: Path) -> None:
    store = Store()
    many = lines_of(*({"task": "t", "payload": "x" * 100} for _ in range(20_000)))
    file = file_of(tmp_path, many)
    running = asyncio.create_task(feed_into(store).run(LineReader(file)))
    for _ in range(200):
        await asyncio.sleep(0)
    assert len(store.batches) == 1
    assert os.lseek(file, 0, os.SEEK_CUR) < 500_000, "of more than two million bytes"
    store.free.set()
    await running
    assert sum(map(len, store.batches)) == 20_000


async def test_counts_are_right_when_the_store_fails(tmp_path: Path) -> None:
    store = Store(fail_at=3)
    store.free.set()
    feed = feed_into(store)
    with pytest.raises(EngineUnavailable):
        await feed.run(LineReader(file_of(tmp_path, lines_of(*([{"task": "t"}] * 5000)))))
    assert (feed.counts.settled, feed.counts.new, len(store.batches)) == (2000, 2000, 3)


async def test_a_batch_in_flight_is_counted_when_interrupted(tmp_path: Path) -> None:
    store = Store()
    feed = feed_into(store)
    running = asyncio.create_task(feed.run(LineReader(file_of(tmp_path, lines_of({"task": "t"})))))
    await store.called.wait()
    running.cancel()
    await asyncio.sleep(0)
    store.free.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (feed.counts.settled, feed.counts.new) == (1, 1)


def test_a_line_for_a_worker_that_does_not_exist(tmp_path: Path) -> None:
    ran = run_program(tmp_path, "enqueue", "-", given=b'{"command": "x", "to": "nobody"}')
    assert ran.err.startswith('line 1: unknown worker "nobody": no worker with this name has')


BAD = (
    b'{"task": "t", "id": "one"}\n'
    b"nonsense\n"
    b"\n"
    b'{"task": "t", "delay": "soon"}\n'
    b'{"task": "t", "id": "one"}\n'
    b'{"task": "t", "queue": "nowhere"}\n'
    b'{"task": "t", "colour": 1}\n'
    b'{"task": "t", "payload": "\xff"}\n'
    b'{"task": "t", "payload": 1e999}\n'
    b"[]\n"
    b'{"command": ["last"]}'
)


def test_a_wrong_line_is_reported_and_affects_no_other(tmp_path: Path) -> None:
    ran = run_program(tmp_path, "enqueue", "-", given=BAD)
    assert ran.code == 1
    assert ran.out.startswith("2 jobs enqueued in ")
    assert ran.out.endswith(", 1 already known, 7 refused\n")
    reported = [line.partition(":")[0] for line in ran.err.splitlines()]
    assert reported == [f"line {number}" for number in (2, 4, 7, 8, 9, 10, 6)]
    assert 'line 6: queue nowhere does not exist: create it with "holdfast queue cr' in ran.err
    assert "line 7: unknown field colour" in ran.err
    (tmp_path / "jobs").write_bytes(BAD.replace(b"one", b"two"))
    ran = run_program(tmp_path, "--json", "enqueue", "--file", "jobs")
    told_in_json = json.loads(ran.out)
    assert (ran.code, told_in_json["new"], told_in_json["duplicate"]) == (1, 2, 1)
    assert (told_in_json["lines"], told_in_json["refused"]) == (11, 7)
    assert told_in_json["errors"][0]["line"] == 2
    status = run_program(tmp_path, "status", "--json").json
    assert status["queues"][0]["ready"] == 4


def test_flags_are_defaults_for_every_line(tmp_path: Path) -> None:
    given = lines_of({"payload": 1}, {"payload": 2, "priority": 9}, {"command": "x"})
    flags = ["--task", "send", "--priority", "3"]
    assert run_program(tmp_path, "enqueue", "-", *flags, given=given).code == 0
    jobs = run_program(tmp_path, "list", "--json").json
    assert sorted((job["task"], job["priority"]) for job in jobs) == [
        ("command", 3),
        ("send", 3),
        ("send", 9),
    ]


def test_a_dry_run_of_many(tmp_path: Path) -> None:
    given = lines_of({"task": "t"}, {"task": "t", "priority": 101}, {"task": "t"})
    ran = run_program(tmp_path, "enqueue", "-", "--dry-run", given=given)
    assert (ran.code, ran.out) == (1, "2 jobs would be enqueued, 0 already known, 1 refused\n")
    assert ran.err.startswith("line 2: priority 101")
    assert run_program(tmp_path, "status", "--json").json["queues"][0]["ready"] == 0


def test_an_empty_pipe_is_not_an_error(cli: Cli, tmp_path: Path) -> None:
    assert run_program(tmp_path, "enqueue", "-").out.startswith("0 jobs enqueued")
    (tmp_path / "empty").touch()
    assert cli("enqueue", "--file", "empty", "--json").json["lines"] == 0
    assert cli("enqueue", "--file", str(tmp_path)).code == 2, "a folder is no file"


async def test_a_slow_pipe_does_not_delay_jobs_and_an_interrupt_prints_counts(
    tmp_path: Path,
) -> None:
    async with Holdfast(f"sqlite:///{tmp_path}/holdfast.db") as app:
        process = await asyncio.create_subprocess_exec(
            *command("enqueue", "-"),
            cwd=tmp_path,
            env=environment(),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stdin is not None
        for number in range(2):
            process.stdin.write(lines_of({"task": "t", "id": f"j{number}"}))
            [lease] = await app.lease(wait=60)
            assert lease.id == f"j{number}", "in before the pipe has ended"
            await app.complete(lease)
        process.send_signal(signal.SIGINT)
        out, err = await process.communicate()
    assert (process.returncode, out) == (130, b"")
    assert err.startswith(b"lines 1 to ")


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (EngineUnavailable("gone"), "unavailable", "settled, with 0 new jobs (unavailable)"),
        (OutcomeUnknown("torn"), "outcome_unknown", "repeat those only if each has an id or a key"),
    ],
)
def test_an_error_says_which_lines_are_settled(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, error: EngineError, code: str, says: str
) -> None:
    async def fail(self: LineFeed, lines: LineReader) -> None:
        raise error

    monkeypatch.setattr(LineFeed, "run", fail)
    Path("lines").write_bytes(b"")
    ran = cli("enqueue", "--file", "lines")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith(f"holdfast: {error}; lines 1 to 0 are settled")
    assert ran.err.endswith(f"({code})\n")
    assert says in ran.err
