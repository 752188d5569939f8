"""Tasks: made by a decorator, called here, and the jobs that come of their options."""

import asyncio
from typing import Any

import pytest

from holdfast import Backoff, Context, Holdfast
from holdfast.core import codec
from holdfast.core.model import KeyPolicy, Overrides
from holdfast.errors import InvalidJob, InvalidQueue, UsageError
from holdfast.worker.child.context import CallState
from holdfast.worker.wire import CallJob
from tests.app.mailing import make


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
    with pytest.raises(InvalidJob, match='give "to" or "queue", not both'):
        ping.using(to="alpha", queue="mail")
    with pytest.raises(InvalidQueue, match="queue name"):
        ping.using(to="a b")


def test_names() -> None:
    app = Holdfast("memory:")
    send = make(app)
    assert send.name == "tests.app.mailing:make.send"

    @app.task(name="billing/charge")
    def charge() -> None: ...

    assert list(app.tasks) == [send.name, "billing/charge"]
    with pytest.raises(UsageError, match="task billing/charge already exists"):
        app.task(name="billing/charge")(charge.function)
    with pytest.raises(UsageError, match="set name="):
        app.task(lambda: None)
    with pytest.raises(UsageError, match="task name 'a b' is not"):
        app.task(name="a b")(charge.function)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"rate": "often"}, 'rate of task .* "often": expected a rate such as "100/m"'),
        ({"rate": "0/m"}, "rate of task .* allows no start at all: to stop a queue, pause it"),
        ({"rate": ("5/s", 7)}, "rate of task .* give a bound, or a bound and a key"),
        ({"concurrency": 0}, "concurrency 0 is out of range: expected 1 to"),
        ({"concurrency": "10"}, "concurrency of task .* is '10': give a number of jobs"),
        ({"concurrency": (10, "{tenant")}, "key template '{tenant'"),
        ({"concurrency": (10, "{a.b}")}, "is not a plain field such as {tenant}"),
        ({"colour": "red"}, "a task has no colour; it has backoff, batch"),
        ({"timeout": "soon"}, 'timeout "soon": expected a duration'),
        ({"backoff": "often"}, 'backoff "often": expected a backoff'),
        ({"max_attempts": -1}, "max_attempts -1"),
        ({"priority": 1_000}, "priority 1000"),
        ({"queue": "a b"}, "queue name 'a b'"),
        ({"batch": 0}, "batch of task .* is 0; use 1 to 1000"),
        ({"batch": True}, "batch of task .* is True"),
        ({"isolated": 1}, "isolated is an int: give a bool"),
        ({"retry_on": "OSError"}, "retry_on has 'OSError': give exception classes"),
        ({"give_up_on": [OSError]}, "give_up_on has"),
        ({"name": 7}, "name is an int"),
    ],
)
def test_a_wrong_option_is_refused_where_the_task_is_made(
    options: dict[str, Any], says: str
) -> None:
    app = Holdfast("memory:")
    with pytest.raises(UsageError, match=says):

        @app.task(**options)  # type: ignore[untyped-decorator]
        def task() -> None: ...

    assert not app.tasks


def test_what_is_no_function_is_no_task() -> None:
    app: Any = Holdfast("memory:")
    with pytest.raises(UsageError, match="must be a function, not a str"):
        app.task("mail")


def test_a_function_that_no_worker_could_call_is_refused() -> None:
    app = Holdfast("memory:")

    @app.task
    def gathering(ctx: Context, *numbers: int) -> None: ...

    with pytest.raises(
        UsageError, match=r"ctx of task .* must be the last parameter or come after a"
    ):
        gathering.enqueue(1)
    with pytest.raises(UsageError, match="must be the last parameter"):
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
    async def double(ctx: Context, number: int) -> int:
        ctx.checkpoint(number)
        assert ctx.resume() == number
        assert not ctx.cancelled
        return 2 * number

    assert asyncio.run(double(4)) == 8

    @app.task
    def show(ctx: Context, word: str = "nothing") -> str:
        return f"{ctx.id} {word}"

    ctx = Context(CallJob("j", "default", b"", codec.JSON, 1, 0, 0), CallState("show"))
    assert [show(), show("a"), show(ctx), show(ctx, "a")] == [
        *("inline nothing", "inline a", "j nothing", "j a")
    ]

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


def test_a_job_can_be_after_others_by_what_has_their_ids() -> None:
    send = make(Holdfast("memory:"))
    first = send.job("a")
    child = send.using(after=[first, "x", send.handle("y"), "x"], after_on="either").job("b")
    assert child.after == (first.id, "x", "y")
    assert child.after_on == "either"


def test_a_wrong_option_of_a_job_is_refused() -> None:
    send = make(Holdfast("memory:"))
    for after, says in (
        ("x", "after is a str"),
        ([7], r"after\[0\] is neither"),
        (["a b"], "after 'a b'"),
    ):
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
