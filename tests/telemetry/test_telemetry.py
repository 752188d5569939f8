"""A process counts and flushes while it runs, once, and not for other processes."""

import asyncio
from collections.abc import Sequence

import pytest

from holdfast import telemetry
from holdfast.app.application import Holdfast
from holdfast.core.model import Record
from holdfast.engines.base import Engine, Saved
from holdfast.engines.memory import MemoryEngine
from holdfast.errors import EngineUnavailable, Forbidden
from holdfast.telemetry.accounts import ACCOUNT_KIND, ACCOUNTS, Account
from tests.telemetry.faulty_saves import count_of, fleet_of


class Heard(MemoryEngine):
    """Signals when counts were written, or raises `error` instead."""

    def __init__(self) -> None:
        super().__init__()
        self.written = asyncio.Event()
        self.refused = asyncio.Event()
        self.error: Exception | None = None

    async def save(self, records: Sequence[Record]) -> list[Saved]:
        counts = any(record.kind == ACCOUNT_KIND for record in records)
        if counts and self.error is not None:
            self.refused.set()
            raise self.error
        answers = await super().save(records)
        if counts:
            self.written.set()
        return answers


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "FLUSH_S", 0.001)


async def accounts(engine: Engine) -> list[Account]:
    found = [ACCOUNTS.decode(record) for record in await engine.load(ACCOUNT_KIND, limit=100)]
    return [each for each in found if each is not None and each.role]


async def test_counts_are_flushed_and_closed_at_the_end() -> None:
    engine, stop = Heard(), asyncio.Event()
    async with Holdfast(engine=engine) as app:
        app.telemetry.role = "worker"
        running = [asyncio.create_task(app.telemetry.run(stop)) for _ in range(2)]
        await asyncio.sleep(0)
        await app.enqueue("t")
        await engine.written.wait()
        assert await count_of(engine, "enqueued") == 1
        await app.enqueue("t")
        stop.set()
        await asyncio.gather(*running)
        [account] = await accounts(engine)
        assert (account.role, account.closed) == ("worker", True)
        assert await count_of(engine, "enqueued") == 2
        # The listener is removed, so that calls cost nothing.
        assert not app.listeners


async def test_upkeep_counts_and_runs_the_bookkeepers() -> None:
    engine, stop = Heard(), asyncio.Event()
    async with Holdfast(engine=engine) as app:
        running = asyncio.create_task(app.upkeep().run(stop))
        while not app.listeners:  # noqa: ASYNC110 (a task begins when it does)
            await asyncio.sleep(0)
        await app.enqueue("t")
        await engine.written.wait()
        stop.set()
        await running
        assert await count_of(engine, "enqueued") == 1
        assert (await fleet_of(engine)).epoch
        for kind in ("minutes", "hours", "days"):
            assert len(await engine.load(kind, limit=10)) == 1


async def test_an_outage_is_survived() -> None:
    engine, stop = Heard(), asyncio.Event()
    async with Holdfast(engine=engine) as app:
        running = asyncio.create_task(app.telemetry.run(stop))
        await asyncio.sleep(0)
        engine.error = EngineUnavailable("away")
        await app.enqueue("t")
        await engine.refused.wait()
        engine.error = None
        await engine.written.wait()
        assert await count_of(engine, "enqueued") == 1
        stop.set()
        await running


async def test_a_bug_in_telemetry_does_not_stop_the_process(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine, stop = Heard(), asyncio.Event()
    async with Holdfast(engine=engine) as app:
        running = asyncio.create_task(app.telemetry.run(stop))
        await asyncio.sleep(0)
        engine.error = ZeroDivisionError("a fault")
        await app.enqueue("t")
        await engine.refused.wait()
        engine.error = None
        await engine.written.wait()
        stop.set()
        await running
        assert await count_of(engine, "enqueued") == 1
    assert "counts could not be written" in caplog.text


async def test_a_process_that_may_not_write_counts_stops_counting() -> None:
    engine = Heard()
    async with Holdfast(engine=engine) as app:
        running = asyncio.create_task(app.telemetry.run(asyncio.Event()))
        await asyncio.sleep(0)
        engine.error = Forbidden("not for you")
        await app.enqueue("t")
        await running


async def test_a_closed_store_ends_telemetry() -> None:
    engine = Heard()
    app = Holdfast(engine=engine)
    await app.open()
    running = asyncio.create_task(app.telemetry.run(asyncio.Event()))
    await asyncio.sleep(0)
    await app.enqueue("t")
    await app.close()
    await running


async def test_a_server_counts_for_its_clients() -> None:
    class Remote(Heard):
        async def ask(self, method: str, path: str, body: bytes = b"") -> bytes:
            raise NotImplementedError

    engine = Remote()
    async with Holdfast(engine=engine) as app:
        await app.telemetry.run(asyncio.Event())
        assert not app.listeners
        names = {service.name for service in app.upkeep().services}
        assert not names & {"bookkeeper", "roller"}
