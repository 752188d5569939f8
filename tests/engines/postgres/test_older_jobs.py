"""Jobs of a store with one table: they are moved in steps, and done ones stay where they are."""

import re
import subprocess
import sys
from random import SystemRandom
from typing import Any

import asyncpg
import pytest

from holdfast.conformance.contract.cases import a_job, from_default
from holdfast.core.model import JobFilter, Lease, NewJob, Queue, State, Status
from holdfast.core.verdict import Complete, Delete, Edit, Outcome, Redrive, Settlement
from holdfast.engines.postgres import PostgresEngine, schema
from tests.sources import ROOT
from torture.migration import digest, make_old_store

JOBS = 400
DONE = "job-0"
WAITING = "job-61"


@pytest.fixture
def pg_dsn(empty_pg_dsn: str) -> str:
    """A database without the schema."""
    return empty_pg_dsn


async def migrated(dsn: str) -> PostgresEngine:
    await make_old_store(dsn, JOBS)
    engine = PostgresEngine(dsn)
    await engine.open()
    return engine


async def get(engine: PostgresEngine, id_: str) -> Any:
    job = await engine.get(id_)
    assert job is not None
    return job


class CutConnection:
    """A connection that is cut before the commit of its second step."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.steps = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    async def fetchval(self, text: str, *values: object) -> Any:
        if "move_jobs" not in text:
            return await self._connection.fetchval(text, *values)
        self.steps += 1
        await self._connection.execute("BEGIN")
        is_left = await self._connection.fetchval(text, *values)
        if self.steps == 2:
            await self._connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        await self._connection.execute("COMMIT")
        return is_left


async def test_a_migration_that_is_cut_at_every_step(
    pg_dsn: str, look: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_old_store(pg_dsn, JOBS)
    before = await digest(look, "jobs")
    monkeypatch.setattr(schema, "MOVE_BATCH", 30)
    cuts = 0
    is_moved = False
    while not is_moved:
        connection = CutConnection(await asyncpg.connect(pg_dsn))
        try:
            await schema.prepare(connection, "holdfast", "default")
            is_moved = True
        except asyncpg.PostgresError:
            cuts += 1
            assert not await look.fetchval("SELECT is_moved FROM older")
        finally:
            connection.terminate()
    assert cuts == JOBS // 30
    assert await digest(look, "all_jobs") == before
    assert await look.fetchval("SELECT count(*) FROM jobs WHERE state = 2") == 0


@pytest.mark.torture
def test_processes_that_are_killed_while_they_migrate() -> None:
    seed = str(SystemRandom().randrange(1_000_000))
    command = [sys.executable, "-m", "torture", "migration", "--jobs", "20000", "--kills", "4"]
    command += ["--batch", "500", "--seed", seed]
    result = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(r"20,000 jobs moved in .* with \d+ kills", result.stdout)


async def test_older_jobs_are_found_and_counted(pg_dsn: str) -> None:
    engine = await migrated(pg_dsn)
    [view] = await engine.queues(names=("default",))
    assert (view.done, view.dead, view.cancelled, view.leased) == (240, 4, 4, 12)
    page = await engine.find(JobFilter(states=(State.DONE,)), limit=JOBS)
    assert len(page.jobs) == 240
    assert [job.seq for job in page.jobs] == sorted((job.seq for job in page.jobs), reverse=True)
    tallies = await engine.tally(JobFilter(), "state", limit=9)
    assert {each.value: each.count for each in tallies} == {
        "done": 240, "waiting": 140, "leased": 12, "dead": 4, "cancelled": 4,
    }  # fmt: skip
    job = await get(engine, DONE)
    assert (job.state, job.payload, job.result) == (State.DONE, b'{"n":0}', b'"done"')
    known = await engine.enqueue([NewJob(id=DONE, task="t"), NewJob(id=WAITING, task="t")])
    assert [receipt.status for receipt in known] == [Status.DUPLICATE] * 2
    await engine.close()


async def test_a_repeated_completion_of_an_older_job_is_settled(pg_dsn: str) -> None:
    engine = await migrated(pg_dsn)
    job = await get(engine, DONE)
    for token, outcome in ((job.token, Outcome.SETTLED), (job.token + 1, Outcome.LOST)):
        lease = Lease(job=job, token=token, lease_ms=1_000)
        for verdict in (Complete(), Complete(then=(NewJob(id="next", task="t"),))):
            settled = await engine.settle([Settlement(lease=lease, verdict=verdict)])
            assert settled == [outcome]
    assert await engine.get("next") is None
    await engine.close()


async def test_an_older_job_is_put_back_and_done_again(pg_dsn: str, look: Any) -> None:
    engine = await migrated(pg_dsn)
    wanted = JobFilter(ids=(DONE,), states=(State.DONE,))
    assert await engine.amend(wanted, Redrive(), limit=1) == 1
    assert (await get(engine, DONE)).state is State.WAITING
    [lease] = await engine.lease(from_default(1, ids=(DONE,), queues=()))
    assert lease.job.payload == b'{"n":0}'
    assert await engine.settle([Settlement(lease=lease, verdict=Complete())]) == [Outcome.SETTLED]
    [view] = await engine.queues(names=("default",))
    assert view.done == 240, "it is counted once"
    assert await look.fetchval("SELECT count(*) FROM done") == 1
    await engine.close()


async def test_nothing_of_an_older_job_shines_through_once_it_is_done(pg_dsn: str) -> None:
    """The columns that it had before the migration are still there."""
    engine = await migrated(pg_dsn)
    old = await get(engine, "job-11")
    assert 0 not in (old.crashes, old.releases, old.priority)
    wanted = JobFilter(ids=("job-11",), states=(State.DONE,))
    assert await engine.amend(wanted, Redrive(), limit=1) == 1
    plain = Edit(priority=0, by="me")
    assert await engine.amend(JobFilter(ids=("job-11",)), plain, limit=1) == 1
    [lease] = await engine.lease(from_default(1, ids=("job-11",), queues=()))
    assert await engine.settle([Settlement(lease=lease, verdict=Complete())]) == [Outcome.SETTLED]
    pages = await engine.find(JobFilter(states=(State.DONE,)), limit=JOBS)
    [listed] = [job for job in pages.jobs if job.id == "job-11"]
    for job in (await get(engine, "job-11"), listed):
        assert (job.crashes, job.releases, job.priority, job.attempt) == (0, 0, 0, 1)
        assert (job.worker, job.expires_at, job.result) == ("w", None, None)
    await engine.close()


async def test_older_jobs_are_deleted_pruned_and_dropped(pg_dsn: str, look: Any) -> None:
    engine = await migrated(pg_dsn)
    await engine.enqueue([a_job("child", after=(DONE,), after_on="death")])
    ended = await engine.finished(JOBS)
    assert len(ended) == 240 + 4 + 4
    wanted = JobFilter(ids=tuple(job.id for job in ended))
    assert await engine.amend(wanted, Delete(), limit=JOBS) == len(ended)
    assert await engine.finished(JOBS) == []
    [receipt] = await engine.enqueue([NewJob(id=DONE, task="t")])
    assert receipt.status is Status.NEW, "its child still waits for it"
    await engine.drop("default")
    assert await look.fetchval("SELECT count(*) FROM bodies") == 0
    await engine.close()


async def test_a_dropped_queue_takes_its_older_jobs_along(pg_dsn: str, look: Any) -> None:
    engine = await migrated(pg_dsn)
    await engine.drop("default")
    for table in ("bodies", "jobs", "done"):
        assert await look.fetchval(f"SELECT count(*) FROM {table}") == 0
    await engine.declare(Queue(name="default"))
    [receipt] = await engine.enqueue([NewJob(id=DONE, task="t")])
    assert receipt.status is Status.NEW
    await engine.close()
