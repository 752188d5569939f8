"""The revision of a file stays the same until any process writes to it."""

from holdfast.core.model import JobFilter, NewJob
from tests.engines.sqlite.conftest import OpenEngine


async def test_reads_change_nothing_and_writes_of_others_do(open_engine: OpenEngine) -> None:
    one, two = await open_engine(), await open_engine()
    before = await one.revision()
    await one.queues()
    await one.find(JobFilter(), limit=1)
    await two.find(JobFilter(), limit=1)
    assert await one.revision() == before
    await two.enqueue([NewJob(id="a", task="t")])
    after = await one.revision()
    assert after != before
    await two.get("a")
    assert await one.revision() == after
