"""Holdfast with Sentry, structlog, Flask, SQLAlchemy and FastAPI, without a network."""

import asyncio
from collections.abc import Iterator
from typing import Any, Self

import flask
import pytest
import sentry_sdk
import structlog
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport
from sqlalchemy import StaticPool, create_engine, text
from sqlalchemy.orm import Session, sessionmaker

from holdfast import Bury, Holdfast, Release, Retry, UsageError
from holdfast.integrations import flask as holdfast_flask
from holdfast.integrations import sentry, sqlalchemy
from holdfast.integrations.structlog import add_job
from holdfast.testing import inline, manual
from holdfast.worker.child.attempt import Attempt
from tests.worker.child_driver import given_job


@pytest.fixture
def app() -> Holdfast:
    return Holdfast("memory:")


class Caught(Transport):
    """Keeps what the SDK would send."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Any] = []
        self.transactions: list[Any] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        for item in envelope.items:
            if item.type == "event":
                self.events.append(item.payload.json)
            elif item.type == "transaction":
                self.transactions.append(item.payload.json)


@pytest.fixture
def caught() -> Iterator[Caught]:
    transport = Caught()
    with sentry_sdk.isolation_scope():
        sentry_sdk.init(
            "https://public@sentry.example.org/1",
            transport=transport,
            traces_sample_rate=1.0,
            default_integrations=False,
        )
        yield transport
        sentry_sdk.get_client().close()
        sentry_sdk.get_global_scope().set_client(None)


def test_sentry_gets_each_failure_with_its_job(app: Holdfast, caught: Caught) -> None:
    sentry.install(app)

    @app.task(name="fail", queue="mail", max_attempts=2)
    def fail(number: int) -> None:
        sentry_sdk.add_breadcrumb(message=f"crumb {number}")
        raise ValueError(f"no {number}")

    with inline(app):
        first, second = fail.enqueue_many([(1,), (2,)])
    jobs = [event["contexts"]["job"] for event in caught.events]
    assert sorted((job["id"], job["attempt"]) for job in jobs) == [
        (handle.id, attempt) for handle in (first, second) for attempt in (1, 2)
    ]
    for event in caught.events:
        [crumb] = event["breadcrumbs"]["values"]
        [shown] = event["exception"]["values"]
        assert crumb["message"] == shown["value"].replace("no", "crumb")
        assert event["tags"]["holdfast.queue"] == "mail"
        assert event["transaction"] == "fail"
    assert [each["transaction"] for each in caught.transactions] == ["fail"] * 4
    assert {each["contexts"]["trace"]["op"] for each in caught.transactions} == {"queue.process"}


def test_sentry_continues_the_trace_of_the_producer(app: Holdfast, caught: Caught) -> None:
    sentry.install(app)
    nothing = app.task(name="nothing")(lambda: None)
    with manual(app) as jobs:
        with sentry_sdk.start_transaction(name="request") as request:
            nothing.enqueue()
        jobs.drain()
    [_, run] = caught.transactions
    assert run["contexts"]["trace"]["trace_id"] == request.trace_id


def test_sentry_gets_no_outcomes_that_the_handler_asked_for(app: Holdfast, caught: Caught) -> None:
    sentry.install(app)
    raised: list[Exception] = [Retry(after="1m"), Release(), Bury("broken")]

    @app.task(name="ask")
    def ask() -> None:
        raise raised.pop(0)

    for _ in range(3):
        Attempt(app.handlers["ask"], (given_job({}),)).run()
    assert [event["exception"]["values"][0]["value"] for event in caught.events] == ["broken"]


def test_sentry_may_report_last_attempts_only(app: Holdfast, caught: Caught) -> None:
    sentry.install(app, every_attempt=False)

    @app.task(name="fail", max_attempts=3)
    async def fail() -> None:
        raise ValueError

    with inline(app):
        fail.enqueue()
    assert [event["contexts"]["job"]["attempt"] for event in caught.events] == [3]


def test_sentry_gets_timeouts_and_payloads_that_do_not_fit(app: Holdfast, caught: Caught) -> None:
    sentry.install(app)

    @app.task(name="hang")
    async def hang(number: int) -> None:
        await asyncio.Event().wait()

    handler = app.handlers["hang"]
    asyncio.run(Attempt(handler, (given_job([1]),), timeout_ms=1).run_async())
    asyncio.run(Attempt(handler, (given_job(["one"]),)).run_async())
    assert [event["message"].partition(":")[0] for event in caught.events] == [
        "AttemptTimeout",
        "InvalidJob",
    ]


def test_structlog_has_the_job_of_each_event(app: Holdfast) -> None:
    seen: list[Any] = []

    def keep(logger: Any, method: str, event: structlog.typing.EventDict) -> Any:
        seen.append(event)
        raise structlog.DropEvent

    log = structlog.wrap_logger(None, processors=[add_job, keep])

    @app.task(name="log")
    async def speak(task: str | None = None) -> None:
        log.info("hello", **({"task": task} if task else {}))

    with inline(app):
        log.info("outside")
        handle = speak.enqueue()
        speak.enqueue("own")
    assert seen[0] == {"event": "outside"}
    assert seen[1] == {
        "event": "hello",
        "job_id": handle.id,
        "attempt": 1,
        "task": "log",
        "queue": "default",
    }
    assert seen[2]["task"] == "own"


@pytest.mark.parametrize("is_async", [False, True])
def test_a_task_runs_in_a_flask_context_of_its_own(app: Holdfast, is_async: bool) -> None:
    web = flask.Flask("shop")
    web.config["SENDER"] = "shop@example.org"
    holdfast_flask.install(app, web)
    left: list[Any] = []
    web.teardown_appcontext(left.append)

    def send() -> str:
        assert not hasattr(flask.g, "seen")
        flask.g.seen = True
        return str(flask.current_app.config["SENDER"])

    async def asend() -> str:
        return send()

    task = app.task(name="send")(asend if is_async else send)

    @web.post("/orders")
    def order() -> str:
        return str(task.enqueue().result())

    with inline(app):
        assert web.test_client().post("/orders").text == "shop@example.org"
        task.enqueue()
    assert len(left) == 3
    assert left == [None] * 3


@pytest.fixture
def sessions() -> Iterator[sessionmaker[Session]]:
    engine = create_engine("sqlite://", poolclass=StaticPool)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (number INTEGER)"))
    yield sessionmaker(engine)
    engine.dispose()


def test_a_session_is_committed_if_the_handler_returns(
    app: Holdfast, sessions: sessionmaker[Session]
) -> None:
    sqlalchemy.install(app, sessions)

    @app.task(name="store", max_attempts=1)
    def store(number: int) -> None:
        session = sqlalchemy.current_session()
        session.execute(text("INSERT INTO orders VALUES (:number)"), {"number": number})
        if number < 0:
            raise ValueError(number)

    @app.task(name="other")
    async def other() -> None:
        with pytest.raises(UsageError, match="no session is open here"):
            sqlalchemy.current_session()

    with inline(app):
        store.enqueue(1)
        store.enqueue(-1)
        assert other.enqueue().result() is None
    with sessions() as session:
        assert session.execute(text("SELECT number FROM orders")).all() == [(1,)]
    with pytest.raises(UsageError, match="no session is open here"):
        sqlalchemy.current_session()


class RecordedSession:
    """An async session that only records what is done to it: no async driver is needed."""

    def __init__(self, done: list[str]) -> None:
        self.done = done

    async def __aenter__(self) -> Self:
        self.done.append("begin")
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        self.done.append("commit" if kind is None else "rollback")


class RecordedSessions:
    def __init__(self) -> None:
        self.done: list[str] = []

    def begin(self) -> RecordedSession:
        return RecordedSession(self.done)


def test_an_async_task_has_an_async_session(app: Holdfast) -> None:
    sessions: Any = RecordedSessions()
    sqlalchemy.install(app, async_sessions=sessions)

    @app.task(name="store", max_attempts=1)
    async def store(*, fails: bool) -> None:
        current: Any = sqlalchemy.current_async_session()
        current.done.append("used")
        if fails:
            raise ValueError

    plain = app.task(name="plain")(lambda: None)
    with inline(app):
        store.enqueue(fails=False)
        store.enqueue(fails=True)
        plain.enqueue()
    assert sessions.done == ["begin", "used", "commit", "begin", "used", "rollback"]
    with pytest.raises(UsageError, match="no session is open here"):
        sqlalchemy.current_async_session()
