"""A server whose application counts what it does, and flushes when the test says so."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2

from holdfast.app import Holdfast
from holdfast.core.model import LeaseRequest
from holdfast.core.verdict import Complete, Settlement, Verdict
from holdfast.engines.base import Engine
from holdfast.server.application import application
from holdfast.server.feed import Feed, feed_of
from holdfast.server.seeing import Seen, seen_of
from holdfast.server.settings import ServerSettings
from holdfast.server.state import Server
from holdfast.telemetry.flushing import Flusher
from holdfast.telemetry.meter import Meter
from holdfast.upkeep import wall_ms
from tests.server.asking import client_of
from tests.server.serving import Hall


class Counting:
    """`client` asks the server; `feed` is looked at by hand."""

    def __init__(self, server: Server, client: httpx2.AsyncClient) -> None:
        self.server = server
        self.app = server.app
        self.client = client
        self.meter = server.app.telemetry.meter
        self.app.listeners.add(self.meter.hear)
        self.flusher = Flusher(self.app.engine, self.meter, "server", wall_ms)

    @property
    def seen(self) -> Seen:
        return seen_of(self.app)

    @property
    def feed(self) -> Feed:
        return feed_of(self.app)

    async def work(
        self, count: int, verdict: Verdict | None = None, queue: str = "default"
    ) -> None:
        """Jobs put in, leased and settled, and what that counted flushed."""
        await self.app.enqueue_many(self.app.job("t", n, queue=queue) for n in range(count))
        leases = await self.app.engine.lease(LeaseRequest(queues=(queue,), limit=count))
        await self.app.engine.settle(
            [Settlement(lease=lease, verdict=verdict or Complete()) for lease in leases]
        )
        await self.flusher.flush()

    def restart(self) -> None:
        """The process goes on as another would: nothing it counted is with it any more."""
        self.app.listeners.remove(self.meter.hear)
        self.meter = Meter(wall_ms)
        self.app.listeners.add(self.meter.hear)
        self.flusher = Flusher(self.app.engine, self.meter, "server", wall_ms)


@asynccontextmanager
async def counting(
    store: Engine, settings: ServerSettings | None = None
) -> AsyncIterator[Counting]:
    app = Holdfast(engine=store)
    server = Server(app=app, settings=settings or ServerSettings())
    # Looked at anew each time, and by nobody but the test.
    seen_of(app).age_s_max = 0
    feed_of(app).poll_s = None
    hall = Hall()
    hall.alone = application(server)
    async with (
        app,
        hall.running(),
        client_of(hall.place) as client,
    ):
        yield Counting(server, client)
        server.stopping.set()
