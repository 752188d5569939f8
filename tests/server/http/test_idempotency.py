"""An Idempotency-Key: carried out once, answered again, never carried out twice."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from msgspec import Struct
from msgspec.structs import replace

from holdfast.app.application import Holdfast
from holdfast.core.model import Record
from holdfast.engines.memory import MemoryEngine
from holdfast.errors import EngineUnavailable, OutcomeUnknown, QueueFull, UsageError
from holdfast.server.access.admission import ApiCall
from holdfast.server.application import AsgiApplication
from holdfast.server.http import idempotency
from holdfast.server.http.operation import Scope, operation
from holdfast.server.settings import ServerSettings
from holdfast.server.state import ServerState
from holdfast.testing.clock import ManualClock
from tests.server.asgi_client import AsgiClient, AsgiResponse


class Body(Struct):
    text: str = ""


class Scene:
    """An operation that counts its calls, and fails on request."""

    def __init__(self) -> None:
        self.done = 0
        self.fails: Exception | None = None
        self.gate: asyncio.Event | None = None
        self.begun = asyncio.Event()
        self.clock = ManualClock()
        self.app = Holdfast(engine=MemoryEngine(clock=self.clock))
        server = ServerState(
            app=self.app,
            settings=ServerSettings(namespaces=("other",)),
            make=lambda _name: Holdfast(engine=MemoryEngine()),
        )

        @operation("POST", "/v1/count", needs=Scope.OPERATE, status=201)
        async def count(call: ApiCall, body: Body) -> dict[str, Any]:
            self.begun.set()
            if self.gate is not None:
                await self.gate.wait()
            if self.fails is not None:
                raise self.fails
            self.done += 1
            return {"done": self.done, "text": body.text}

        @operation("POST", "/v1/wait", needs=Scope.OPERATE, waits=True)
        async def wait(call: ApiCall) -> int:
            self.begun.set()
            if self.gate is not None:
                await self.gate.wait()
            return 1

        self.application = AsgiApplication(server, (count, wait))
        self.stopping = server.stopping

    async def ask(self, key: str | None = "k", text: str = "", **headers: str) -> AsgiResponse:
        given = headers | ({"idempotency-key": key} if key is not None else {})
        client = AsgiClient(self.application)
        return await client.ask("POST", "/v1/count", {"text": text}, headers=given)

    async def records(self) -> list[Record]:
        return await self.app.engine.load(idempotency.KIND, limit=100)


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    scene = Scene()
    async with scene.app:
        yield scene


async def test_the_same_key_gets_the_same_answer(scene: Scene) -> None:
    first, second = await scene.ask(), await scene.ask()
    assert (first.status, first.json) == (201, {"done": 1, "text": ""})
    assert (second.status, second.body, second.headers) == (201, first.body, first.headers)
    assert scene.done == 1
    assert (await scene.ask("other")).json["done"] == 2
    assert (await scene.ask(None)).json["done"] == 3


async def test_the_same_key_for_another_request_is_refused(scene: Scene) -> None:
    await scene.ask(text="a")
    said = await scene.ask(text="b")
    assert (said.status, said.code, scene.done) == (422, "key_reused", 1)


async def test_keys_are_separate_by_namespace(scene: Scene) -> None:
    await scene.ask()
    said = await scene.ask(**{"holdfast-namespace": "other"})
    assert (said.status, scene.done) == (201, 2)


async def test_a_second_request_waits_for_the_first(scene: Scene) -> None:
    scene.gate = asyncio.Event()
    first = asyncio.create_task(scene.ask())
    await scene.begun.wait()
    second = await scene.ask()
    assert (second.status, second.code) == (409, "in_progress")
    assert int(second.headers["retry-after"]) >= 1
    scene.gate.set()
    assert (await first).status == 201
    assert (await scene.ask()).body == (await first).body


async def test_a_request_that_changed_nothing_can_be_repeated(scene: Scene) -> None:
    for error in (QueueFull("no"), EngineUnavailable("away")):
        scene.fails = error
        assert (await scene.ask()).status in (429, 503)
        assert not await scene.records()
    scene.fails = None
    assert (await scene.ask()).status == 201


async def test_a_refusal_is_stored(scene: Scene) -> None:
    scene.fails = UsageError("no")
    first = await scene.ask()
    scene.fails = None
    second = await scene.ask()
    assert (first.status, first.body) == (422, second.body)
    assert scene.done == 0


@pytest.mark.parametrize("error", [OutcomeUnknown("who knows"), ZeroDivisionError()])
async def test_a_request_with_unknown_outcome_is_not_repeated(
    scene: Scene, error: Exception
) -> None:
    scene.fails = error
    await scene.ask()
    scene.fails = None
    said = await scene.ask()
    assert (said.status, said.code, scene.done) == (504, "outcome_unknown", 0)


async def test_a_killed_request_is_not_repeated(scene: Scene) -> None:
    await scene.ask()
    [record] = await scene.records()
    # As another process leaves it that was killed after it began.
    begun = msgspec.msgpack.encode([msgspec.msgpack.decode(record.value or b"")[0], "another"])
    await scene.app.engine.save([replace(record, value=begun)])
    assert (await scene.ask()).code == "in_progress"
    settings = ServerSettings()
    scene.clock.advance(2 * (settings.request_ms_max + settings.wait_ms_max))
    said = await scene.ask()
    assert (said.status, said.code, scene.done) == (504, "outcome_unknown", 1)


async def test_a_cancelled_request_has_an_unknown_outcome(scene: Scene) -> None:
    scene.gate = asyncio.Event()
    first = asyncio.create_task(scene.ask())
    await scene.begun.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert (await scene.ask()).code == "outcome_unknown"


@pytest.mark.parametrize("stops", [False, True])
async def test_an_ended_wait_can_be_repeated(scene: Scene, stops: bool) -> None:
    scene.gate = asyncio.Event()
    client = AsgiClient(scene.application)
    given = {"idempotency-key": "k"}
    first = asyncio.create_task(client.ask("POST", "/v1/wait", headers=given))
    await scene.begun.wait()
    (scene.stopping if stops else client.left).set()
    assert (await first).status == (503 if stops else 0)
    assert not await scene.records()
    scene.stopping.clear()
    scene.gate = None
    assert (await AsgiClient(scene.application).ask("POST", "/v1/wait", headers=given)).json == 1


async def test_old_keys_are_deleted(scene: Scene) -> None:
    for number in range(25):
        await scene.ask(f"old{number}")
    scene.clock.advance(idempotency.RETENTION_MS + 1)
    for number in range(4):
        await scene.ask(f"new{number}")
    assert len(await scene.records()) == 4


async def test_an_answer_too_large_to_store_is_gone(scene: Scene) -> None:
    assert (await scene.ask(text="x" * 200_000)).status == 201
    said = await scene.ask(text="x" * 200_000)
    assert (said.status, said.code, scene.done) == (410, "answer_gone", 1)


@pytest.mark.parametrize("key", ["", "a b", "x" * 129, "ä"])
async def test_an_invalid_key_is_refused(scene: Scene, key: str) -> None:
    said = await scene.ask(key)
    assert (said.status, said.code) == (400, "invalid_request")
