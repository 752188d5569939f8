"""A JSON client for a server in the test's own event loop, with access to its store."""

import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx2

from holdfast.core.model import Job
from holdfast.engines.base import Engine
from holdfast.server.settings import ServerSettings
from holdfast.testing.clock import ManualClock
from tests.engines import harnesses
from tests.server.loop_server import ServedEngine


class RestClient:
    """`store` is the engine of the server, and `clock` its clock."""

    def __init__(self, client: httpx2.AsyncClient, store: Engine, clock: ManualClock) -> None:
        self.client = client
        self.store = store
        self.clock = clock

    async def ask(
        self, method: str, path: str, body: Any = None, *, status: int = 200, **query: Any
    ) -> Any:
        """The JSON answer, which must have this status."""
        answer = await self.client.request(method, path, json=body, params=query)
        assert answer.status_code == status, f"{answer.status_code}: {answer.text[:2000]}"
        return answer.json() if answer.content else None

    async def get(self, path: str, *, status: int = 200, **query: Any) -> Any:
        return await self.ask("GET", path, status=status, **query)

    async def post(self, path: str, body: Any = None, *, status: int = 200) -> Any:
        return await self.ask("POST", path, body, status=status)

    async def refused(
        self, method: str, path: str, body: Any = None, **query: Any
    ) -> tuple[Any, ...]:
        """The status and the code of an error."""
        answer = await self.client.request(method, path, json=body, params=query)
        assert answer.status_code >= 400, f"{answer.status_code}: {answer.text[:2000]}"
        error = answer.json()["error"]
        assert set(error) == {"code", "message", "detail"}
        return answer.status_code, error["code"]

    async def enqueue(self, *jobs: dict[str, Any], queue: str = "default") -> list[str]:
        made = [{"task": "t", **job} for job in jobs or ({},)]
        answer = await self.post(f"/v1/queues/{queue}/jobs", {"jobs": made}, status=201)
        return [job["id"] for job in answer["jobs"]]

    async def lease(self, *queues: str, limit: int = 1, **more: Any) -> list[Any]:
        body = {"queues": list(queues or ("default",)), "limit": limit, **more}
        leases: list[Any] = (await self.post("/v1/lease", body))["leases"]
        return leases

    async def settle(self, *verdicts: dict[str, Any]) -> list[Any]:
        answer = await self.post("/v1/settle", {"verdicts": list(verdicts)})
        outcomes: list[Any] = answer["outcomes"]
        return outcomes

    async def job(self, id: str) -> Job:
        job = await self.store.get(id)
        assert job is not None
        return job


def http_client(place: str) -> httpx2.AsyncClient:
    """Nothing is encrypted here: reading all certificates there are takes longer than most tests
    do."""
    none = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return httpx2.AsyncClient(base_url=place, timeout=60, verify=none)


def verdict(lease: Any, word: str, **more: Any) -> dict[str, Any]:
    return {"id": lease["job"]["id"], "token": lease["token"], "verdict": word, **more}


@asynccontextmanager
async def rest_server(
    kind: str, folder: Path, settings: ServerSettings | None = None
) -> AsyncIterator[RestClient]:
    stores: list[Engine] = []

    def wrap(store: Engine) -> Engine:
        stores.append(store)
        return ServedEngine(store, settings)

    make: Callable[..., Any] = (
        harnesses.memory if kind == "memory" else partial(harnesses.sqlite, folder)
    )
    async with (
        make(wrap) as harness,
        http_client(harness.engine.place) as client,
    ):
        yield RestClient(client, stores[0], harness.clock)
