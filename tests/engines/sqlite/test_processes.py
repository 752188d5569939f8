"""Several processes on one file: wake-ups, a killed lock holder, and shared work."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.core.model import LeaseRequest, NewJob, State
from holdfast.core.verdict import Complete, Outcome, Retry, Settlement
from holdfast.engines.sqlite import SQLiteEngine, wait
from holdfast.engines.sqlite import engine as engine_module
from tests.engines.sqlite.conftest import OpenEngine, until_awaited
from tests.engines.sqlite.programs import Start, programs, send

# Opens the file, says so, and does what it is told, line by line.
OTHER = """
import asyncio, sys, time
from holdfast.core.model import JobFilter, LeaseRequest, NewJob
from holdfast.core.verdict import Complete, Outcome, Redrive, Release, Settlement
from holdfast.engines.sqlite import SQLiteEngine

def hold(transaction):
    transaction.run("UPDATE hf_meta SET number = number + 1000")
    print("holding", flush=True)
    time.sleep(3600)

async def main():
    engine = SQLiteEngine(sys.argv[1])
    await engine.open()
    leases = []
    print("open", flush=True)
    loop = asyncio.get_running_loop()
    while line := (await loop.run_in_executor(None, sys.stdin.readline)).split():
        match line:
            case ["enqueue", id]:
                await engine.enqueue([NewJob(id=id, task="t")])
            case ["lease", count]:
                request = LeaseRequest(queues=("default",), limit=int(count))
                leases = await engine.lease(request)
            case ["release"]:
                verdict = Release()
                await engine.settle([Settlement(lease=one, verdict=verdict) for one in leases])
            case ["redrive", id]:
                await engine.amend(JobFilter(ids=(id,)), Redrive(), limit=1)
            case ["work"]:
                done = 0
                request = LeaseRequest(queues=("default",), limit=3)
                while leases := await engine.lease(request):
                    settlements = [Settlement(lease=one, verdict=Complete()) for one in leases]
                    outcomes = await engine.settle(settlements)
                    assert outcomes == [Outcome.SETTLED] * len(leases)
                    done += len(leases)
                print(done, flush=True)
                continue
            case ["hold"]:
                await engine._write(hold)
        print("done", flush=True)
    await engine.close()

asyncio.run(main())
"""


@pytest.fixture
async def start(path: Path) -> AsyncIterator[Start]:
    async with programs(OTHER, path) as start_one:
        yield start_one


@pytest.fixture
def only_the_bell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switch off polling, so that only the bell file can wake a lease."""
    monkeypatch.setattr(wait, "POLL_S", 3_600)
    monkeypatch.setattr(engine_module, "_POLL_NET_MS", 3_600_000)


@pytest.fixture
async def engine(open_engine: OpenEngine) -> SQLiteEngine:
    return await open_engine(clock=None)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="inotify is Linux's own")
async def test_a_waiting_lease_is_woken_by_another_process(
    engine: SQLiteEngine, start: Start, only_the_bell: None
) -> None:
    other = await start()
    request = LeaseRequest(queues=("default",), wait_ms=3_600_000)

    async def woken_by(order: str) -> str:
        waiting = asyncio.create_task(engine.lease(request))
        await until_awaited(engine)
        assert await send(other, order) == "done"
        (lease,) = await waiting
        done = Retry(delay_ms=0) if order == "enqueue a" else Complete()
        assert await engine.settle([Settlement(lease=lease, verdict=done)]) == [Outcome.SETTLED]
        return lease.id

    assert await woken_by("enqueue a") == "a"
    assert await send(other, "lease 1") == "done"
    assert await woken_by("release") == "a"


async def test_a_waiting_lease_is_woken_by_polling_without_inotify(
    open_engine: OpenEngine, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wait, "_inotify", lambda _: None)
    monkeypatch.setattr(engine_module, "_POLL_NET_MS", 3_600_000)
    engine = await open_engine(clock=None)
    other = await start()
    request = LeaseRequest(queues=("default",), wait_ms=3_600_000)
    waiting = asyncio.create_task(engine.lease(request))
    await until_awaited(engine)
    assert await send(other, "enqueue a") == "done"
    assert [lease.id for lease in await waiting] == ["a"]


async def test_changes_before_the_first_poll_are_noticed_without_inotify(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wait, "_inotify", lambda _: None)
    rung = asyncio.Event()

    async def data_version() -> int:
        """The version of a file that was written after the lease looked, and never again."""
        return 7

    listener = wait.ChangeListener(path, rung.set, data_version)
    with listener.listening():
        await rung.wait()
    listener.close()


async def test_a_process_killed_inside_a_transaction_releases_the_lock(
    engine: SQLiteEngine, start: Start
) -> None:
    await engine.enqueue([NewJob(id="before", task="t")])
    other = await start()
    assert await send(other, "hold") == "holding"
    blocked = asyncio.create_task(engine.enqueue([NewJob(id="after", task="t")]))
    assert await engine.get("before") is not None
    assert not blocked.done()
    other.send_signal(signal.SIGKILL)
    await blocked
    seqs = [job.seq for id_ in ("before", "after") if (job := await engine.get(id_))]
    assert seqs[1] - seqs[0] < 1_000


async def test_each_job_is_done_by_exactly_one_of_many_processes(
    engine: SQLiteEngine, start: Start
) -> None:
    jobs = 240
    await engine.enqueue([NewJob(id=f"job-{n}", task="t") for n in range(jobs)])
    others = await asyncio.gather(*(start() for _ in range(4)))
    shares = await asyncio.gather(*(send(other, "work") for other in others))
    assert sum(map(int, shares)) == jobs
    (view,) = await engine.queues()
    assert (view.done, view.ready, view.leased) == (jobs, 0, 0)


async def test_two_engines_of_one_process_on_one_file(open_engine: OpenEngine) -> None:
    one, other = await open_engine(), await open_engine()
    await one.enqueue([NewJob(id="a", task="t")])
    (lease,) = await other.lease(LeaseRequest(queues=("default",)))
    assert await one.lease(LeaseRequest(queues=("default",))) == []
    await other.close()
    assert await one.settle([Settlement(lease=lease, verdict=Complete())]) == [Outcome.SETTLED]
    job = await one.get("a")
    assert job is not None
    assert job.state is State.DONE
