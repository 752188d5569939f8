"""Tasks: made by a decorator, called here, enqueued to run elsewhere."""

import asyncio
from collections.abc import Sequence
from typing import Any

import apsw
import psycopg
import pytest

from holdfast import Backoff, Context, Holdfast, JobFilter, JobHandle, Task
from holdfast.core.model import KeyPolicy, NewJob, Overrides, Queue, QueueView, Receipt
from holdfast.errors import (
    InvalidJob,
    InvalidQueue,
    NotAccepting,
    QueueFull,
    UnknownQueue,
    UsageError,
)


def make(app: Holdfast) -> Task[int]:
    @app.task(
        queue="mail",
        max_attempts=5,
        max_crashes=2,
        backoff="exponential(2s, max=10m)",
        timeout="60s",
        lease="30s",
        priority=3,
        expires="1d",
        retry_on=ConnectionError,
        give_up_on=(ValueError, TypeError),
    )
    def send(to: str, *, ctx: Context) -> int:
        ctx.log("to", to)
        ctx.progress(0.5)
        return len(to) * ctx.attempt

    return send


def test_what_a_task_says_is_what_its_jobs_carry() -> None:
    send = make(Holdfast("memory:"))
    job = send.job("a@b.c")
    assert (job.task, job.queue, job.payload) == (send.name, "mail", b'{"to":"a@b.c"}')
    assert (job.priority, job.expires_ms) == (3, 86_400_000)
    assert job.overrides == Overrides(
        lease_ms=30_000,
        timeout_ms=60_000,
        max_attempts=5,
        max_crashes=2,
        backoff=Backoff(first_ms=2_000, cap_ms=600_000),
    )
    assert send.job("a").id != send.job("a").id


def test_what_a_worker_must_know_is_its_handler() -> None:
    app = Holdfast("memory:")
    send = make(app)
    handler = app.handlers[send.name]
    assert (handler.context, handler.is_async, handler.batch) == ("ctx", False, 1)
    assert handler.gives_up(ValueError())
    assert handler.gives_up(KeyError())
    assert not handler.gives_up(ConnectionResetError())

    @app.task(batch=10, isolated=True)
    async def index(pages: list[str]) -> None: ...

    handler = app.handlers[index.name]
    assert (handler.is_async, handler.batch, handler.isolated) == (True, 10, True)
    assert handler.arguments(index.job("a").payload, "application/json") == (("a",), {})


def test_using_lays_its_options_over_the_task_s() -> None:
    send = make(Holdfast("memory:"))
    job = send.using(
        tenant="acme", delay="10m", key="mail:42", priority=5, queue="bulk", max_attempts=1,
        id="mine", labels={"a": "b"}, backoff="constant(5s)",
    ).job("a")  # fmt: skip
    assert (job.id, job.tenant, job.delay_ms, job.key) == ("mine", "acme", 600_000, "mail:42")
    assert (job.priority, job.queue, job.labels) == (5, "bulk", {"a": "b"})
    assert (job.overrides.max_attempts, job.overrides.max_crashes) == (1, 2)
    twice = send.using(tenant="acme").using(priority=1).job("a")
    assert (twice.tenant, twice.priority) == ("acme", 1)


def test_a_job_to_one_worker_waits_in_that_worker_s_queue() -> None:
    app = Holdfast("memory:")
    send = make(app)
    job = send.using(to="alpha").job("a")
    assert (job.queue, job.expires_ms) == ("worker.alpha", 86_400_000)

    @app.task
    def ping() -> None: ...

    assert ping.using(to="alpha").job().expires_ms == 300_000
    assert ping.using(to="alpha", expires="1m").job().expires_ms == 60_000
    assert app.job("t", to="alpha").queue == "worker.alpha"
    with pytest.raises(InvalidJob, match="give to or queue, not both"):
        ping.using(to="alpha", queue="mail")
    with pytest.raises(InvalidQueue, match="queue name"):
        ping.using(to="a b")


def test_names() -> None:
    app = Holdfast("memory:")
    send = make(app)
    assert send.name == "tests.app.test_tasks:make.send"

    @app.task(name="billing/charge")
    def charge() -> None: ...

    assert list(app.tasks) == [send.name, "billing/charge"]
    with pytest.raises(UsageError, match="there is a task billing/charge already"):
        app.task(name="billing/charge")(charge.function)
    with pytest.raises(UsageError, match="give it a name="):
        app.task(lambda: None)
    with pytest.raises(UsageError, match="task name 'a b' is not"):
        app.task(name="a b")(charge.function)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"rate": "often"}, "rate of task .* 'often' is no rate: write \"100/m\""),
        ({"rate": "0/m"}, "rate of task .* lets nothing start: to stop a queue, pause it"),
        ({"rate": ("5/s", 7)}, "rate of task .* give a bound, or a bound and a key"),
        ({"concurrency": 0}, "concurrency 0 is not 1 to"),
        ({"concurrency": "10"}, "concurrency of task .* is '10': give a number of jobs"),
        ({"concurrency": (10, "{tenant")}, "key template '{tenant'"),
        ({"concurrency": (10, "{a.b}")}, "is no plain field such as {tenant}"),
        ({"colour": "red"}, "a task has no colour; it has backoff, batch"),
        ({"timeout": "soon"}, "timeout 'soon' is no duration"),
        ({"backoff": "often"}, "backoff 'often' is no backoff"),
        ({"max_attempts": -1}, "max_attempts -1"),
        ({"priority": 1_000}, "priority 1000"),
        ({"queue": "a b"}, "queue name 'a b'"),
        ({"batch": 0}, "batch of task .* is 0; use 1 to 1000"),
        ({"batch": True}, "batch of task .* is True"),
        ({"isolated": 1}, "isolated is a int: give a bool"),
        ({"retry_on": "OSError"}, "retry_on has 'OSError': give exception classes"),
        ({"give_up_on": [OSError]}, "give_up_on has"),
        ({"name": 7}, "name is a int"),
    ],
)
def test_a_wrong_option_is_refused_where_the_task_is_made(
    options: dict[str, Any], says: str
) -> None:
    app = Holdfast("memory:")
    with pytest.raises(UsageError, match=says):

        @app.task(**options)
        def task() -> None: ...

    assert not app.tasks


def test_what_is_no_function_is_no_task() -> None:
    app: Any = Holdfast("memory:")
    with pytest.raises(UsageError, match="a str is no function"):
        app.task("mail")


def test_a_function_that_no_worker_could_call_is_refused() -> None:
    app = Holdfast("memory:")

    @app.task
    def gathering(ctx: Context, *numbers: int) -> None: ...

    with pytest.raises(UsageError, match=r"ctx of task .* must be last, or come after a"):
        gathering.enqueue(1)
    with pytest.raises(UsageError, match="must be last"):
        _ = app.handlers

    with pytest.raises(UsageError, match="is a generator: a task must return"):

        @app.task
        def generating() -> Any:
            yield 1


def test_attributes_of_a_function_are_not_those_of_its_task() -> None:
    def function() -> None: ...

    function.name = "wrong"  # type: ignore[attr-defined]
    task = Holdfast("memory:").task(name="right")(function)
    assert task.name == "right"


def test_calling_a_task_runs_the_function_here() -> None:
    app = Holdfast("memory:")
    send = make(app)
    assert send("abc") == 3
    assert send.function.__name__ == "send"

    @app.task
    async def double(number: int, ctx: Context) -> int:
        ctx.checkpoint(number)
        assert ctx.resume() == number
        assert not ctx.cancelled
        return 2 * number

    assert asyncio.run(double(4)) == 8

    @app.task(batch=5)
    def join(words: list[str], *, contexts: list[Context]) -> list[int]:
        return [len(word) for word, _ in zip(words, contexts, strict=True)]

    assert join(["a", "bc"]) == [1, 2]

    @app.task
    def first(ctx: Context, number: int, *, more: int = 0) -> int:
        return ctx.attempt + number + more

    assert (first(1), first(1, more=2), first(number=1)) == (2, 4, 2)
    # As a plain call it is checked by Python alone, and a Context that is given is used.
    with pytest.raises(TypeError, match="unexpected keyword argument 'x'"):
        send("abc", x=1)

    class Mine:
        attempt = 5

        def log(self, *values: object) -> None: ...
        def progress(self, fraction: float) -> None: ...

    assert send("abc", ctx=Mine()) == 15


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
        ([("a",), (7,)], "to: Expected str"),
        ([("a",), "b"], "call 1 is a str: give a tuple or dict of arguments"),
        ([("a",), {"t": "b"}], "missing a required argument: 'to'"),
    ]
    for wrong, says in wrongs:
        with pytest.raises(InvalidJob, match=says):
            send.enqueue_many(wrong)
    # Under one id there is one job: the second would be taken for a repeat of the first.
    with pytest.raises(InvalidJob, match="id j1 would be that of 2 jobs"):
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
    with pytest.raises(QueueFull, match="1 of 3 jobs were refused, the first: queue mail holds"):
        await send.aenqueue_many([("a",)] * 3)
    await app.declare("mail", accepting=False)
    with pytest.raises(NotAccepting, match=r"^queue mail accepts no new jobs"):
        await send.aenqueue("a")


def test_a_job_can_be_after_others_by_what_has_their_ids() -> None:
    send = make(Holdfast("memory:"))
    first = send.job("a")
    child = send.using(after=[first, "x", send.handle("y"), "x"], after_on="either").job("b")
    assert child.after == (first.id, "x", "y")
    assert child.after_on == "either"


def test_a_wrong_option_of_a_job_is_refused() -> None:
    send = make(Holdfast("memory:"))
    for after, says in (("x", "after is a str"), ([7], "after has at 0"), (["a b"], "after 'a b'")):
        with pytest.raises(InvalidJob, match=says):
            send.using(after=after)
    with pytest.raises(InvalidJob, match="the payload of a task is JSON"):
        send.using(content_type="text/plain")
    wrong: Any = {"colour": "red"}
    with pytest.raises(InvalidJob, match="a job has no colour"):
        send.using(**wrong)
    policy: Any = "maybe"
    with pytest.raises(InvalidJob, match="key_policy"):
        send.using(key="k", key_policy=policy)
    keep: KeyPolicy = "keep"
    assert send.using(key="k", key_policy=keep).job("a").key == "k"


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

        async def as_before(*, counts: bool = True) -> list[QueueView]:
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
