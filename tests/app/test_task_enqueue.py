"""Jobs of a task are enqueued from async and blocking code, alone, many at once or within."""

import asyncio
from collections.abc import Collection, Sequence
from typing import Any

import apsw
import psycopg
import pytest

from holdfast import Holdfast, JobFilter, JobHandle
from holdfast.core.model import NewJob, Queue, QueueView, Receipt
from holdfast.errors import InvalidJob, NotAccepting, QueueFull, UnknownQueue, UsageError
from tests.app.mailing import make


async def test_enqueued_from_async_code(app: Holdfast) -> None:
    send = make(app)
    handle = await send.aenqueue("a@b.c")
    assert isinstance(handle, JobHandle)
    assert not handle.duplicate
    job = await handle.ajob()
    assert job is not None
    assert (job.queue, job.payload) == ("mail", b'{"to":"a@b.c"}')
    first = await send.using(key="k").aenqueue("x")
    again = await send.using(key="k").aenqueue("y")
    assert (again.id, again.duplicate) == (first.id, True)
    many = await send.aenqueue_many([("a",), {"to": "b"}])
    assert len({each.id for each in many}) == 2
    with pytest.raises(InvalidJob, match="to: Expected str, got int"):
        await send.aenqueue(7)
    with pytest.raises(UsageError, match=r"await task\.aenqueue"):
        send.enqueue("a")
    with pytest.raises(UsageError, match=r"await handle\.aresult"):
        handle.result()


def test_enqueued_from_blocking_code(url: str) -> None:
    app = Holdfast(url)
    send = make(app)
    try:
        ids = [send.enqueue("a").id, send.delay("b").id]
        ids += [each.id for each in send.enqueue_many([("c",), {"to": "d"}] * 2)]
        ids.append(send.using(tenant="t").enqueue("e").id)
        assert len(set(ids)) == 7
        job = send.handle(ids[-1]).job()
        assert job is not None
        assert (job.tenant, job.payload) == ("t", b'{"to":"e"}')
        assert send.handle("nobody").job() is None
    finally:
        asyncio.run(app.close())


def test_nothing_is_enqueued_when_one_of_many_is_wrong() -> None:
    app = Holdfast("memory:")
    send = make(app)
    wrongs: list[tuple[Any, str]] = [
        ([("a",), (7,)], "call 1: task .*: to: Expected str"),
        ([("a",), "b"], "call 1 is a str: give a tuple or dict of arguments"),
        ([("a",), {"t": "b"}], "missing a required argument: 'to'"),
    ]
    for wrong, says in wrongs:
        with pytest.raises(InvalidJob, match=says):
            send.enqueue_many(wrong)
    # Under one id there is one job: the second would be taken for a repeat of the first.
    with pytest.raises(InvalidJob, match="id j1 cannot be used for 2 jobs"):
        send.using(id="j1").enqueue_many([("a",), ("b",)])
    assert app.run(app.find(JobFilter())).jobs == ()
    asyncio.run(app.close())


async def test_a_queue_that_a_task_names_is_declared_once_and_never_changed(app: Holdfast) -> None:
    send = make(app)
    assert [view.queue.name for view in await app.queues()] == ["default"]
    await send.aenqueue("a")
    [_, mail] = await app.queues()
    assert (mail.queue.name, mail.queue.max_attempts, mail.ready) == ("mail", 4, 1)
    await app.declare("mail", max_attempts=9)
    await send.aenqueue("b")
    again = Holdfast(engine=app.engine)
    await again.open()
    await make(again).aenqueue("c")
    [_, mail] = await app.queues()
    assert (mail.queue.max_attempts, mail.ready) == (9, 3)
    # A name that no task has is a mistake.
    with pytest.raises(UnknownQueue, match="queue nowhere does not exist"):
        await send.using(queue="nowhere").aenqueue("a")


async def test_a_refusal_is_raised_and_says_how_many(app: Holdfast) -> None:
    send = make(app)
    await app.declare("mail", max_depth=2)
    with pytest.raises(QueueFull, match="1 of 3 jobs were refused, the first: queue mail is full"):
        await send.aenqueue_many([("a",)] * 3)
    await app.declare("mail", accepting=False)
    with pytest.raises(NotAccepting, match=r"^queue mail does not accept new jobs"):
        await send.aenqueue("a")


async def test_a_queue_that_was_made_meanwhile_is_left_as_it_is() -> None:
    async with Holdfast("memory:") as app:
        made = Queue(name="mail", max_attempts=9)
        enqueue = app.engine.enqueue

        async def too_early(jobs: Sequence[NewJob]) -> list[Receipt]:
            app.engine.enqueue = enqueue  # type: ignore[method-assign]
            receipts = await enqueue(jobs)
            await app.engine.declare(made)
            return receipts

        app.engine.enqueue = too_early  # type: ignore[method-assign]
        looked = app.engine.queues
        before = await looked(counts=False)

        async def as_before(
            *, names: Collection[str] | None = None, counts: bool = True
        ) -> list[QueueView]:
            return before

        app.engine.queues = as_before  # type: ignore[method-assign]
        await make(app).aenqueue("a@b.c")
        assert made in [view.queue for view in await looked(counts=False)]


async def test_enqueued_within_the_caller_s_transaction(tmp_path: Any) -> None:
    app = Holdfast(f"sqlite:///{tmp_path}/work.db")
    async with app:
        send = make(app)
        await app.declare("mail")
        connection = apsw.Connection(f"{tmp_path}/work.db")
        for end in ("ROLLBACK", "COMMIT"):
            connection.execute("BEGIN IMMEDIATE")
            handle = await send.using(tenant="t").within(connection).aenqueue(end)
            connection.execute(end)
            job = await handle.ajob()
            assert (job is not None) == (end == "COMMIT")
        with connection:
            many = await send.within(connection).aenqueue_many([("a",)] * 1_001)
            many += await asyncio.to_thread(send.within(connection).enqueue_many, [("b",)] * 1_001)
        assert len({handle.id for handle in many}) == 2_002
        assert await many[-1].ajob() is not None
        connection.close()
    with pytest.raises(UsageError, match=r"takes an apsw\.Connection, not builtins\.object"):
        await send.within(object()).aenqueue("x")
    await app.close()


def test_enqueued_within_a_blocking_transaction(pg_dsn: str) -> None:
    app = Holdfast(pg_dsn)
    send = make(app)
    try:
        with psycopg.connect(pg_dsn) as connection:
            connection.execute("SELECT 1")
            with pytest.raises(UnknownQueue, match="queue mail does not exist"):
                send.within(connection).enqueue("a")
            connection.rollback()
            app.run(app.declare("mail"))
            connection.execute("SELECT 1")
            never = send.within(connection).enqueue("a")
            connection.rollback()
            connection.execute("SELECT 1")
            kept = send.within(connection).enqueue("a")
            connection.commit()
        assert never.job() is None
        assert kept.job() is not None
    finally:
        asyncio.run(app.close())
