"""`move-store` between SQLite and PostgreSQL: both ways, killed half-way, and large."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from holdfast.app.application import Holdfast
from holdfast.core.model import NewJob
from holdfast.engines.base import Engine
from holdfast.ops.migrate.progress import TargetProgress, target_progress
from tests.cli import seed
from tests.cli.program import Cli, command, environment
from tests.ops.migrate import sample_jobs
from tests.ops.migrate.sample_jobs import all_of, canonical, keys_of, mover_of

T = TypeVar("T")
OLD = "sqlite:///holdfast.db"


def on(url: str, work: Callable[[Engine], Awaitable[T]]) -> T:
    async def main() -> T:
        async with Holdfast(url) as app:
            return await work(app.home.store)

    return asyncio.run(main())


async def dump(engine: Engine) -> object:
    """All but numbers, and the settings of all queues."""
    queues = [view.queue for view in await engine.queues(counts=False)]
    return canonical(await all_of(mover_of(engine))), await keys_of(engine), queues


def test_there_and_back(cli: Cli, pg_dsn: str) -> None:
    on(OLD, sample_jobs.fill)
    before = on(OLD, dump)
    cli("schedule", "add", "nightly", "--cron", "0 3 * * *", "--", "true")
    cli("config", "set", "lease", "45s")
    there = cli("move-store", "--from", OLD, "--to", pg_dsn)
    assert (there.code, there.out) == (0, f"moved {len(before[0])} jobs, 1 schedule; verified\n")  # type: ignore[index]
    assert pg_dsn not in there.err
    assert on(pg_dsn, dump) == before
    new = "sqlite:///new.db"
    back = cli("move-store", "--from", pg_dsn, "--to", new, "--json").json
    assert (back["verified"], back["moved"]) == (True, len(before[0]))  # type: ignore[index]
    assert on(new, dump) == before
    assert [each["name"] for each in cli("schedule", "list", "--url", new, "--json").json] == [
        "nightly"
    ]
    assert cli("config", "get", "lease", "--url", new).out == "45s\n"
    # The old one is closed, until it is opened again.
    assert cli("enqueue", "--", "true").code == 2
    assert cli("move-store", "--from", OLD, "--reopen").code == 0
    assert on(OLD, dump) == before


def test_a_dry_run_says_what_would_be_done(cli: Cli, tmp_path: Path) -> None:
    seed.done("a")
    seed.enqueue("b")
    ran = cli("move-store", "--to", "sqlite:///new.db", "--dry-run")
    assert ran.out == "would move 2 jobs (1 waiting, 1 done) of 1 queue\n"
    assert not (tmp_path / "new.db").exists()
    assert cli("enqueue", "--id", "c", "--", "true").code == 0


def test_a_target_with_jobs_is_refused(cli: Cli) -> None:
    seed.enqueue("a")
    assert cli("enqueue", "--url", "sqlite:///new.db", "--", "true").code == 0
    ran = cli("move-store", "--to", "sqlite:///new.db")
    assert (ran.code, ran.out) == (2, "")
    assert "the target already has jobs: give an empty store (usage)" in ran.err
    assert cli("move-store", "--to", "sqlite:///new.db", "--dry-run").code == 2
    assert cli("queue", "show", "default", "--json").json["accepting"] is True


def test_the_same_store_twice_is_refused(cli: Cli) -> None:
    seed.begin()
    ran = cli("move-store", "--from", OLD, "--to", OLD)
    assert (ran.code, "give two stores" in ran.err) == (2, True)
    assert cli("move-store", "--from", OLD).code == 2


def test_running_jobs_are_named(cli: Cli) -> None:
    seed.enqueue("busy")
    seed.lease(worker="w1")
    ran = cli("move-store", "--to", "sqlite:///new.db", "--wait", "0s")
    assert ran.code == 5
    assert ran.out == "nothing was moved: still running: busy (worker w1)\n"
    assert "move-store --from OLD --reopen" in ran.err
    ran = cli("move-store", "--to", "sqlite:///new.db", "--wait", "0s", "--json")
    assert '"leased": ["busy"]' in ran.out


def fill_much(url: str, count: int, payload: bytes) -> None:
    async def fill(engine: Engine) -> None:
        for start in range(0, count, 1000):
            new = [
                NewJob(id=f"j{n:06}", task="t", payload=payload, group=f"g{n % 50}")
                for n in range(start, min(start + 1000, count))
            ]
            await engine.enqueue(new)

    on(url, fill)


@pytest.mark.parametrize("to", ["sqlite", "postgres"])
def test_a_killed_migration_is_resumed(cli: Cli, tmp_path: Path, pg_dsn: str, to: str) -> None:
    new = "sqlite:///new.db" if to == "sqlite" else pg_dsn
    fill_much(OLD, 12_000, b'{"n": 1}')
    line = command("move-store", "--from", OLD, "--to", new, "--json")
    seen: list[int] = []
    for _ in range(3):
        with subprocess.Popen(line, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE) as run:
            on(new, partial(wait_for_more, run, max(seen, default=0)))
            run.send_signal(signal.SIGKILL)
            run.wait()
        seen.append(on(new, progress_of))
    assert 0 < seen[0] < 12_000, "it was not killed in the middle"
    assert seen == sorted(seen)
    ran = cli("move-store", "--from", OLD, "--to", new, "--json").json
    assert (ran["moved"], ran["verified"]) == (12_000, True)
    assert on(new, dump) == on(OLD, reopened)


async def wait_for_more(run: subprocess.Popen[bytes], than: int, engine: Engine) -> None:
    """Return once the process has moved more jobs than these, or has ended."""
    while run.poll() is None and (at := await progress_of(engine)) <= than:
        assert at <= 12_000
        await asyncio.sleep(0.002)


async def progress_of(engine: Engine) -> int:
    found: TargetProgress | None = await target_progress(engine).read()
    return 0 if found is None else found.jobs


async def reopened(engine: Engine) -> object:
    from holdfast.ops.migrate.steps import reopen

    await reopen(engine)
    return await dump(engine)


MEASURED = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:]).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
sys.exit(code)
"""


def test_a_large_migration_takes_little_memory(tmp_path: Path, cli: Cli) -> None:
    """160 MB of jobs; the process itself takes about 70."""
    fill_much(OLD, 8_000, b"x" * 20_000)
    line = command("move-store", "--from", OLD, "--to", "sqlite:///new.db", "--json")
    # Started by a small process: what its parent took would count as its own.
    measured = [sys.executable, "-c", MEASURED, *line]
    run = subprocess.run(measured, cwd=tmp_path, env=environment(), capture_output=True, check=True)
    assert b'"moved": 8000, "verified": true' in run.stdout
    assert int(run.stderr.splitlines()[-1]) < 170_000, "kilobytes"


def test_the_former_name_of_the_command_still_works(cli: Cli) -> None:
    assert cli("enqueue", "--id", "a", "--", "true").code == 0
    moved = cli("--url", OLD, "migrate-data", "--to", "sqlite:///new.db")
    assert (moved.code, moved.out.splitlines()[0]) == (0, "moved 1 job; verified"), moved
    help_page = cli("migrate-data", "--help").out
    assert help_page == cli("move-store", "--help").out
    assert "move-store" in help_page
    assert "migrate-data" not in cli("--help").out


def test_an_engine_without_migration_is_named(cli: Cli) -> None:
    seed.enqueue("a")
    ran = cli("move-store", "--to", "partitioned:sqlite:///p1.db,sqlite:///p2.db")
    assert (ran.code, "does not support move-store" in ran.err) == (2, True), ran
    assert cli("queue", "show", "default", "--json").json["accepting"] is True
