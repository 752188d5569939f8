"""The namespaces of a server: each is opened once, on first use, up to a bound."""

import asyncio
from pathlib import Path

import pytest

from holdfast.app.application import Holdfast
from holdfast.engines.memory import MemoryEngine
from holdfast.errors import ConfigError, EngineClosed, EngineUnavailable, Overloaded
from holdfast.server.state import Namespaces


def made(name: str) -> Holdfast:
    return Holdfast(engine=MemoryEngine())


async def test_concurrent_requests_open_a_namespace_once() -> None:
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


async def test_open_namespaces_are_bounded() -> None:
    async with made("default") as app:
        namespaces = Namespaces(app, made, open_max=3)
        await namespaces.get("x")
        await namespaces.get("y")
        with pytest.raises(Overloaded):
            await namespaces.get("z")
        assert await namespaces.get("x") is not app
        await namespaces.close()


async def test_a_failed_open_is_tried_again() -> None:
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


async def test_a_file_holds_several_namespaces(tmp_path: Path) -> None:
    async with Holdfast(f"sqlite:///{tmp_path}/q.db") as app:
        namespaces = Namespaces(app)
        one, other = await namespaces.get("one"), await namespaces.get("other")
        await one.enqueue("t", id="j")
        assert await other.get("j") is None
        assert await app.get("j") is None
        assert (await one.get("j")) is not None
        await namespaces.close()
