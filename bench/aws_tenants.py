"""How long the messages of a quiet tenant take beside those of a noisy one.

A worker takes one message after the other and needs some milliseconds for each. In a fair queue the
server chooses which tenant is next; without one, a distributor moves messages from the tenants'
queues in turns.
"""

from __future__ import annotations

import asyncio
import time

from bench.peers.holdfast import COMMAND
from bench.peers.run import DRAIN_S_MAX, Failed
from bench.peers.workspace import Workspace
from bench.processes import ROOT
from holdfast import Holdfast
from holdfast.core.model import LeaseRequest, NewJob
from holdfast.core.verdict import Complete, Settlement
from holdfast.engines.sqs.client import OutgoingSqsMessage, SqsClient

WORK_S = 0.02
"""The time of one message. A distributor moves at most the depth of the work queue in a second: a
faster worker would measure that."""
SENT_AT_ONCE = 1_000
QUIET, NOISY = "tenant-quiet", "tenant-noisy"
WORK = "work"
FAIR = "fair"


async def fair_s(workspace: Workspace, *, noisy: int, quiet: int) -> float:
    """From the enqueue of the quiet tenant's jobs in a fair queue until they are done."""
    async with Holdfast(workspace.url) as app:
        await app.declare(FAIR, lease="30s")
        await _enqueue(app, "noisy", noisy)
        # The noisy tenant is known to be noisy once jobs of it have been worked on.
        await _work(app, "noisy", min(noisy, 2 * quiet))
        started = time.monotonic()
        await _enqueue(app, "quiet", quiet)
        await _work(app, "quiet", quiet)
        return time.monotonic() - started


async def _enqueue(app: Holdfast, tenant: str, count: int) -> None:
    for first in range(0, count, SENT_AT_ONCE):
        size = min(SENT_AT_ONCE, count - first)
        jobs: list[NewJob] = [
            app.job("noop", {"text": ""}, queue=FAIR, tenant=tenant) for _ in range(size)
        ]
        await app.enqueue_many(jobs)


async def _work(app: Holdfast, tenant: str, count: int) -> None:
    """Work until so many jobs of a tenant are done."""
    request = LeaseRequest(queues=(FAIR,), limit=10, worker="bench", wait_ms=1_000)
    end = time.monotonic() + DRAIN_S_MAX
    done = 0
    while done < count:
        if time.monotonic() > end:
            raise Failed(f"{done} of {count} jobs of the {tenant} tenant were done in time")
        leases = await app.engine.lease(request)
        await asyncio.sleep(WORK_S * len(leases))
        if leases:
            await app.engine.settle([Settlement(lease=each, verdict=Complete()) for each in leases])
        done += sum(each.job.tenant == tenant for each in leases)


async def distributed_s(workspace: Workspace, *, noisy: int, quiet: int) -> float:
    """From the first send of the quiet tenant's messages to its own queue until they are done, by a
    worker of the queue that a distributor feeds."""
    client = SqsClient("us-east-1", endpoint=workspace.endpoint)
    await client.open()
    try:
        urls = {name: await client.create_queue(name, {}, {}) for name in (QUIET, NOISY, WORK)}
        await _send(client, urls[NOISY], "noisy", noisy)
        process = await asyncio.create_subprocess_exec(
            COMMAND, "distribute", "--broker", f"aws=sqs://us-east-1?endpoint={workspace.endpoint}",
            "--from", "tenant-*", "--to", WORK,
            cwd=ROOT, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        try:
            # Until the distributor has begun: a message of the quiet tenant passes, alone.
            await _send(client, urls[QUIET], "quiet", 1)
            await _receive(client, urls[WORK], "quiet", 1)
            started = time.monotonic()
            await _send(client, urls[QUIET], "quiet", quiet)
            await _receive(client, urls[WORK], "quiet", quiet)
            return time.monotonic() - started
        finally:
            process.terminate()
            await process.wait()
    finally:
        await client.close()


async def _send(client: SqsClient, url: str, body: str, count: int) -> None:
    for first in range(0, count, SENT_AT_ONCE):
        size = min(SENT_AT_ONCE, count - first)
        answers = await client.send(url, [OutgoingSqsMessage(body=body)] * size)
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer


async def _receive(client: SqsClient, url: str, body: str, count: int) -> None:
    """Work until so many messages of a tenant are done."""
    end = time.monotonic() + DRAIN_S_MAX
    done = 0
    while done < count:
        if time.monotonic() > end:
            raise Failed(f"{done} of {count} messages of the {body} tenant were done in time")
        messages = await client.receive(url, wait_s=1)
        await asyncio.sleep(WORK_S * len(messages))
        if messages:
            await client.delete(url, [each.handle for each in messages])
        done += sum(each.body == body for each in messages)
