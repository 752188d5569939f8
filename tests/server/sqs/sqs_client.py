"""An SQS client of a server without a socket, on a manual clock."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.app.application import Holdfast
from holdfast.engines.base import Engine
from holdfast.engines.memory import MemoryEngine
from holdfast.server.settings import ServerSettings
from holdfast.server.sqs.endpoint import SqsEndpoint
from holdfast.server.state import ServerState
from holdfast.testing.clock import ManualClock
from tests.server.direct_server import DirectReply, DirectServer

ACCOUNT = "000000000000"
BASE = "http://127.0.0.1:7433"
JSON = "application/x-amz-json-1.0"


class SqsRefused(Exception):
    """An error of the JSON protocol: the shape, the code and the text."""

    def __init__(self, reply: DirectReply) -> None:
        self.reply = reply
        self.status = reply.status
        self.shape = reply.json["__type"].partition("#")[2]
        self.code = reply.headers["x-amzn-query-error"].partition(";")[0]
        self.message = reply.json["message"]
        super().__init__(f"{self.status} {self.shape}: {self.message}")


@dataclass
class SqsClient:
    """Sends actions with credentials that nobody verifies. `key_id` may be an account."""

    server: DirectServer
    clock: ManualClock
    region: str = "us-east-1"
    key_id: str = "test"
    token: str | None = None

    async def send(self, action: str, body: bytes, **headers: str) -> DirectReply:
        signed = (
            f"AWS4-HMAC-SHA256 Credential={self.key_id}/20260101/{self.region}/sqs/aws4_request,"
            " SignedHeaders=host, Signature=00"
        )
        given = {"authorization": signed} if self.token is None else {}
        return await self.server.ask(
            "POST",
            "/",
            body,
            token=self.token,
            content_type=JSON,
            x_amz_target=f"AmazonSQS.{action}",
            **given,
            **headers,
        )

    async def ask(self, action: str, **members: Any) -> Any:
        """The answer of an action. Raises SqsRefused."""
        reply = await self.send(action, json.dumps(members).encode())
        if reply.status != 200:
            raise SqsRefused(reply)
        return reply.json if reply.body else {}

    async def create(self, name: str, **attributes: str) -> str:
        """Create a queue; its URL."""
        answer = await self.ask("CreateQueue", QueueName=name, Attributes=attributes)
        url: str = answer["QueueUrl"]
        return url

    async def attributes(self, url: str, *names: str) -> dict[str, str]:
        answer = await self.ask(
            "GetQueueAttributes", QueueUrl=url, AttributeNames=list(names or ("All",))
        )
        found: dict[str, str] = answer.get("Attributes", {})
        return found

    async def names(self, **members: Any) -> list[str]:
        answer = await self.ask("ListQueues", **members)
        return [url.rpartition("/")[2] for url in answer.get("QueueUrls", [])]

    @property
    def endpoint(self) -> SqsEndpoint:
        found = self.server.application.sqs
        assert found is not None
        return found

    @property
    def store(self) -> Engine:
        return self.server.engine()


@asynccontextmanager
async def sqs_server(
    kind: str = "memory", folder: Path | None = None, settings: ServerSettings | None = None
) -> AsyncIterator[SqsClient]:
    clock = ManualClock()
    number = 0

    def make(namespace: str) -> Holdfast:
        nonlocal number
        number += 1
        if kind == "memory":
            return Holdfast(engine=MemoryEngine(clock=clock))
        from holdfast.engines.sqlite import SQLiteEngine

        assert folder is not None
        path = folder / "sqs.db"
        return Holdfast(
            engine=SQLiteEngine(path, namespace=namespace, durability="relaxed", clock=clock)
        )

    async with make("default") as app:
        state = ServerState(app=app, settings=settings or ServerSettings(), make=make)
        client = SqsClient(DirectServer(state), clock)
        if client.server.application.sqs is not None:
            client.endpoint.state.wall_ms = clock.wall_ms
        try:
            yield client
        finally:
            await state.namespaces.close()
