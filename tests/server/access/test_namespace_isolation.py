"""Two namespaces on one server can neither see, change nor starve each other, on any route."""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from holdfast.conformance.contract.cases import case
from holdfast.engines.base import Engine
from holdfast.engines.memory import MemoryEngine
from holdfast.engines.sqlite import SQLiteEngine
from holdfast.engines.wire import VERBS
from holdfast.server.http.operation import Operation
from holdfast.server.settings import ServerSettings
from holdfast.testing.clock import ManualClock
from tests.engines.pg_connections import ReusedConnections
from tests.server.direct_server import (
    ALL_OPERATIONS,
    SCOPED_OPERATIONS,
    DirectReply,
    DirectServer,
    direct_server,
    operation_id,
)
from tests.server.sample_namespace import (
    SampleNamespace,
    example_request,
    fill_namespace,
    read_everything,
    send_example,
)

A, B = "zzAAzz", "zzBBzz"
SETTINGS = ServerSettings(auth=True, namespaces=("a", "b"))
NAMES = ("default", "a", "b")
SCOPES = ("admin", "run-commands")

Stores = Callable[[], dict[str, Any]]


@pytest.fixture(scope="module")
async def reused() -> AsyncIterator[ReusedConnections]:
    """Asynchronous, so that all tests of a module share the event loop of its connections."""
    with ReusedConnections() as reused:
        yield reused


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def stores(request: pytest.FixtureRequest) -> Stores:
    """New ones by namespace, all in one file or database."""
    if request.param == "sqlite":
        folder: Path = request.getfixturevalue("memory_path")
        return lambda: in_file(folder / f"{uuid4().hex}.db")
    if request.param == "postgres":
        dsn: str = request.getfixturevalue("shared_pg_dsn")
        reused: ReusedConnections = request.getfixturevalue("reused")
        return lambda: in_database(dsn, reused, uuid4().hex)
    return in_memory


def in_memory() -> dict[str, Any]:
    # An idle store reads the same every time.
    return {name: MemoryEngine(clock=ManualClock()) for name in NAMES}


def in_file(file: Path) -> dict[str, Any]:
    clock = ManualClock()
    return {name: SQLiteEngine(file, namespace=name, clock=clock) for name in NAMES}


def in_database(dsn: str, reused: ReusedConnections, own: str) -> dict[str, Any]:
    clock = ManualClock()
    return {name: reused.engine(dsn, namespace=f"{name}-{own}", clock=clock) for name in NAMES}


class Two:
    """`a` and `b` have the same names in them; `b` also has some of its own."""

    def __init__(self, at: DirectServer) -> None:
        self.at = at
        self.worlds: dict[str, SampleNamespace] = {}
        self.tokens: dict[str, str] = {}

    async def fill(self) -> None:
        for name, named in (("a", "of-a"), ("b", "of-b"), ("*", "of-all")):
            self.tokens[name] = await self.at.token(*SCOPES, name=named, namespace=name)
        for name in ("a", "b"):
            await self.at.server.namespaces.get(name)
            named = "token" if name == "a" else "token-b"
            await self.at.token("produce", name=named, namespace=name)
        engine = self.at.engine("b")
        self.worlds["own"] = await fill_namespace(engine, B, own="-b", queue="own")
        self.worlds["b"] = await fill_namespace(engine, B)
        self.worlds["a"] = await fill_namespace(self.at.engine("a"), A)

    async def ask(self, operation: Operation, of: str = "a", **more: Any) -> DirectReply:
        """Send an example request, by default in a, and check that the answer has nothing of b."""
        asked = example_request(
            operation, self.worlds[of], queue="own" if of == "own" else "default"
        )
        reply = await send_example(self.at, operation, asked, **{"token": self.tokens["a"]} | more)
        assert reply.status < 500, reply.body
        assert B.encode() not in reply.body
        return reply

    async def rest(self) -> tuple[Any, Any]:
        """All that is not a's."""
        default = await read_everything(self.at.engine("default"))
        default["records"].pop("token")
        return await read_everything(self.at.engine("b")), default


@asynccontextmanager
async def two(stores: Stores, settings: ServerSettings = SETTINGS) -> AsyncIterator[Two]:
    async with direct_server(settings, **stores()) as at:
        both = Two(at)
        await both.fill()
        yield both


async def on_each(
    operations: Iterable[Operation], stores: Stores, ask: Callable[..., Awaitable[DirectReply]]
) -> None:
    """Call each operation so that it succeeds, in two new namespaces if those before have used up
    its subject, and always in memory. Everything outside of a stays as it was."""
    left = list(operations)
    while left:
        async with two(stores) as both:
            before = await both.rest()
            done: list[str] = []
            while left and not (done and stores is in_memory):
                with case(operation_id(left[0]), done):
                    reply = await ask(both, left[0])
                    if reply.status >= 400 and done:
                        break
                    assert reply.status < 400, reply.body
                done.append(operation_id(left.pop(0)))
            with case(done):
                assert await both.rest() == before


async def test_every_operation_stays_in_its_namespace(stores: Stores) -> None:
    """The same names are in both; every operation does its work in a, and b is as it was."""
    await on_each(ALL_OPERATIONS, stores, Two.ask)


async def test_resources_of_another_namespace_do_not_exist(stores: Stores) -> None:
    """Requests in a for resources of b, with the tokens of b's leases: nothing is found."""
    async with two(stores) as both:
        before = await both.rest()
        for operation in ALL_OPERATIONS:
            with case(operation_id(operation)):
                await both.ask(operation, "own")
                assert stores is not in_memory or await both.rest() == before
        assert await both.rest() == before


async def test_a_token_is_refused_in_another_namespace() -> None:
    async with two(in_memory) as both:
        before = await both.rest()
        for operation in SCOPED_OPERATIONS:
            for name in ("b", "default", "*", "c", "", "a b"):
                with case(operation_id(operation), name):
                    reply = await both.ask(operation, "b", holdfast_namespace=name)
                    assert (reply.status, reply.code) == (403, "forbidden")
        assert await both.rest() == before


async def test_a_token_for_all_namespaces_chooses_one() -> None:
    async def ask(both: Two, operation: Operation) -> DirectReply:
        token = both.tokens["*"]
        reply = await both.ask(operation, token=token, holdfast_namespace="c")
        assert (reply.status, reply.code) == (403, "forbidden")
        return await both.ask(operation, token=token, holdfast_namespace="a")

    await on_each(SCOPED_OPERATIONS, in_memory, ask)


async def test_an_open_server_serves_its_configured_namespaces() -> None:
    async with two(in_memory, ServerSettings(namespaces=("a",))) as both:
        before = await both.rest()
        for operation in SCOPED_OPERATIONS:
            with case(operation_id(operation)):
                reply = await both.ask(operation, "b", token=None, holdfast_namespace="b")
                assert (reply.status, reply.code) == (403, "forbidden")
                await both.ask(operation, "b", token=None, holdfast_namespace="a")
                assert await both.rest() == before


async def test_random_requests_leave_other_namespaces_unchanged(stores: Stores) -> None:
    """In random order, for existing and missing resources."""
    given = os.environ.get("HOLDFAST_SEED")
    seed = random.randrange(2**32) if given is None else int(given)
    path = "tests/server/access/test_namespace_isolation.py"
    replay = f"HOLDFAST_SEED={seed} ./hf test {path} -k random_requests"
    print(f"replay: {replay}")
    dice = random.Random(seed)
    async with two(stores) as both:
        before = await both.rest()
        for _ in range(300):
            operation = dice.choice(ALL_OPERATIONS)
            with case(operation_id(operation), replay):
                await both.ask(operation, dice.choice(("a", "b", "own")))
        assert await both.rest() == before, replay


class Stuck:
    """An engine that does not answer while it is blocked."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.free = asyncio.Event()
        self.free.set()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._engine, name)
        if name not in VERBS:
            return found

        async def wait(*given: Any, **more: Any) -> Any:
            await self.free.wait()
            return await found(*given, **more)

        return wait


async def test_a_busy_namespace_leaves_room_for_others(stores: Stores) -> None:
    """More requests of a than the server has room for hang in a store that does not answer."""
    few = ServerSettings(
        auth=True, namespaces=("a", "b"), requests_max=6, waiters_max=6, streams_max=6
    )
    left = list(ALL_OPERATIONS)
    while left:
        made = stores()
        made["a"] = stuck = Stuck(made["a"])
        async with two(lambda made=made: made, few) as both:  # type: ignore[misc]
            done: list[str] = []
            while left:
                with case(operation_id(left[0]), done):
                    reply = await ask_beside(both, stuck, left[0])
                    if reply.status in (404, 409, 422) and done:
                        break
                    assert reply.status < 400, reply.body
                done.append(operation_id(left.pop(0)))


async def ask_beside(both: Two, stuck: Stuck, operation: Operation) -> DirectReply:
    """Requests in b, while many requests block in a."""
    stuck.free.clear()
    hanging = [asyncio.create_task(both.ask(operation)) for _ in range(12)]
    under_way = both.at.application.pressure._timed
    for _ in range(100):
        await asyncio.sleep(0)
    # Tokens are read in another thread: until then a request has no namespace.
    while any(each.namespace is None for each in under_way):  # noqa: ASYNC110 (no event tells)
        await asyncio.sleep(0.001)
    asked = example_request(operation, both.worlds["own"], queue="own")
    reply = await send_example(both.at, operation, asked, token=both.tokens["b"])
    stuck.free.set()
    for task in hanging:
        task.cancel()
    await asyncio.wait(hanging)
    return reply
