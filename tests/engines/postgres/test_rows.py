"""A leased job has the same fields as the job that `get` returns, whatever is set."""

from msgspec.structs import replace

from holdfast.core.model import (
    Failure,
    Job,
    JobFilter,
    LeaseRequest,
    NewJob,
    Note,
    Overrides,
    Reason,
    Renewal,
    State,
)
from holdfast.core.verdict import Bury, Outcome, Redrive, Release, Settlement
from holdfast.engines.postgres import PostgresEngine

PLAIN = NewJob(id="plain", task="work", payload=b"1")
RARE = {
    "content_type": "text/plain",
    "expires_ms": 60_000,
    "key": "k",
    "tenant": "t",
    "group": "g",
    "labels": {"a": "b"},
    "headers": {"c": "d"},
    "overrides": Overrides(max_attempts=9),
    "after_on": "either",
    "parent_death": "hold",
}


async def opened(dsn: str) -> PostgresEngine:
    engine = PostgresEngine(dsn, connections=1)
    await engine.open()
    return engine


async def lease_all(engine: PostgresEngine) -> list[Job]:
    """Lease all jobs and compare each with `get`."""
    request = LeaseRequest(queues=("default",), limit=100, worker="w")
    leases = await engine.lease(request)
    for lease in leases:
        assert lease.token == lease.job.token
        whole = await engine.get(lease.id)
        assert whole is not None
        assert lease.job == replace(whole, events=(), output=None), lease.id
    return [lease.job for lease in leases]


async def test_each_rare_field_alone_and_all_together(pg_dsn: str) -> None:
    engine = await opened(pg_dsn)
    news = [replace(PLAIN, id=name, **{name: value}) for name, value in RARE.items()]
    others = {"key": "other", "group": "other"}
    await engine.enqueue([PLAIN, *news, replace(PLAIN, id="all", **{**RARE, **others})])
    jobs = await lease_all(engine)
    assert [job.id for job in jobs] == ["plain", *RARE, "all"]
    await engine.close()


async def test_fields_left_by_earlier_attempts(pg_dsn: str) -> None:
    engine = await opened(pg_dsn)
    await engine.enqueue([replace(PLAIN, id=name) for name in ("noted", "released", "alone")])
    noted, released, alone = await engine.lease(LeaseRequest(queues=("default",), limit=3))
    note = Note(progress=0.5, checkpoint=b"here", output=b"said")
    [renewed] = await engine.renew([Renewal(lease=noted, note=note)])
    assert renewed is not None
    settled = await engine.settle(
        [
            Settlement(lease=renewed, verdict=Release("later")),
            Settlement(lease=released, verdict=Release("later")),
            Settlement(lease=alone, verdict=Release("later", alone=True)),
        ]
    )
    assert set(settled) == {Outcome.SETTLED}
    by_id = {job.id: job for job in await lease_all(engine)}
    assert (by_id["noted"].progress, by_id["noted"].checkpoint) == (0.5, b"here")
    assert [job.releases for job in by_id.values()] == [1, 1, 1]
    assert [job.id for job in by_id.values() if job.alone] == ["alone"]
    await engine.close()


async def test_parents_and_redrives(pg_dsn: str) -> None:
    engine = await opened(pg_dsn)
    await engine.enqueue([PLAIN, replace(PLAIN, id="child", after=("plain",))])
    for _ in range(2):
        [lease] = await engine.lease(LeaseRequest(ids=("plain",)))
        bury = Settlement(lease=lease, verdict=Bury(Reason.EXPLICIT, Failure(message="no")))
        await engine.settle([bury])
        [dead] = (await engine.find(JobFilter(states=(State.DEAD,)), limit=9)).jobs
        assert dead.fingerprint is not None
        same = JobFilter(fingerprint=dead.fingerprint)
        assert await engine.amend(same, Redrive(), limit=9) == 1
        await engine.amend(JobFilter(states=(State.CANCELLED,)), Redrive(), limit=9)
    by_id = {job.id: job for job in await lease_all(engine)}
    assert (by_id["plain"].redrives, by_id["plain"].fingerprint) == (2, None)
    assert (by_id["child"].redrives, by_id["child"].after) == (1, ("plain",))
    await engine.close()
