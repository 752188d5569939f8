"""A store under test: an open engine on a manual clock, and ways to meet the same store again.

Made from one function that builds an engine which is not yet open. Everything it opened, it
closes; it never sleeps and never looks inside an engine.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self

from holdfast.engines.base import Engine
from holdfast.engines.memory import MemoryEngine
from holdfast.testing.clock import ManualClock
from holdfast.testing.twin import Twin

MakeEngine = Callable[[ManualClock], Engine]


class Harness:
    """Use it as an async context manager; `engine` is open inside.

    `can_jump` says that leases do not notice when somebody sets the wall clock. An engine that has
    no clock but the wall's, as one on a server's clock in tests, passes False.
    """

    def __init__(self, make: MakeEngine, *, can_jump: bool = True) -> None:
        self.clock = ManualClock()
        self.can_jump = can_jump
        self.engine = make(self.clock)
        self.engines: list[Engine] = []
        """All that are open on the store; more than one after `another` or `abandon`."""
        self._make = make

    async def __aenter__(self) -> Self:
        await self._open(self.engine)
        return self

    async def __aexit__(
        self,
        type_: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for engine in reversed(self.engines):
            await engine.close()

    async def twin(self) -> Twin:
        """The engine and the reference as one: what goes in goes to both, answers must agree."""
        reference = MemoryEngine(clock=self.clock)
        await reference.open()
        return Twin(self.engine, reference)

    async def another(self) -> Engine | None:
        """A second engine on the same store, as another process has; None if it is not shared."""
        if not self.engine.traits.shared:
            return None
        return await self._open(self._make(self.clock))

    async def restart(self) -> Engine:
        """Close the engine and open a new one on the same store."""
        assert self.engine.traits.durable, "only a durable store outlives its engine"
        await self.engine.close()
        self.engines.remove(self.engine)
        return await self.abandon()

    async def abandon(self) -> Engine:
        """Open a new engine on the same store and leave the old one open, as a frozen process."""
        assert self.engine.traits.durable, "only a durable store outlives its engine"
        self.engine = await self._open(self._make(self.clock))
        return self.engine

    async def _open(self, engine: Engine) -> Engine:
        self.engines.append(engine)
        await engine.open()
        return engine
