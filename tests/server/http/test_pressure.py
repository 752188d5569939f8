"""A server bounds its work, and no caller gets all of it."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec import Struct

from holdfast.app.application import Holdfast
from holdfast.engines.memory import MemoryEngine
from holdfast.server.access.admission import ApiCall
from holdfast.server.application import AsgiApplication
from holdfast.server.http.operation import Operation, Scope, operation
from holdfast.server.settings import ServerSettings
from holdfast.server.state import ServerState
from tests.server.asgi_client import AsgiClient, AsgiResponse


class Body(Struct):
    text: str = ""


class Held:
    """Operations of each kind that go on until they are let go."""

    def __init__(self) -> None:
        self.let_go = asyncio.Event()
        self.begun = 0
        self.more = asyncio.Condition()

        async def hold() -> None:
            async with self.more:
                self.begun += 1
                self.more.notify_all()
            await self.let_go.wait()

        @operation("POST", "/v1/request", needs=Scope.OPERATE, repeatable=True)
        async def request(call: ApiCall, body: Body) -> int:
            await hold()
            return 1

        @operation("POST", "/v1/wait", needs=Scope.OPERATE, waits=True, repeatable=True)
        async def wait(call: ApiCall) -> int:
            await hold()
            return 1

        @operation("GET", "/v1/stream", needs=Scope.OPERATE, streams=True)
        async def stream(call: ApiCall) -> AsyncIterator[bytes]:
            yield b": hello\n\n"
            await hold()

        @operation("GET", "/v1/open", needs=None)
        async def is_open(call: ApiCall) -> int:
            return 1

        self.operations: tuple[Operation, ...] = (request, wait, stream, is_open)

    async def reached(self, count: int) -> None:
        async with self.more:
            await self.more.wait_for(lambda: self.begun >= count)


class Scene:
    def __init__(self, **settings: Any) -> None:
        self.held = Held()
        server = ServerState(
            app=Holdfast(engine=MemoryEngine()),
            settings=ServerSettings(namespaces=("other",), **settings),
            make=lambda _name: Holdfast(engine=MemoryEngine()),
        )
        self.application = AsgiApplication(server, self.held.operations)
        self.pressure = self.application.pressure

    async def ask(self, path: str, *, namespace: str = "default", body: Any = None) -> AsgiResponse:
        method = "GET" if path in ("/v1/stream", "/v1/open") else "POST"
        headers = {"holdfast-namespace": namespace}
        return await AsgiClient(self.application).ask(method, path, body, headers=headers)

    async def fill(self, path: str, count: int, **how: Any) -> list[asyncio.Task[AsgiResponse]]:
        before = self.held.begun
        asking = [asyncio.create_task(self.ask(path, **how)) for _ in range(count)]
        await self.held.reached(before + count)
        return asking


@pytest.mark.parametrize("path", ["/v1/request", "/v1/wait", "/v1/stream"])
async def test_a_namespace_gets_half_and_the_other_its_own(path: str) -> None:
    scene = Scene(requests_max=4, waiters_max=4, streams_max=4)
    mine = await scene.fill(path, 2)
    refused = await scene.ask(path)
    assert (refused.status, refused.code) == (503, "overloaded")
    assert int(refused.headers["retry-after"]) >= 1
    theirs = await scene.fill(path, 2, namespace="other")
    # All requests are in use; operations without a scope are still answered.
    assert (await scene.ask(path, namespace="other")).code == "overloaded"
    assert (await scene.ask("/v1/open")).status == 200
    scene.held.let_go.set()
    assert {said.status for said in await asyncio.gather(*mine, *theirs)} == {200}
    assert (await scene.ask(path)).status == 200
    assert set(scene.pressure.under_way().values()) == {0}


async def test_waits_and_streams_take_nothing_from_requests() -> None:
    scene = Scene(requests_max=2, waiters_max=2, streams_max=2)
    asking = await scene.fill("/v1/wait", 1)
    asking += await scene.fill("/v1/stream", 1)
    asking += await scene.fill("/v1/request", 1)
    assert (await scene.ask("/v1/request")).code == "overloaded"
    scene.held.let_go.set()
    await asyncio.gather(*asking)


async def test_bodies_are_held_within_bounds() -> None:
    scene = Scene(held_bytes_max=400_000, body_max=400_000)
    large = {"text": "x" * 150_000}
    parts = [b'{"text":"' + b"x" * 75_000, b"x" * 75_000 + b'"}']
    headers = {"content-type": "application/json"}

    async def ask() -> AsgiResponse:
        client = AsgiClient(scene.application)
        return await client.ask("POST", "/v1/request", b"", parts=list(parts), headers=headers)

    first = asyncio.create_task(ask())
    await scene.held.reached(1)
    assert (await ask()).code == "overloaded"
    # One that is small is still taken.
    asking = await scene.fill("/v1/request", 1)
    scene.held.let_go.set()
    await asyncio.gather(first, *asking)
    assert (await ask()).status == 200
    assert (await scene.ask("/v1/request", body=large)).status == 200


SLOW = b'{"text":"'
"""A body that never ends."""


async def ask_slowly(
    scene: Scene, client: AsgiClient, begin: bytes = SLOW
) -> asyncio.Task[AsgiResponse]:
    headers = {"content-type": "application/json"}
    before = scene.pressure.under_way()["unfinished bodies"]
    asking = client.ask("POST", "/v1/request", b"", parts=[begin, None], headers=headers)
    task = asyncio.create_task(asking)
    for _ in range(100):
        await asyncio.sleep(0)
    assert scene.pressure.under_way()["unfinished bodies"] in (before, before + 1)
    return task


async def test_unfinished_bodies_hold_no_slot() -> None:
    scene = Scene(requests_max=4)
    client = AsgiClient(scene.application)
    slow = [await ask_slowly(scene, client) for _ in range(300)]
    assert scene.pressure.under_way() == {
        **dict.fromkeys(scene.pressure.under_way(), 0),
        "unfinished bodies": 300,
    }
    asking = await scene.fill("/v1/request", 2)
    assert (await scene.ask("/v1/request")).code == "overloaded"
    scene.held.let_go.set()
    assert {said.status for said in await asyncio.gather(*asking)} == {200}
    client.left.set()
    await asyncio.gather(*slow)
    assert set(scene.pressure.under_way().values()) == {0}


async def test_the_oldest_unfinished_body_gives_way() -> None:
    scene = Scene(bodies_max=4)
    client = AsgiClient(scene.application)
    slow = [await ask_slowly(scene, client) for _ in range(3)]
    # One namespace gets at most half of them.
    said = await slow[0]
    assert (said.status, said.code) == (408, "slow_request")
    scene.held.let_go.set()
    assert (await scene.ask("/v1/request")).status == 200
    client.left.set()
    await asyncio.gather(*slow)
    assert set(scene.pressure.under_way().values()) == {0}


async def test_unfinished_bodies_keep_no_memory_from_complete_ones() -> None:
    scene = Scene(held_bytes_max=400_000)
    client = AsgiClient(scene.application)
    scene.held.let_go.set()
    slow = [await ask_slowly(scene, client, SLOW + b"x" * 60_000) for _ in range(3)]
    # Each is small enough to be free of charge if it were complete: an unfinished one never is.
    assert (await scene.ask("/v1/request", body={"text": "x" * 150_000})).status == 200
    assert {said.code for said in await asyncio.gather(*slow)} == {"slow_request"}
    too_large = [await ask_slowly(scene, client, SLOW + b"x" * 250_000)]
    assert (await too_large[0]).code == "overloaded"
    assert set(scene.pressure.under_way().values()) == {0}


async def test_a_loop_that_is_behind_takes_no_more() -> None:
    scene = Scene(lag_ms_max=500)
    asking = await scene.fill("/v1/request", 15)
    scene.pressure.lag_s = 0.6
    # So few do not make a loop slow.
    asking += await scene.fill("/v1/request", 1)
    scene.pressure.lag_s = 0.6
    assert (await scene.ask("/v1/request")).code == "overloaded"
    scene.pressure.lag_s = 0.4
    asking += await scene.fill("/v1/request", 1)
    scene.held.let_go.set()
    await asyncio.gather(*asking)


async def test_the_lag_of_the_loop_is_seen() -> None:
    scene = Scene()
    asking = await scene.fill("/v1/request", 1)
    # The loop does nothing else until well after the next tick was due.
    time.sleep(0.3)
    # The tick runs after the first of these, and no second tick before the check.
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert scene.pressure.lag_s > 0.1
    scene.held.let_go.set()
    await asyncio.gather(*asking)


async def test_room_is_given_back_however_a_request_ends() -> None:
    scene = Scene(requests_max=2, request_ms_max=1)
    for _ in range(3):
        assert (await scene.ask("/v1/request")).code == "outcome_unknown"
    assert (await scene.ask("/v1/request", body=b"{")).status == 400
    asking = asyncio.create_task(scene.ask("/v1/wait"))
    await scene.held.reached(4)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert set(scene.pressure.under_way().values()) == {0}
