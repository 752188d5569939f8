"""Options that tasks declare in code reach jobs that the command line and HTTP enqueue."""

import json
from typing import Any

import pytest

from holdfast import Backoff, Holdfast
from holdfast.config import Settings
from holdfast.core.model import NewJob, Overrides, Record
from holdfast.core.workers import TaskRecord
from holdfast.engines.memory import MemoryEngine
from holdfast.errors import Forbidden
from holdfast.notation.job_lines import JobLine, job_defaults, make_job, read_line
from holdfast.ops.settings import declared_tasks, save_declared
from holdfast.server.access.authorized_engine import AuthorizedEngine
from tests.server.samples import caller

SLOW = TaskRecord(
    queue="slow",
    priority=3,
    expires_ms=60_000,
    overrides=Overrides(
        timeout_ms=500, lease_ms=9_000, max_attempts=1, max_crashes=2, backoff=Backoff()
    ),
)


@pytest.fixture
async def engine() -> MemoryEngine:
    engine = MemoryEngine()
    await engine.open()
    return engine


def test_a_task_declares_what_its_code_says() -> None:
    app = Holdfast("memory:")

    @app.task(queue="slow", priority=3, expires="1m", timeout="500ms", max_attempts=1)
    def slow() -> None: ...

    @app.task(retry_on=ValueError)
    def plain() -> None: ...

    assert slow.handler.info.declared == TaskRecord(
        queue="slow",
        priority=3,
        expires_ms=60_000,
        overrides=Overrides(timeout_ms=500, max_attempts=1),
    )
    assert plain.handler.info.declared is None


async def test_published_options_are_read_back(engine: MemoryEngine) -> None:
    await save_declared(engine, {"slow": SLOW, "plain": None})
    assert await declared_tasks(engine) == {"slow": SLOW}
    [before] = await engine.load("task", limit=10)
    await save_declared(engine, {"slow": SLOW, "other": TaskRecord(priority=1)})
    after = {record.key: record for record in await engine.load("task", limit=10)}
    assert after["slow"].version == before.version, "what did not change is not written"
    # The code no longer declares anything.
    await save_declared(engine, {"slow": None})
    assert list(await declared_tasks(engine)) == ["other"]


@pytest.mark.parametrize(
    "value",
    [
        b'{"overrides": {"timeout_ms": -1}}',
        b'{"overrides": {"max_attempts": 1e300}}',
        b'{"priority": 1000000}',
        b'{"queue": "a b"}',
        b'{"expires_ms": -5}',
        b'{"overrides": {"backoff": {"kind": "weird"}}}',
        b"[" * 100_000,
        b"null",
        b"\xff",
    ],
)
async def test_a_hostile_record_is_passed_by(engine: MemoryEngine, value: bytes) -> None:
    await engine.save([Record(kind="task", key="bad", value=value)])
    await save_declared(engine, {"slow": SLOW})
    assert await declared_tasks(engine) == {"slow": SLOW}
    await save_declared(engine, {"bad": SLOW})
    assert await declared_tasks(engine) == {"bad": SLOW, "slow": SLOW}


def made(line: str, flags: JobLine | None = None, **stored: str) -> NewJob:
    settings = Settings({name.replace("_", "-"): text for name, text in stored.items()}, {})
    return make_job(read_line(line), job_defaults(flags or JobLine(), settings, {"slow": SLOW}))


def test_declared_options_apply_unless_the_job_says_otherwise() -> None:
    job = made('{"task": "slow"}')
    assert (job.queue, job.priority, job.expires_ms, job.overrides) == (
        *("slow", 3, 60_000),
        SLOW.overrides,
    )
    assert made('{"task": "other"}').overrides == Overrides()
    assert made('{"command": "true"}', JobLine()).overrides == Overrides()


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        ({"queue": "mine"}, "queue", "mine"),
        ({"priority": 0}, "priority", 0),
        ({"timeout": "9s"}, "timeout_ms", 9_000),
        ({"max_attempts": 7}, "max_attempts", 7),
        ({"max_retries": 7}, "max_attempts", 8),
        ({"to": "w"}, "queue", "worker.w"),
    ],
)
def test_explicit_values_win(line: dict[str, Any], field: str, value: Any) -> None:
    by_key = made(json.dumps({"task": "slow", **line}))
    by_flag = made('{"task": "slow"}', JobLine(**line))
    for job in (by_key, by_flag):
        found = getattr(job, field) if hasattr(job, field) else getattr(job.overrides, field)
        assert found == value
        assert job.overrides.max_crashes == 2


def test_the_code_goes_before_stored_settings() -> None:
    assert made('{"task": "slow"}', max_retries="9").overrides.max_attempts == 1
    assert made('{"task": "other"}', max_retries="9").overrides.max_attempts == 10
    assert made("{}", JobLine(task="slow"), job_timeout="9s").overrides.timeout_ms == 500


async def test_a_token_for_some_queues_publishes_nothing(engine: MemoryEngine) -> None:
    """It could send other producers' jobs to its own queue."""
    guarded = AuthorizedEngine(engine, caller("consume", prefix="mine."))
    with pytest.raises(Forbidden):
        await save_declared(guarded, {"slow": TaskRecord(queue="mine.a")})
    assert await declared_tasks(guarded) == {}
    await save_declared(AuthorizedEngine(engine, caller("consume")), {"slow": SLOW})
    assert await declared_tasks(AuthorizedEngine(engine, caller("produce"))) == {"slow": SLOW}
