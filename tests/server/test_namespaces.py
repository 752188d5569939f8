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

from holdfast.engines.base import Engine
from holdfast.engines.memory import MemoryEngine
from holdfast.engines.sqlite import SQLiteEngine
from holdfast.engines.verbs import VERBS
from holdfast.server.operations import Operation
from holdfast.server.settings import ServerSettings
from holdfast.testing.clock import ManualClock
from holdfast.testing.contract.making import case
from tests.engines.kept import Kept
from tests.server.house import ALL, GUARDED, House, Reply, house, name_of
from tests.server.worlds import World, everything, example, try_out, world

A, B = "zzAAzz", "zzBBzz"
SETTINGS = ServerSettings(auth=True, namespaces=("a", "b"))
NAMES = ("default", "a", "b")
SCOPES = ("admin", "run-commands")

Stores = Callable[[], dict[str, Any]]


@pytest.fixture(scope="module")
async def kept() -> AsyncIterator[Kept]:
    """Asynchronous, so that all tests of a module share the event loop of its connections."""
    with Kept() as kept:
        yield kept


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def stores(request: pytest.FixtureRequest) -> Stores:
    """New ones by namespace, all in one file or database."""
    if request.param == "sqlite":
        folder: Path = request.getfixturevalue("quick_path")
        return lambda: in_file(folder / f"{uuid4().hex}.db")
    if request.param == "postgres":
        dsn: str = request.getfixturevalue("shared_pg_dsn")
        kept: Kept = request.getfixturevalue("kept")
        return lambda: in_database(dsn, kept, uuid4().hex)
    return in_memory


def in_memory() -> dict[str, Any]:
    # What stands still is the same however often one looks.
    return {name: MemoryEngine(clock=ManualClock()) for name in NAMES}


def in_file(file: Path) -> dict[str, Any]:
    clock = ManualClock()
    return {name: SQLiteEngine(file, namespace=name, clock=clock) for name in NAMES}


def in_database(dsn: str, kept: Kept, own: str) -> dict[str, Any]:
    clock = ManualClock()
    return {name: kept.engine(dsn, namespace=f"{name}-{own}", clock=clock) for name in NAMES}


class Two:
    """`a` and `b` have the same names in them; `b` also has some of its own."""

    def __init__(self, at: House) -> None:
        self.at = at
        self.worlds: dict[str, World] = {}
        self.tokens: dict[str, str] = {}

    async def fill(self) -> None:
        for name, named in (("a", "of-a"), ("b", "of-b"), ("*", "of-all")):
            self.tokens[name] = await self.at.token(*SCOPES, name=named, namespace=name)
        for name in ("a", "b"):
            await self.at.server.namespaces.get(name)
            named = "token" if name == "a" else "token-b"
            await self.at.token("produce", name=named, namespace=name)
        engine = self.at.engine("b")
        self.worlds["own"] = await world(engine, B, own="-b", queue="own")
        self.worlds["b"] = await world(engine, B)
        self.worlds["a"] = await world(self.at.engine("a"), A)

    async def ask(self, operation: Operation, of: str = "a", **more: Any) -> Reply:
        """About what is in that world, in a if nothing else is said; of b nothing is heard."""
        asked = example(operation, self.worlds[of], queue="own" if of == "own" else "default")
        reply = await try_out(self.at, operation, asked, **{"token": self.tokens["a"]} | more)
        assert reply.status < 500, reply.body
        assert B.encode() not in reply.body
        return reply

    async def rest(self) -> tuple[Any, Any]:
        """All that is not a's."""
        default = await everything(self.at.engine("default"))
        default["records"].pop("token")
        return await everything(self.at.engine("b")), default


@asynccontextmanager
async def two(stores: Stores, settings: ServerSettings = SETTINGS) -> AsyncIterator[Two]:
    async with house(settings, **stores()) as at:
        both = Two(at)
        await both.fill()
        yield both


async def on_each(
    operations: Iterable[Operation], stores: Stores, ask: Callable[..., Awaitable[Reply]]
) -> None:
    """Each does its work: where those before have used up what it is about, it gets two new
    namespaces, and in memory always. What is not a's stays as it was."""
    left = list(operations)
    while left:
        async with two(stores) as both:
            before = await both.rest()
            done: list[str] = []
            while left and not (done and stores is in_memory):
                with case(name_of(left[0]), done):
                    reply = await ask(both, left[0])
                    if reply.status >= 400 and done:
                        break
                    assert reply.status < 400, reply.body
                done.append(name_of(left.pop(0)))
            with case(done):
                assert await both.rest() == before


async def test_what_is_asked_in_one_stays_in_one(stores: Stores) -> None:
    """The same names are in both; every operation does its work in a, and b is as it was."""
    await on_each(ALL, stores, Two.ask)


async def test_what_is_only_in_the_other_is_not_there(stores: Stores) -> None:
    """Asked in a for what only b has, with the tokens of b's leases: nothing is found."""
    async with two(stores) as both:
        before = await both.rest()
        for operation in ALL:
            with case(name_of(operation)):
                await both.ask(operation, "own")
                assert stores is not in_memory or await both.rest() == before
        assert await both.rest() == before


async def test_a_token_of_one_does_not_open_the_other() -> None:
    async with two(in_memory) as both:
        before = await both.rest()
        for operation in GUARDED:
            for name in ("b", "default", "*", "c", "", "a b"):
                with case(name_of(operation), name):
                    reply = await both.ask(operation, "b", holdfast_namespace=name)
                    assert (reply.status, reply.code) == (403, "forbidden")
        assert await both.rest() == before


async def test_a_token_for_all_is_in_the_one_it_names() -> None:
    async def ask(both: Two, operation: Operation) -> Reply:
        token = both.tokens["*"]
        reply = await both.ask(operation, token=token, holdfast_namespace="c")
        assert (reply.status, reply.code) == (403, "forbidden")
        return await both.ask(operation, token=token, holdfast_namespace="a")

    await on_each(GUARDED, in_memory, ask)


async def test_an_open_server_serves_the_namespaces_it_was_told_of() -> None:
    async with two(in_memory, ServerSettings(namespaces=("a",))) as both:
        before = await both.rest()
        for operation in GUARDED:
            with case(name_of(operation)):
                reply = await both.ask(operation, "b", token=None, holdfast_namespace="b")
                assert (reply.status, reply.code) == (403, "forbidden")
                await both.ask(operation, "b", token=None, holdfast_namespace="a")
                assert await both.rest() == before


async def test_whatever_many_requests_do_in_one_the_other_is_as_it_was(stores: Stores) -> None:
    """In any order, about what is there and what is not, also with what the ones before left."""
    given = os.environ.get("HOLDFAST_SEED")
    seed = random.randrange(2**32) if given is None else int(given)
    again = f"HOLDFAST_SEED={seed} ./hf test tests/server/test_namespaces.py -k many_requests"
    print(f"again: {again}")
    dice = random.Random(seed)
    async with two(stores) as both:
        before = await both.rest()
        for _ in range(300):
            operation = dice.choice(ALL)
            with case(name_of(operation), again):
                await both.ask(operation, dice.choice(("a", "b", "own")))
        assert await both.rest() == before, again


class Stuck:
    """An engine that answers nobody while it is stuck."""

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


async def test_one_that_takes_all_it_can_leaves_room_for_the_other(stores: Stores) -> None:
    """More requests of a than the server has room for hang in a store that does not answer."""
    few = ServerSettings(
        auth=True, namespaces=("a", "b"), requests_max=6, waiters_max=6, streams_max=6
    )
    left = list(ALL)
    while left:
        made = stores()
        made["a"] = stuck = Stuck(made["a"])
        async with two(lambda made=made: made, few) as both:  # type: ignore[misc]
            done: list[str] = []
            while left:
                with case(name_of(left[0]), done):
                    reply = await ask_beside(both, stuck, left[0])
                    if reply.status in (404, 409, 422) and done:
                        break
                    assert reply.status < 400, reply.body
                done.append(name_of(left.pop(0)))


async def ask_beside(both: Two, stuck: Stuck, operation: Operation) -> Reply:
    """In b, for what it has, while many ask the same in a."""
    stuck.free.clear()
    hanging = [asyncio.create_task(both.ask(operation)) for _ in range(12)]
    under_way = both.at.application.pressure._timed
    for _ in range(100):
        await asyncio.sleep(0)
    # Who they are is read in another thread, or over there: until then they are nobody's.
    while any(each.namespace is None for each in under_way):  # noqa: ASYNC110 (nobody is told)
        await asyncio.sleep(0.001)
    asked = example(operation, both.worlds["own"], queue="own")
    reply = await try_out(both.at, operation, asked, token=both.tokens["b"])
    stuck.free.set()
    for task in hanging:
        task.cancel()
    await asyncio.wait(hanging)
    return reply
