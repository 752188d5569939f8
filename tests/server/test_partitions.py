"""A server on three partitions: one goes out and comes back while the others serve."""

import signal
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.app.application import Holdfast
from holdfast.core.model import JobFilter, NewJob, Status
from holdfast.core.partitions import home_of
from holdfast.engines.memory import MemoryEngine
from holdfast.engines.partitioned import PartitionedEngine
from holdfast.engines.remote import engine as remote_engine
from holdfast.errors import EngineUnavailable, UsageError
from holdfast.notation.options import new_id
from tests.cli.program import run_program
from tests.engines.partitioned.fragile import GONE, Trio
from tests.server.loop_server import ServedEngine
from tests.server.rest_client import http_client
from tests.server.server_process import TIMEOUT_S, ServerProcess, server_process
from tests.wait import wait_until

URL = "partitioned:sqlite:///a.db,sqlite:///b.db,sqlite:///c.db"


def enqueue(process: ServerProcess, ids: list[str] | None = None, count: int = 30) -> list[str]:
    """The ids of acknowledged jobs."""
    jobs: list[dict[str, Any]] = [{"task": "noop"} for _ in range(count)]
    if ids is not None:
        jobs = [{"task": "noop", "id": each} for each in ids]
    status, said = process.post("/v1/queues/default/jobs", {"jobs": jobs})
    if status == 503:
        return []
    assert status == 201, said
    return [each["id"] for each in said["jobs"] if "error" not in each]


def of_each(prefix: str, *homes: int) -> list[str]:
    """Ten ids for each of these partitions, from 0."""
    ids = [f"{prefix}-{number}" for number in range(1_000)]
    return [id_ for home in homes for id_ in [id_ for id_ in ids if home_of(id_, 3) == home][:10]]


def work_off(process: ServerProcess) -> list[str]:
    """The ids of leased and settled jobs."""
    done: list[str] = []
    while True:
        status, said = process.post("/v1/lease", {"queues": ["default"], "limit": 100})
        assert status in (200, 503), said
        if status == 200 and not said["leases"]:
            return done
        verdicts = [
            {"id": each["job"]["id"], "token": each["token"], "verdict": "complete"}
            for each in said.get("leases", ())
        ]
        if verdicts:
            status, said = process.post("/v1/settle", {"verdicts": verdicts})
            assert status == 200, said
            done += [each["id"] for each in said["outcomes"] if each["outcome"] == "settled"]


def shut_out(process: ServerProcess) -> list[int]:
    """Their numbers; the server is ready all the same."""
    status, said = process.get("/readyz")
    assert status == 200, said
    return [each["number"] for each in said["partitions"] if each["out"] is not None]


def take_away(folder: Path) -> None:
    for path in folder.glob("b.db*"):
        path.rename(folder / f"away-{path.name}")


def put_back(folder: Path) -> None:
    # The database itself last: without it nothing there is looked at.
    for path in sorted(folder.glob("away-*"), reverse=True):
        path.rename(folder / path.name.removeprefix("away-"))


def test_with_one_of_three_partitions_out_the_others_serve(tmp_path: Path) -> None:
    with server_process(tmp_path, url=URL) as process:
        assert shut_out(process) == []
        before = enqueue(process, of_each("before", 0, 1, 2))
        assert len(before) == 30
        take_away(tmp_path)
        meanwhile: list[str] = []

        def noticed() -> bool:
            meanwhile.extend(enqueue(process, count=3))
            return shut_out(process) == [2]

        wait_until(noticed)
        # Jobs without an id are made where they can be; one that belongs there is refused.
        more = enqueue(process)
        assert len(more) == 30
        assert {home_of(each, 3) for each in more} <= {0, 2}
        assert enqueue(process, of_each("homeless", 1)) == []
        told = run_program(tmp_path, "status", "--url", URL)
        assert "b.db is shut out" in told.err
        done = work_off(process)
        acknowledged = {*before, *meanwhile, *more}
        missing = acknowledged - set(done)
        assert {home_of(each, 3) for each in missing} <= {1}
        # Also a server that never saw the missing one begins with the others.
        process.popen.send_signal(signal.SIGKILL)
    with server_process(tmp_path, url=URL) as process:
        assert shut_out(process) == [2]
        later = enqueue(process)
        put_back(tmp_path)
        wait_until(lambda: shut_out(process) == [])
        done += work_off(process)
    assert sorted(done) == sorted({*acknowledged, *later})


def test_a_partition_that_fails_its_first_read_is_shut_out_and_readmitted(tmp_path: Path) -> None:
    with server_process(tmp_path, url=URL) as process:
        before = enqueue(process, of_each("before", 0, 1, 2))
        process.popen.send_signal(signal.SIGTERM)
        assert process.popen.wait(TIMEOUT_S) == 0
    take_away(tmp_path)
    (tmp_path / "b.db").write_bytes(b"\xff" * 65_536)
    with server_process(tmp_path, url=URL) as process:
        assert shut_out(process) == [2]
        _, said = process.get("/readyz")
        assert said["partitions"][1]["code"]
        meanwhile = [*enqueue(process), *enqueue(process, of_each("meanwhile", 0, 2))]
        assert len(meanwhile) == 50
        put_back(tmp_path)
        wait_until(lambda: shut_out(process) == [])
        done = work_off(process)
    assert sorted(done) == sorted([*before, *meanwhile])


def test_a_command_that_reads_creates_no_partition(tmp_path: Path) -> None:
    url = "partitioned:sqlite:///a/q.db,sqlite:///b/q.db"
    told = run_program(tmp_path, "status", "--url", url)
    assert "there is no folder" in told.err
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    told = run_program(tmp_path, "status", "--url", url)
    assert "there is no file" in told.err
    assert list(tmp_path.glob("*/*")) == []
    run_program(tmp_path, "enqueue", "--url", url, "--", "true")
    assert len(list(tmp_path.glob("*/q.db"))) == 2
    (tmp_path / "b").rename(tmp_path / "away")
    told = run_program(tmp_path, "status", "--url", url)
    assert "b/q.db has been shut out" in told.err
    told = run_program(tmp_path, "enqueue", "--url", url, "--", "true")
    assert told.code == 0, told.err
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("over", ["here", "http"])
async def test_jobs_without_ids_go_to_partitions_in_use(
    over: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_engine, "_PARTITIONS_S", 0.0)
    trio = Trio()
    app = Holdfast(engine=trio.engine if over == "here" else ServedEngine(trio.engine))
    task = app.task(name="noop")(_noop)
    async with app:
        # Neither the server nor the client has noticed yet.
        trio.fragile[1].fault = GONE
        ids = [(await app.enqueue("noop")).id for _ in range(20)]
        ids += [(await task.aenqueue()).id for _ in range(20)]
        ids += [each.id for each in await task.aenqueue_many([()] * 20)]
        # From now on both know.
        receipts = await app.enqueue_many([app.job("noop") for _ in range(20)])
        assert {each.status for each in receipts} == {Status.NEW}
        ids += [each.id for each in receipts]
        assert {home_of(each, 3) for each in ids} == {0, 2}
        assert len(set(ids)) == 80
        for bound in ({"id": trio.names(1, 1)[0]}, {"key": trio.tags(1, 1)[0]}):
            with pytest.raises(EngineUnavailable, match="p2 is shut out"):
                await app.enqueue("noop", **bound)  # type: ignore[arg-type]
        trio.fragile[1].fault = None
        await trio.back()
        await app.enqueue("noop")
        assert {home_of(app.new_id(), 3) for _ in range(100)} >= {1}
        found = [
            len((await each.engine.find(JobFilter(), limit=100)).jobs) for each in trio.fragile
        ]
        assert sum(found) == 81


def _noop() -> None:
    pass


async def test_a_batch_keeps_what_one_partition_took_when_the_others_fail() -> None:
    """Neither refused jobs are stored, nor stored ones are reported as refused."""
    trio = Trio()
    app = Holdfast(engine=trio.engine)
    async with app:
        trio.fragile[1].fault = trio.fragile[2].fault = GONE
        jobs = [replace(app.job("noop"), id=_made_at(place)) for place in (0, 1, 2)]
        receipts = await app.home.enqueue_made(jobs)
        assert {each.status for each in receipts} == {Status.NEW}
        assert [home_of(each.id, 3) for each in receipts] == [0, 0, 0]
        trio.fragile[0].fault = GONE
        with pytest.raises(EngineUnavailable):
            await app.enqueue("noop")


def _made_at(place: int) -> str:
    return next(id_ for _ in range(1_000) if home_of(id_ := new_id(), 3) == place)


async def test_pages_continue_over_partitions() -> None:
    # Their cursor has a place for each partition, and is larger than any number of MessagePack.
    partitions = [(f"p{number}", MemoryEngine()) for number in range(16)]
    remote = ServedEngine(PartitionedEngine(partitions))
    await remote.open()
    try:
        await remote.enqueue([NewJob(id=f"j{at}", task="t") for at in range(100)])
        page = await remote.find(JobFilter(), limit=60)
        rest = await remote.find(JobFilter(), limit=60, after=page.after)
        assert rest.after is None
        assert len({job.id for job in (*page.jobs, *rest.jobs)}) == 100
        async with http_client(remote.place) as client:
            first = (await client.get("/v1/jobs", params={"limit": 60})).json()
            query = {"limit": 60, "after": first["after"]}
            second = (await client.get("/v1/jobs", params=query)).json()
            assert len({job["id"] for job in (*first["jobs"], *second["jobs"])}) == 100
        for strange in (-1, 2**63, 10**500, "1"):
            with pytest.raises(UsageError, match="not a cursor"):
                await remote.find(JobFilter(), limit=1, after=strange)  # type: ignore[arg-type]
    finally:
        await remote.close()
