"""Two namespaces on one server can neither see, change nor starve each other, on any route."""

import asyncio
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.app import Holdfast
from holdfast.engines.memory import MemoryEngine
from holdfast.engines.sqlite import SQLiteEngine
from holdfast.engines.verbs import VERBS
from holdfast.errors import ConfigError, EngineClosed, EngineUnavailable, Overloaded
from holdfast.server.namespaces import Namespaces
from holdfast.server.operations import Operation
from holdfast.server.settings import ServerSettings
from holdfast.testing.clock import ManualClock
from tests.server.house import ALL, GUARDED, House, house, name_of
from tests.server.worlds import World, everything, example, try_out, world

A, B = "zzAAzz", "zzBBzz"
SETTINGS = ServerSettings(auth=True, namespaces=("a", "b"))


class Two:
    """`a` and `b` have the same names in them; `b` also has some of its own."""

    def __init__(self, at: House, token: str) -> None:
        self.at = at
        self.token = token
        self.worlds: dict[str, World] = {}

    async def fill(self) -> None:
        for name in ("a", "b"):
            await self.at.server.namespaces.get(name)
            named = "token" if name == "a" else "token-b"
            await self.at.token("produce", name=named, namespace=name)
        engine = self.at.engine("b")
        self.worlds["own"] = await world(engine, B, own="-b", queue="own")
        self.worlds["b"] = await world(engine, B)
        self.worlds["a"] = await world(self.at.engine("a"), A)

    async def rest(self) -> tuple[Any, Any]:
        """All that is not a's."""
        default = await everything(self.at.engine("default"))
        default["records"].pop("token")
        return await everything(self.at.engine("b")), default


@asynccontextmanager
async def two(settings: ServerSettings = SETTINGS, **engines: Any) -> AsyncIterator[Two]:
    # What stands still is the same however often one looks.
    still = {name: MemoryEngine(clock=ManualClock()) for name in ("a", "b")}
    async with house(settings, **(still | engines)) as at:
        token = await at.token("admin", "run-commands", name="a", namespace="a")
        both = Two(at, token)
        await both.fill()
        yield both


@pytest.mark.parametrize("operation", ALL, ids=name_of)
async def test_what_is_asked_in_one_stays_in_one(operation: Operation) -> None:
    """The same names are in both; every operation does its work in a, and b is as it was."""
    async with two() as both:
        before = await both.rest()
        asked = example(operation, both.worlds["a"])
        reply = await try_out(both.at, operation, asked, token=both.token)
        assert reply.status < 400, reply.body
        assert B.encode() not in reply.body
        assert await both.rest() == before


@pytest.mark.parametrize("operation", ALL, ids=name_of)
async def test_what_is_only_in_the_other_is_not_there(operation: Operation) -> None:
    """Asked in a for what only b has, with the tokens of b's leases: nothing is found."""
    async with two() as both:
        before = await both.rest()
        asked = example(operation, both.worlds["own"], queue="own")
        reply = await try_out(both.at, operation, asked, token=both.token)
        assert reply.status < 500, reply.body
        assert B.encode() not in reply.body
        assert await both.rest() == before


@pytest.mark.parametrize("operation", GUARDED, ids=name_of)
async def test_a_token_of_one_does_not_open_the_other(operation: Operation) -> None:
    async with two() as both:
        before = await both.rest()
        asked = example(operation, both.worlds["b"])
        for name in ("b", "default", "*", "c", "", "a b"):
            reply = await try_out(
                both.at, operation, asked, token=both.token, holdfast_namespace=name
            )
            assert (reply.status, reply.code) == (403, "forbidden"), name
        assert await both.rest() == before


@pytest.mark.parametrize("operation", GUARDED, ids=name_of)
async def test_a_token_for_all_is_in_the_one_it_names(operation: Operation) -> None:
    async with two() as both:
        token = await both.at.token("admin", "run-commands", name="all", namespace="*")
        before = await both.rest()
        asked = example(operation, both.worlds["a"])
        reply = await try_out(both.at, operation, asked, token=token, holdfast_namespace="a")
        assert reply.status < 400, reply.body
        assert B.encode() not in reply.body
        assert await both.rest() == before
        reply = await try_out(both.at, operation, asked, token=token, holdfast_namespace="c")
        assert (reply.status, reply.code) == (403, "forbidden")


@pytest.mark.parametrize("operation", GUARDED, ids=name_of)
async def test_an_open_server_serves_the_namespaces_it_was_told_of(operation: Operation) -> None:
    async with two(ServerSettings(namespaces=("a",))) as both:
        before = await both.rest()
        asked = example(operation, both.worlds["b"])
        reply = await try_out(both.at, operation, asked, holdfast_namespace="b")
        assert (reply.status, reply.code) == (403, "forbidden")
        reply = await try_out(both.at, operation, asked, holdfast_namespace="a")
        assert B.encode() not in reply.body
        assert await both.rest() == before


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_whatever_many_requests_do_in_one_the_other_is_as_it_was(
    kind: str, tmp_path: Path
) -> None:
    """In any order, about what is there and what is not, also with what the ones before left."""
    given = os.environ.get("HOLDFAST_SEED")
    seed = random.randrange(2**32) if given is None else int(given)
    again = f"HOLDFAST_SEED={seed} ./hf test tests/server/test_namespaces.py -k many_requests"
    print(f"again: {again}")
    dice = random.Random(seed)
    names = ("a", "b", "default") if kind == "sqlite" else ()
    file = str(tmp_path / "jobs.db")
    clock = ManualClock()
    engines: dict[str, Any] = {
        name: SQLiteEngine(file, namespace=name, clock=clock) for name in names
    }
    async with two(SETTINGS, **engines) as both:
        before = await both.rest()
        for _ in range(300):
            operation = dice.choice(ALL)
            of, queue = dice.choice([("a", "default"), ("b", "default"), ("own", "own")])
            asked = example(operation, both.worlds[of], queue=queue)
            reply = await try_out(both.at, operation, asked, token=both.token)
            assert reply.status < 500, (name_of(operation), reply.body, again)
            assert B.encode() not in reply.body, (name_of(operation), again)
        assert await both.rest() == before, again


class Stuck(MemoryEngine):
    """While it is stuck it answers nobody."""

    def __init__(self) -> None:
        super().__init__()
        self._free = asyncio.Event()
        self._free.set()

    def stick(self) -> None:
        self._free.clear()

    def come_free(self) -> None:
        self._free.set()

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in VERBS:
            return found

        async def wait(*given: Any, **more: Any) -> Any:
            await self._free.wait()
            return await found(*given, **more)

        return wait


@pytest.mark.parametrize("operation", ALL, ids=name_of)
async def test_one_that_takes_all_it_can_leaves_room_for_the_other(operation: Operation) -> None:
    """More requests of a than the server has room for hang in a store that does not answer."""
    few = ServerSettings(
        auth=True, namespaces=("a", "b"), requests_max=6, waiters_max=6, streams_max=6
    )
    engine = Stuck()
    async with two(few, a=engine) as both:
        at = both.at
        token = await at.token("admin", "run-commands", name="bb", namespace="b")
        engine.stick()
        asked = example(operation, both.worlds["a"])
        hanging = [
            asyncio.create_task(try_out(at, operation, asked, token=both.token)) for _ in range(12)
        ]
        for _ in range(100):
            await asyncio.sleep(0)
        asked = example(operation, both.worlds["own"], queue="own")
        reply = await try_out(at, operation, asked, token=token)
        assert reply.status < 400, reply.body
        engine.come_free()
        for task in hanging:
            task.cancel()
        await asyncio.wait(hanging)


def made(name: str) -> Holdfast:
    return Holdfast(engine=MemoryEngine())


async def test_one_that_is_opened_by_many_is_opened_once() -> None:
    opened: list[str] = []
    async with made("default") as app:
        namespaces = Namespaces(app, made)
        namespaces.opened.append(lambda name, _: opened.append(name))
        found = await asyncio.gather(*(namespaces.get("x") for _ in range(20)))
        assert len({id(each) for each in found}) == 1
        assert opened == ["x"]
        assert await namespaces.get("default") is app
        await namespaces.close()
        with pytest.raises(EngineClosed):
            await found[0].queues()
        assert await app.queues()
        with pytest.raises(EngineClosed):
            await namespaces.get("y")


async def test_no_more_are_open_than_were_allowed() -> None:
    async with made("default") as app:
        namespaces = Namespaces(app, made, most=3)
        await namespaces.get("x")
        await namespaces.get("y")
        with pytest.raises(Overloaded):
            await namespaces.get("z")
        assert await namespaces.get("x") is not app
        await namespaces.close()


async def test_one_that_cannot_be_opened_is_tried_again() -> None:
    class Failing(MemoryEngine):
        failures = 1

        async def open(self) -> None:
            if Failing.failures:
                Failing.failures -= 1
                raise EngineUnavailable("away")
            await super().open()

    async with made("default") as app:
        namespaces = Namespaces(app, lambda _: Holdfast(engine=Failing()))
        answers = await asyncio.gather(
            *(namespaces.get("x") for _ in range(3)), return_exceptions=True
        )
        assert all(isinstance(each, EngineUnavailable) for each in answers)
        assert await namespaces.get("x") is not app
        await namespaces.close()


async def test_an_engine_without_a_url_has_one_namespace() -> None:
    async with made("default") as app:
        namespaces = Namespaces(app)
        with pytest.raises(ConfigError):
            await namespaces.get("x")


async def test_a_file_has_as_many_as_are_asked_for(tmp_path: Path) -> None:
    async with Holdfast(f"sqlite:///{tmp_path}/q.db") as app:
        namespaces = Namespaces(app)
        one, other = await namespaces.get("one"), await namespaces.get("other")
        await one.enqueue("t", id="j")
        assert await other.get("j") is None
        assert await app.get("j") is None
        assert (await one.get("j")) is not None
        await namespaces.close()
