"""What a process that died in the middle leaves to be told is found by whoever reaps."""

from typing import Any

from holdfast.core.verdict import Complete, Settlement
from holdfast.engines.postgres import PostgresEngine
from holdfast.testing.contract.making import a_job, lease_ids, lease_one
from holdfast.upkeep import Reaper


async def test_a_parents_end_is_told_long_before_the_next_recount(
    engine: PostgresEngine, pg_dsn: str, look: Any
) -> None:
    """The worker that starts right after the crash recounts while somebody may still be about to
    tell, and not again for a minute: its next look at the leases has to find it."""

    async def die(endings: object) -> None:
        del endings

    await engine.enqueue([a_job("parent"), a_job("child", after=("parent",))])
    engine._part = die  # type: ignore[method-assign]
    await engine.settle([Settlement(lease=await lease_one(engine), verdict=Complete())])
    other = PostgresEngine(pg_dsn)
    await other.open()
    reaper = Reaper(other)
    await reaper.once()
    too_early = await lease_ids(other)
    await look.execute("UPDATE endings SET at = 0")
    ticket = other._bell.ticket
    await reaper.once()
    rang = other._bell.ticket > ticket
    told = await lease_ids(other)
    await other.close()
    assert (too_early, told) == ([], ["child"])
    assert rang, "whoever waits for a job is woken"
    assert await look.fetchval("SELECT count(*) FROM endings") == 0
