"""Plain completions of a batch: with one statement or job by job, the outcomes are the same."""

import random

import pytest
from msgspec.structs import replace

from holdfast.core.model import Job, JobFilter, Lease, LeaseRequest, NewJob, State
from holdfast.core.verdict import Complete, Outcome, Retry, Settlement
from holdfast.engines.sqlite import SQLiteEngine, settle
from tests.engines.sqlite.conftest import OpenEngine

REQUEST = LeaseRequest(queues=("default",), limit=10)
COUNT = 40


@pytest.fixture
async def engine(open_engine: OpenEngine) -> SQLiteEngine:
    return await open_engine()


async def leased(engine: SQLiteEngine, prefix: str) -> list[Lease]:
    """Leases of COUNT jobs under several tokens."""
    await engine.enqueue([NewJob(id=f"{prefix}-{n}", task="t") for n in range(COUNT)])
    return [lease for _ in range(COUNT // 10) for lease in await engine.lease(REQUEST)]


def done(leases: list[Lease]) -> list[Settlement]:
    return [Settlement(lease=lease, verdict=Complete()) for lease in leases]


async def stored(engine: SQLiteEngine, prefix: str) -> list[Job]:
    page = await engine.find(JobFilter(search=f"{prefix}-"), limit=1_000)
    return [await engine.get(job.id) or job for job in sorted(page.jobs, key=lambda job: job.seq)]


async def test_results_are_kept_beside_jobs_that_have_none(engine: SQLiteEngine) -> None:
    assert COUNT >= settle._TOGETHER_MIN
    leases = await leased(engine, "a")
    mixed = [
        Settlement(lease=lease, verdict=Complete(result=b"%d" % n if n % 3 else None))
        for n, lease in enumerate(leases)
    ]
    assert await engine.settle(mixed) == [Outcome.SETTLED] * COUNT
    for n, job in enumerate(await stored(engine, "a")):
        assert (job.state, job.version) == (State.DONE, 3)
        assert job.result == (b"%d" % n if n % 3 else None)
    assert await engine.settle(mixed) == [Outcome.SETTLED] * COUNT, "repeating is harmless"
    assert [job.version for job in await stored(engine, "a")] == [3] * COUNT


@pytest.mark.parametrize("seed", range(5))
async def test_a_batch_with_leases_that_are_not_valid(
    engine: SQLiteEngine, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Both ways are given the same mistakes; whatever is not valid changes nothing."""
    found = {}
    for prefix, least in (("one", 1_000), ("all", 1)):
        monkeypatch.setattr(settle, "_TOGETHER_MIN", least)
        chosen = random.Random(seed)
        leases = await leased(engine, prefix)
        await engine.settle(done(leases[:2]))
        await engine.settle([Settlement(lease=one, verdict=Retry()) for one in leases[2:4]])
        await engine.settle([Settlement(lease=one, verdict=Retry()) for one in leases[4:6]])
        again = await engine.lease(LeaseRequest(ids=tuple(one.id for one in leases[4:6]), limit=10))
        mistaken = [
            *leases,
            *again,
            *chosen.choices(leases, k=3),
            replace(leases[7], token=leases[17].token),
            replace(leases[8], token=1 << 70),
            replace(leases[9], token=-leases[9].token),
            replace(leases[10], job=replace(leases[10].job, id=f'{prefix}-"11')),
            replace(leases[11], job=replace(leases[11].job, id=f"{prefix}-11\0")),
            replace(leases[12], job=replace(leases[12].job, id=leases[13].id)),
            *([replace(leases[14], job=replace(leases[14].job, id="\ud800"))] if seed else []),
        ]
        chosen.shuffle(mistaken)
        outcomes = await engine.settle(done(mistaken))
        jobs = [(job.state, job.version, job.attempt) for job in await stored(engine, prefix)]
        found[prefix] = (outcomes, jobs)
    assert found["one"] == found["all"]
    assert set(found["all"][0]) == {Outcome.SETTLED, Outcome.LOST}
