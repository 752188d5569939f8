"""The queues of one test on our own endpoint, for the engine and for boto3."""

import asyncio
from typing import Any
from uuid import uuid4

from holdfast.core.model import Job, Lease, LeaseRequest
from holdfast.engines.base import Engine
from holdfast.engines.registry import open_engine
from tests.engines.sqs.servers import client


class Place:
    """The queues of one test."""

    def __init__(self, endpoint: str, prefix: str | None = None) -> None:
        self.endpoint = endpoint
        self.prefix = prefix or f"t{uuid4().hex[:8]}-"
        self.boto = client(endpoint)
        self.engine: Engine

    def url(self, name: str) -> str:
        found: str = self.boto.get_queue_url(QueueName=f"{self.prefix}{name}")["QueueUrl"]
        return found

    async def send(self, queue: str, body: str, **attributes: str) -> str:
        named = {
            name.replace("_", "."): {"DataType": "String", "StringValue": value}
            for name, value in attributes.items()
        }
        answer = await self.ask(
            "send_message", QueueUrl=self.url(queue), MessageBody=body, MessageAttributes=named
        )
        id_: str = answer["MessageId"]
        return id_

    async def ask(self, action: str, **members: Any) -> dict[str, Any]:
        answer: dict[str, Any] = await asyncio.to_thread(getattr(self.boto, action), **members)
        return answer

    async def open(self, options: str = "create=true") -> Engine:
        self.engine = open_engine(
            f"sqs://us-east-1/{self.prefix}?endpoint={self.endpoint}&{options}"
        )
        await self.engine.open()
        return self.engine

    async def lease(self, limit: int = 10, **fields: Any) -> list[Lease]:
        request = {"queues": ("default",), "limit": limit, "worker": "w", **fields}
        return await self.engine.lease(LeaseRequest(**request))

    async def one(self, **fields: Any) -> Lease:
        (lease,) = await self.lease(**fields)
        return lease

    async def letters(self, queue: str = "default") -> list[Job]:
        return [lease.job for lease in await self.lease(queues=(queue,), dead=True)]
