"""The reaper tells children of endings that a crashed process left untold."""

from typing import Any

from holdfast.conformance.contract.cases import a_job, lease_ids, lease_one
from holdfast.core.verdict import Complete, Settlement
from holdfast.engines.postgres import PostgresEngine
from holdfast.upkeep import Reaper


async def test_children_are_told_before_the_next_recount(
    engine: PostgresEngine, pg_dsn: str, look: Any
) -> None:
    """A worker that starts right after the crash recounts too early to find the ending, and not
    again for a minute: the next look for overdue leases must find it."""

    async def die(endings: object) -> None:
        del endings

    await engine.enqueue([a_job("parent"), a_job("child", after=("parent",))])
    engine._tell_children = die  # type: ignore[method-assign]
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
    assert rang, "waiting leases are woken"
    assert await look.fetchval("SELECT count(*) FROM endings") == 0
