"""A server whose counters are flushed when the test says so."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2

from holdfast.app.application import Holdfast
from holdfast.core.model import LeaseRequest
from holdfast.core.verdict import Complete, Settlement, Verdict
from holdfast.engines.base import Engine
from holdfast.process import wall_ms
from holdfast.server.application import AsgiApplication
from holdfast.server.live.feed import EventFeed, event_feed
from holdfast.server.live.metrics import SnapshotReader, snapshot_reader
from holdfast.server.live.poll_loop import poll_loop
from holdfast.server.settings import ServerSettings
from holdfast.server.state import ServerState
from holdfast.telemetry.accounts import Flusher
from holdfast.telemetry.meter import Meter
from tests.server.loop_server import LoopServer
from tests.server.rest_client import http_client


class MeteredServer:
    """`client` asks the server; `feed` is looked at by hand."""

    def __init__(self, server: ServerState, client: httpx2.AsyncClient) -> None:
        self.server = server
        self.app = server.app
        self.client = client
        self.meter = server.app.telemetry.meter
        self.app.listeners.add(self.meter.record)
        self.flusher = Flusher(self.app.engine, self.meter, "server", wall_ms)

    @property
    def seen(self) -> SnapshotReader:
        return snapshot_reader(self.app)

    @property
    def feed(self) -> EventFeed:
        return event_feed(self.app)

    async def work(
        self, count: int, verdict: Verdict | None = None, queue: str = "default"
    ) -> None:
        """Enqueue, lease and settle jobs, and flush the counters."""
        await self.app.enqueue_many(self.app.job("t", n, queue=queue) for n in range(count))
        leases = await self.app.engine.lease(LeaseRequest(queues=(queue,), limit=count))
        await self.app.engine.settle(
            [Settlement(lease=lease, verdict=verdict or Complete()) for lease in leases]
        )
        await self.flusher.flush()

    def restart(self) -> None:
        """The process goes on as another would: nothing it counted is with it any more."""
        self.app.listeners.remove(self.meter.record)
        self.meter = Meter(wall_ms)
        self.app.listeners.add(self.meter.record)
        self.flusher = Flusher(self.app.engine, self.meter, "server", wall_ms)


@asynccontextmanager
async def metered_server(
    store: Engine, settings: ServerSettings | None = None
) -> AsyncIterator[MeteredServer]:
    app = Holdfast(engine=store)
    server = ServerState(app=app, settings=settings or ServerSettings())
    # Read anew each time, and only by the test.
    snapshot_reader(app).age_s_max = 0
    poll_loop(app).poll_s = None
    loop_server = LoopServer()
    loop_server.only_app = AsgiApplication(server)
    async with (
        app,
        loop_server.running(),
        http_client(loop_server.place) as client,
    ):
        yield MeteredServer(server, client)
        server.stopping.set()
