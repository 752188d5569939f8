"""The application checks options by name, and raises errors that must not be overlooked."""

import asyncio
import importlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast
from holdfast import Backoff, Holdfast, NewJob, Note
from holdfast.core.model import State, Status
from holdfast.engines.memory import MemoryEngine
from holdfast.engines.registry import redacted
from holdfast.errors import (
    ConfigError,
    InvalidJob,
    InvalidQueue,
    LeaseLost,
    NotAccepting,
    PayloadTooLarge,
    QueueFull,
    UnknownQueue,
    Unsupported,
    UsageError,
)
from holdfast.events import EngineCalled, ProcessEvent, Reaped
from holdfast.ops.ticks import Schedule


async def test_one_job_from_end_to_end(app: Holdfast) -> None:
    receipt = await app.enqueue("mail", {"to": "ä"}, labels={"a": "b"}, priority=3)
    assert receipt.status is Status.NEW
    [lease] = await app.lease(worker="w")
    assert (lease.id, lease.job.payload) == (receipt.id, '{"to":"ä"}'.encode())
    renewed = await app.renew(lease, note=Note(progress=0.5))
    assert not renewed.cancel_requested
    await app.complete(renewed, {"sent": True})
    await app.complete(renewed, {"sent": True})
    job = await app.get(receipt.id)
    assert job is not None
    assert (job.state, job.result, job.progress) == (State.DONE, b'{"sent":true}', 0.5)
    with pytest.raises(LeaseLost, match=receipt.id):
        await app.bury(lease)
    with pytest.raises(LeaseLost):
        await app.renew(lease)


async def test_every_option_arrives(app: Holdfast) -> None:
    job = app.job(
        "t",
        b"\xff",
        id="mine",
        delay="5m",
        expires=timedelta(hours=1),
        key="k",
        key_window="2d",
        key_policy="replace",
        key_hold="window",
        tenant="acme",
        group="g",
        labels={"l": "1"},
        headers={"h": "1"},
        lease="1m",
        timeout=90,
        max_attempts=0,
        max_crashes=2,
        backoff=Backoff(kind="constant", jitter=0.0),
        priority=None,
    )
    assert (job.key_window_ms, job.content_type) == (172_800_000, "application/octet-stream")
    assert job.key_hold == "window"
    assert (await app.enqueue_many([job]))[0].status is Status.NEW
    kept = await app.get("mine")
    assert kept is not None
    assert kept.due_at - kept.created_at == 300_000
    assert kept.expires_at == kept.created_at + 3_600_000
    assert (kept.key, kept.tenant, kept.group) == ("k", "acme", "g")
    assert (kept.labels, kept.headers, kept.priority) == ({"l": "1"}, {"h": "1"}, 0)
    assert kept.overrides == job.overrides
    assert (job.overrides.lease_ms, job.overrides.timeout_ms) == (60_000, 90_000)
    again = await app.enqueue("t", key="k")
    assert (again.status, again.id) == (Status.DUPLICATE, "mine")


def test_run_at_is_an_instant_with_a_zone() -> None:
    app = Holdfast("memory:")
    soon = app.job("t", run_at=datetime.now(UTC) + timedelta(hours=1))
    assert 3_590_000 < soon.delay_ms <= 3_600_000
    assert app.job("t", run_at=datetime(2020, 1, 1, tzinfo=UTC)).delay_ms == 0
    with pytest.raises(InvalidJob, match="time zone"):
        app.job("t", run_at=datetime(2030, 1, 1))  # noqa: DTZ001
    with pytest.raises(InvalidJob, match="either a delay or a run_at"):
        app.job("t", delay=1, run_at=datetime.now(UTC))


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        (
            {"queue": "nowhere"},
            UnknownQueue,
            "nowhere does not exist: correct its name, or",
        ),
        ({"queue": "full"}, QueueFull, "full"),
        ({"queue": "closed"}, NotAccepting, "closed"),
        ({"queue": "small"}, PayloadTooLarge, "maximum is 10"),
        ({"queue": "'; drop table jobs"}, InvalidQueue, "queue name"),
        ({"id": "a b"}, InvalidJob, "id 'a b'"),
        ({"priority": 1000}, InvalidJob, "priority 1000"),
        ({"tenant": "\0"}, InvalidJob, "tenant"),
        ({"key": ""}, InvalidJob, "key"),
    ],
)
async def test_a_refusal_is_raised_as_what_it_is(
    app: Holdfast, options: dict[str, Any], error: type[Exception], says: str
) -> None:
    await app.declare("full", max_depth=1)
    await app.declare("closed", accepting=False)
    await app.declare("small", payload_max=10)
    await app.enqueue("t", queue="full")
    with pytest.raises(error, match=says):
        await app.enqueue("t", "x" * 20, **options)


async def test_a_bad_job_harms_no_neighbour(app: Holdfast) -> None:
    wrong: Any = "7"
    jobs = [
        app.job("t", id="a"),
        NewJob(id="b", task="t", priority=wrong),
        app.job("t", id="c", queue="nowhere"),
        app.job("t", id="d"),
    ]
    receipts = await app.enqueue_many(jobs)
    assert [(each.id, each.status, each.code) for each in receipts] == [
        ("a", Status.NEW, ""),
        ("b", Status.REFUSED, "invalid_job"),
        ("c", Status.REFUSED, "unknown_queue"),
        ("d", Status.NEW, ""),
    ]
    assert "priority: Expected int, got str" in receipts[1].text
    with pytest.raises(InvalidJob, match="job 0 is a dict"):
        await app.enqueue_many([{"task": "t"}])  # type: ignore[list-item]


async def test_many_jobs_are_split_into_batches(app: Holdfast) -> None:
    batches: list[int] = []

    def tell(event: ProcessEvent) -> None:
        if isinstance(event, EngineCalled) and event.verb == "enqueue":
            batches.append(event.outcomes["default"]["new"])

    app.listeners.add(tell)
    receipts = await app.enqueue_many(app.job("t", n, id=f"j{n}") for n in range(2_500))
    assert [each.id for each in receipts] == [f"j{n}" for n in range(2_500)]
    assert batches == [1_000, 1_000, 500]
    assert await app.enqueue_many([]) == []
    assert len([job async for job in app.jobs()]) == 2_500


async def test_declaring_keeps_what_is_not_said(app: Holdfast) -> None:
    made = await app.declare("mail", lease="1m", retention="1d", paused=True)
    assert (made.lease_ms, made.retention_ms) == (60_000, 86_400_000)
    await app.declare("mail", max_attempts=9)
    [kept] = [v.queue for v in await app.queues(counts=False) if v.queue.name == "mail"]
    assert (kept.lease_ms, kept.max_attempts, kept.paused) == (60_000, 9, True)
    for wrong, says in (
        ({"lease": "?"}, "lease"),
        ({"max_attempts": "9"}, "max_attempts: Expected int, got str"),
        ({"leese": 3}, "a queue has no leese"),
        ({"dead_queue": "nowhere"}, "nowhere"),
    ):
        with pytest.raises(UsageError, match=says):
            await app.declare("mail", **wrong)
    await app.drop("mail")
    assert [view.queue.name for view in await app.queues()] == ["default"]


async def test_upkeep_runs_on_the_same_engine(app: Holdfast) -> None:
    reaped = asyncio.Event()

    def tell(event: ProcessEvent) -> None:
        if isinstance(event, Reaped):
            reaped.set()

    app.listeners.add(tell)
    await app.enqueue("t", id="a")
    await app.lease(lease=0.01)
    stop = asyncio.Event()
    running = asyncio.create_task(app.upkeep().run(stop))
    await asyncio.wait_for(reaped.wait(), 60)
    stop.set()
    await running
    job = await app.get("a")
    assert job is not None
    assert job.state is State.WAITING


async def test_schedules_are_kept_in_the_store(app: Holdfast) -> None:
    await app.schedules.add(Schedule(name="nightly", job=app.job("report"), cron="@daily"))
    kept = await app.schedules.get("nightly")
    assert kept is not None
    assert kept.job.task == "report"


async def test_what_an_engine_cannot_do_is_said() -> None:
    async with Holdfast(engine=MemoryEngine()) as app:
        assert app.place == "memory"
        with pytest.raises(Unsupported, match="memory"):
            app.within(object())
        with pytest.raises(Unsupported, match="backup"):
            await app.backup("x")


async def test_a_job_of_the_callers_own_transaction(tmp_path: Path) -> None:
    path = tmp_path / "work.db"
    async with Holdfast(f"sqlite:///{path}") as app:
        connection = apsw.Connection(str(path))
        try:
            connection.execute("CREATE TABLE orders (id)")
            for id_, ending in (("never", "ROLLBACK"), ("kept", "COMMIT")):
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("INSERT INTO orders VALUES (?)", (id_,))
                [receipt] = app.within(connection).enqueue([app.job("t", id=id_)])
                assert receipt.status is Status.NEW
                connection.execute(ending)
        finally:
            connection.close()
        assert await app.get("never") is None
        assert await app.get("kept") is not None


async def test_backup_is_a_whole_copy(tmp_path: Path) -> None:
    async with Holdfast(f"sqlite:///{tmp_path}/a.db") as app:
        await app.enqueue("t", id="a")
        await app.backup(tmp_path / "b.db")
    async with Holdfast(f"sqlite:///{tmp_path}/b.db") as app:
        assert await app.get("a") is not None


def test_the_url_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_URL", "memory:")
    assert Holdfast().place == "memory:"
    monkeypatch.setenv("HOLDFAST_URL", "nonsense")
    with pytest.raises(ConfigError, match="no scheme"):
        Holdfast()
    with pytest.raises(UsageError, match="not both"):
        Holdfast("memory:", engine=MemoryEngine())


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:hunter2@127.0.0.1:1/d",
        "postgresql://u:hun@ter2/hunter2@127.0.0.1:1/d",
        "postgresql://127.0.0.1:1/d?user=u&password=x@hunter2",
        "postgresql://u:hunter2#@127.0.0.1:1/d",
    ],
)
def test_no_part_of_a_password_is_shown(url: str) -> None:
    assert "ter2" not in redacted(url)


def test_every_public_name_is_there() -> None:
    for name in holdfast.__all__:
        assert getattr(holdfast, name) is not None
    assert set(holdfast._HOMES) | {"__version__"} == set(holdfast.__all__)
    assert dir(holdfast) == sorted(holdfast.__all__)
    with pytest.raises(AttributeError, match="nonesuch"):
        _ = holdfast.nonesuch


PUBLIC_NAMES = {
    "holdfast.errors": """
        BY_CODE CircularJobs ConfigError EngineClosed EngineError EngineUnavailable Exists Forbidden
        HoldfastError InvalidJob InvalidQueue JobCancelled JobFailed JobGone LeaseLost NoResult
        NotAccepting NotFound OutcomeUnknown Overloaded PayloadTooLarge QueueFull QuotaExceeded
        ResultTimeout SchemaMismatch StorageFull Unauthenticated UnknownKind UnknownParent
        UnknownQueue Unsupported UsageError WrongState
    """,
    "holdfast.engines.base": "ANY Engine Examination Expired Known Overdue Saved Traits",
    "holdfast.testing": "Fake Inline Manual fake inline manual",
}


@pytest.mark.parametrize("module", PUBLIC_NAMES)
def test_the_names_of_version_0_1_0_stay_importable(module: str) -> None:
    imported = importlib.import_module(module)
    assert [name for name in PUBLIC_NAMES[module].split() if not hasattr(imported, name)] == []
