"""Torn, cut and flipped bytes in the files: the engine opens a prefix of its commits or refuses."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from holdfast.conformance.faulty_disk import FaultyDisk
from holdfast.core.model import JobFilter, LeaseRequest, NewJob, State
from holdfast.engines.sqlite import SQLiteEngine
from holdfast.errors import HoldfastError
from holdfast.testing.clock import ManualClock
from tests.crash.faults.conftest import OpenEngine

JOBS = 60
RUNS = 60
SECTOR = 512

Damage = Callable[[bytearray, Random], None]


def truncate(content: bytearray, rng: Random) -> None:
    del content[rng.randrange(len(content)) :]


def flip_a_bit(content: bytearray, rng: Random) -> None:
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)


def tear(content: bytearray, rng: Random) -> None:
    start = rng.randrange(len(content)) // SECTOR * SECTOR
    content[start : start + SECTOR] = rng.randbytes(len(content[start : start + SECTOR]))


def blank(content: bytearray, rng: Random) -> None:
    start = rng.randrange(len(content)) // SECTOR * SECTOR
    content[start:] = bytes(len(content) - start)


def swap_sectors(content: bytearray, rng: Random) -> None:
    sectors = range(0, len(content) - SECTOR, SECTOR)
    one, other = rng.choice(sectors), rng.choice(sectors)
    moved = bytes(content[one : one + SECTOR])
    content[one : one + SECTOR] = content[other : other + SECTOR]
    content[other : other + SECTOR] = moved


DAMAGES = (truncate, flip_a_bit, tear, blank, swap_sectors)


@pytest.fixture
async def image(disk: FaultyDisk, open_engine: OpenEngine) -> dict[str, bytes]:
    """A file with a log that holds one commit for each of the jobs, in order."""
    engine = await open_engine(vfs=disk.name)
    for number in range(JOBS):
        await engine.enqueue([NewJob(id=f"job-{number}", task="noop", payload=bytes(300))])
    found = disk.image(Random(0))
    assert len(found["jobs.db-wal"]) > JOBS * 4096
    return found


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_damaged_log_opens_to_a_prefix_of_its_commits(
    tmp_path: Path, clock: ManualClock, image: dict[str, bytes], damage: Damage
) -> None:
    shortened = 0
    for seed in range(RUNS):
        home = write(image, tmp_path / str(seed), "jobs.db-wal", damage, Random(seed))
        found = await jobs_of(home / "jobs.db", clock)
        assert found == [f"job-{number}" for number in range(len(found))]
        shortened += len(found) < JOBS
    assert shortened > 0


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_damaged_file_serves_or_is_refused_with_a_holdfast_error(
    tmp_path: Path,
    disk: FaultyDisk,
    clock: ManualClock,
    open_engine: OpenEngine,
    damage: Damage,
) -> None:
    engine = await open_engine(vfs=disk.name)
    await engine.enqueue(
        [NewJob(id=f"job-{n}", task="noop", payload=bytes(300)) for n in range(JOBS)]
    )
    await engine.close()
    image = {"jobs.db": disk.image(Random(0))["jobs.db"]}
    refusals = []
    for seed in range(RUNS):
        home = write(image, tmp_path / str(seed), "jobs.db", damage, Random(seed))
        try:
            await use(home / "jobs.db", clock)
        except HoldfastError as error:
            refusals.append(str(error))
    assert refusals
    assert all("backup" in text for text in refusals), refusals


def write(image: dict[str, bytes], home: Path, name: str, damage: Damage, rng: Random) -> Path:
    home.mkdir()
    for file, content in image.items():
        changed = bytearray(content)
        if file == name:
            damage(changed, rng)
        (home / file).write_bytes(changed)
    return home


async def jobs_of(path: Path, clock: ManualClock) -> list[str]:
    engine = SQLiteEngine(path, clock=clock)
    await engine.open()
    page = await engine.find(JobFilter(), limit=1000)
    await engine.close()
    return [job.id for job in reversed(page.jobs)]


async def use(path: Path, clock: ManualClock) -> None:
    engine = SQLiteEngine(path, clock=clock)
    try:
        await engine.open()
        await engine.queues()
        await engine.find(JobFilter(states=(State.WAITING,)), limit=1000)
        await engine.lease(LeaseRequest(queues=("default",), limit=100))
        await engine.enqueue([NewJob(id=f"more-{n}", task="noop") for n in range(100)])
    finally:
        await engine.close()
