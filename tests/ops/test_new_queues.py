"""Queues that are created on the first enqueue, if the setting says so."""

from collections.abc import Sequence

import pytest

from holdfast.app.application import Holdfast, creating_queues
from holdfast.core.model import NewJob, Receipt, Status
from holdfast.engines.memory import MemoryEngine
from holdfast.errors import EngineUnavailable, OutcomeUnknown, UnknownQueue
from holdfast.ops.settings import save_setting


def job(id: str, queue: str = "default", after: tuple[str, ...] = ()) -> NewJob:
    return NewJob(id=id, task="t", payload=b"null", queue=queue, after=after)


async def queues(app: Holdfast) -> list[str]:
    return [view.queue.name for view in await app.queues(counts=False)]


async def test_only_if_the_setting_says_so() -> None:
    async with Holdfast("memory:") as app:
        with pytest.raises(UnknownQueue):
            await app.enqueue("t", queue="mail")
        await save_setting(app.engine, "create-queues", "yes")
        await app.enqueue("t", id="a", queue="mail")
        assert await queues(app) == ["default", "mail"]
        with pytest.raises(UnknownQueue):
            await app.enqueue("t", to="nobody")
        await save_setting(app.engine, "create-queues", "no")
        with pytest.raises(UnknownQueue):
            await app.enqueue("t", queue="other")


async def test_jobs_of_one_call_in_old_and_new_queues() -> None:
    async with Holdfast("memory:") as app:
        await save_setting(app.engine, "create-queues", "yes")
        jobs = [job("a"), job("b", "mail"), job("c", after=("b",)), job("d", "sms"), job("!")]
        receipts = await app.enqueue_many(jobs)
        assert [receipt.status for receipt in receipts] == [Status.NEW] * 4 + [Status.REFUSED]
        assert await queues(app) == ["default", "mail", "sms"]
        again = await app.enqueue_many(jobs[:4])
        assert {receipt.status for receipt in again} == {Status.DUPLICATE}


class Failing(MemoryEngine):
    """Goes away after some calls of `enqueue`."""

    left = 1

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        self.left -= 1
        if self.left < 0:
            raise EngineUnavailable("it is away; nothing was changed")
        return await super().enqueue(jobs)


@pytest.mark.parametrize(
    ("jobs", "error"),
    [([job("a"), job("b", "mail")], OutcomeUnknown), ([job("b", "mail")], EngineUnavailable)],
)
async def test_a_failure_between_the_two_calls(jobs: list[NewJob], error: type[Exception]) -> None:
    """Jobs that the first call has enqueued are not reported as refused."""
    engine = Failing()
    await engine.open()
    await save_setting(engine, "create-queues", "yes")
    enqueue = creating_queues(engine)
    with pytest.raises(error):
        await enqueue(jobs)
    engine.left = 2
    receipts = await enqueue(jobs)
    assert all(receipt.status is not Status.REFUSED for receipt in receipts)


class Doubtful(MemoryEngine):
    """Knows only the first answer of the second call of `enqueue`."""

    calls = 0

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        self.calls += 1
        receipts = await super().enqueue(jobs)
        if self.calls == 2:
            raise OutcomeUnknown("no answer", known={0: receipts[0]})
        return receipts


async def test_known_answers_keep_their_positions() -> None:
    """Jobs of several callers may share a call, and each gets the answers at its positions."""
    engine = Doubtful()
    await engine.open()
    await save_setting(engine, "create-queues", "yes")
    jobs = [job("a"), job("b", "mail"), job("c"), job("d", "sms")]
    with pytest.raises(OutcomeUnknown) as raised:
        await creating_queues(engine)(jobs)
    assert {at: receipt.id for at, receipt in raised.value.known.items()} == {
        0: "a",
        1: "b",
        2: "c",
    }
