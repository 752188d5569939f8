"""The part `workers` of the torture test `aws`: real workers on SQS behind a proxy with faults."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import boto3.session
import msgspec
from botocore.config import Config

from holdfast import Holdfast
from holdfast.conformance.chaos.faults import FaultInjector
from holdfast.conformance.chaos.process_tree import LaunchedWorkers
from holdfast.conformance.chaos.scenario import read_lines
from holdfast.core.model import NewJob, Receipt, Status
from holdfast.engines.sqs.messages import DEAD_ATTRIBUTE, DeadAttribute
from holdfast.errors import EngineUnavailable, OutcomeUnknown
from torture.private_server import PrivateServer
from torture.service_history import (
    Causes,
    Letter,
    SentMessage,
    judge_workers,
    read_message_runs,
    read_service_calls,
)
from torture.sqs_proxy import SqsProxy, name_in

ROOT = Path(__file__).resolve().parent.parent
REGION = "us-east-1"
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
PREFIX = "torture-"
QUEUE = "work"
LEASE_MS = 2_000
ATTEMPTS_MAX = 4
DRAIN_S_MAX = 120.0
ROLES = {"child": 50, "supervisor": 40, "launcher": 10}
KINDS = {"work": 75, "then": 15, "fail": 4, "bury": 6}
LONG_SHARE = 0.03
"""Jobs that run for longer than their lease, which must be extended."""
REPEAT_SHARE = 0.5
"""Of the jobs whose send is in doubt, this share is sent again with the same id."""
BATCH = 25
_COUNTS = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
)
PartResult = tuple[dict[str, Any], list[str]]
"""The figures of a part, and what is wrong."""


class AwsPlan(NamedTuple):
    """The sizes of a run."""

    workers: int
    kills: int
    freezes: int
    messages: int
    seconds: float
    seed: int


class Service(NamedTuple):
    """The endpoint, the proxy in front of it, and the directory of the run's histories."""

    server: PrivateServer
    proxy: SqsProxy
    journal: Path
    home: Path

    def client(self, *, with_faults: bool = False) -> Any:
        """A client of the endpoint that repeats nothing."""
        return boto3.session.Session().client(
            "sqs",
            endpoint_url=self.proxy.url if with_faults else self.server.url,
            region_name=REGION,
            aws_access_key_id="test",
            aws_secret_access_key="test",
            config=Config(
                retries={"total_max_attempts": 1}, read_timeout=30, max_pool_connections=20
            ),
        )


class AwsQueue:
    """A queue at the endpoint itself, as the harness sees it: without faults."""

    def __init__(self, client: Any, name: str) -> None:
        self._client = client
        self.url: str = client.get_queue_url(QueueName=name)["QueueUrl"]

    def depth(self) -> int:
        """Messages in the queue, also those in flight and delayed."""
        answer = self._client.get_queue_attributes(QueueUrl=self.url, AttributeNames=_COUNTS)
        return sum(int(each) for each in answer["Attributes"].values())

    def take_all(self) -> list[dict[str, Any]]:
        """Receive and delete every message that is visible."""
        found: list[dict[str, Any]] = []
        while messages := self._receive():
            found += messages
            entries = [
                {"Id": str(at), "ReceiptHandle": each["ReceiptHandle"]}
                for at, each in enumerate(messages)
            ]
            self._client.delete_message_batch(QueueUrl=self.url, Entries=entries)
        return found

    def shake(self) -> None:
        """Receive every message and let it go: the service moves those that were received too
        often."""
        while self._receive(VisibilityTimeout=0):
            pass

    def _receive(self, **members: Any) -> list[dict[str, Any]]:
        answer = self._client.receive_message(
            QueueUrl=self.url,
            MaxNumberOfMessages=10,
            MessageAttributeNames=["All"],
            MessageSystemAttributeNames=["All"],
            **members,
        )
        messages: list[dict[str, Any]] = answer.get("Messages", [])
        return messages


class WorkerPart:
    """Workers are killed and frozen while jobs are sent to them through the proxy."""

    def __init__(self, service: Service, plan: AwsPlan) -> None:
        self._service = service
        self._plan = plan
        self._rng = random.Random(plan.seed)
        control = quote(f"sqlite:///{service.home / 'control.db'}", safe=":/")
        self._url = (
            f"sqs://{REGION}/{PREFIX}?endpoint={service.proxy.url}&create=true&control={control}"
        )
        environment = {**KEYS, "HOLDFAST_URL": self._url, "PYTHONPATH": str(ROOT)}
        line = ["worker", "run", "torture.aws_app:app", "--count", str(plan.workers)]
        line += ["--queues", QUEUE, "--processes", "1", "--concurrency", "8", "--grace", "5s"]
        self._workers = LaunchedWorkers(service.home, line, environment)
        self._injector = FaultInjector(
            self._workers, self._rng, lease_ms=LEASE_MS, scale=0.3, one_writer=False
        )
        self._jobs: dict[str, NewJob] = {}
        self._kinds: dict[str, str] = {}
        self._acknowledged: set[str] = set()

    async def run(self) -> PartResult:
        wrong: list[str] = []
        async with Holdfast(self._url) as app:
            await app.declare(
                QUEUE,
                lease=f"{LEASE_MS}ms",
                max_attempts=ATTEMPTS_MAX,
                backoff="constant(100ms)",
            )
            try:
                with self._injector.noting_stalls():
                    self._workers.start()
                    struck = await self._torment(app)
                    left = await self._drain()
                wrong += await asyncio.to_thread(self._workers.stop, outages=True)
            finally:
                self._workers.kill()
        if left:
            wrong.append(f"not drained: {left} messages are left in {QUEUE}")
        self._write_down()
        findings = judge_workers(
            self._sent(),
            read_message_runs(read_lines(self._service.home / "runs.jsonl")),
            await asyncio.to_thread(self._letters),
            Causes(self._injector.faults, read_service_calls(self._service.journal)),
            attempts_max=ATTEMPTS_MAX,
        )
        counts = self._injector.counts
        figures = {
            "kills": counts["kills"],
            "freezes": counts["freezes"],
            **findings.counts,
            **{f"proxy_{fault}": count for fault, count in struck.items()},
        }
        return figures, [*wrong, *findings.violations]

    async def _torment(self, app: Holdfast) -> dict[str, int]:
        """Send jobs and inject all faults; returns those of the proxy."""
        thawing = asyncio.create_task(self._injector.keep_thawing())
        await self._first_run(app)
        self._service.proxy.start_faults()
        sending = asyncio.create_task(self._send(app))
        try:
            await self._strike()
            await sending
        finally:
            sending.cancel()
            thawing.cancel()
            await self._injector.end_all()
            struck = self._service.proxy.stop_faults()
        return struck

    async def _first_run(self, app: Holdfast) -> None:
        """Wait until the workers have begun."""
        await self._offer(app, [self._new(app)])
        end = time.monotonic() + DRAIN_S_MAX
        while not read_lines(self._service.home / "runs.jsonl"):
            if time.monotonic() > end:
                text = self._workers.log.read_text(errors="replace")[-2000:]
                raise RuntimeError(f"no job ran; output of the workers: {text}")
            await asyncio.sleep(0.05)

    async def _strike(self) -> None:
        plan, rng = self._plan, self._rng
        kinds = rng.choices(list(ROLES), list(ROLES.values()), k=plan.kills)
        kinds += ["freeze"] * plan.freezes
        schedule = sorted((rng.random() * plan.seconds, kind) for kind in kinds)
        started = time.monotonic()
        for instant, kind in [*schedule, (plan.seconds, "")]:
            while (left := started + instant - time.monotonic()) > 0:
                self._keep_launcher()
                await asyncio.sleep(min(left, 0.1))
            while kind and not self._injector.inject(kind, early=False):
                self._keep_launcher()
                await asyncio.sleep(0.05)

    def _keep_launcher(self) -> None:
        self._workers.reap_orphans()
        if not self._workers.is_running():
            self._workers.start()

    async def _send(self, app: Holdfast) -> None:
        """Send the jobs of the plan, spread over its time."""
        started, count = time.monotonic(), self._plan.messages
        batches = -(-count // BATCH)
        for number in range(batches):
            pause_s = started + self._plan.seconds * number / batches - time.monotonic()
            await asyncio.sleep(max(pause_s, 0))
            jobs = [self._new(app) for _ in range(min(BATCH, count - number * BATCH))]
            doubtful = await self._offer(app, jobs)
            again = [job for job in doubtful if self._rng.random() < REPEAT_SHARE]
            if again:
                await self._offer(app, again)

    def _new(self, app: Holdfast) -> NewJob:
        rng = self._rng
        name = f"m-{len(self._kinds)}"
        [kind] = rng.choices(list(KINDS), list(KINDS.values()))
        seconds = rng.random() * 0.2
        if rng.random() < LONG_SHARE:
            seconds = LEASE_MS / 1000 * (1.2 + rng.random())
        payload = {"name": name, "kind": kind, "seconds": seconds}
        job = app.job(rng.choice(("sync", "async")), payload, queue=QUEUE, id=name)
        self._jobs[name] = job
        self._kinds[name] = kind
        return job

    async def _offer(self, app: Holdfast, jobs: Sequence[NewJob]) -> list[NewJob]:
        """Send jobs; returns those whose send is in doubt."""
        try:
            receipts = dict(enumerate(await app.enqueue_many(jobs)))
        except OutcomeUnknown as error:
            receipts = {at: each for at, each in error.known.items() if isinstance(each, Receipt)}
        except EngineUnavailable:
            receipts = {}
        for receipt in receipts.values():
            if receipt.status is Status.REFUSED:
                raise RuntimeError(f"job {receipt.id} was refused: {receipt.text}")
            self._acknowledged.add(receipt.id)
        return [job for at, job in enumerate(jobs) if at not in receipts]

    async def _drain(self) -> int:
        """Wait until the queue is empty; returns what is left."""
        queue = AwsQueue(self._service.client(), f"{PREFIX}{QUEUE}")
        end = time.monotonic() + DRAIN_S_MAX
        while (left := await asyncio.to_thread(queue.depth)) and time.monotonic() < end:
            self._keep_launcher()
            await asyncio.sleep(0.2)
        return left

    def _sent(self) -> list[SentMessage]:
        return [
            SentMessage(name, kind, name in self._acknowledged)
            for name, kind in self._kinds.items()
        ]

    def _letters(self) -> list[Letter]:
        queue = AwsQueue(self._service.client(), f"{PREFIX}{QUEUE}-dlq")
        return [read_letter(message) for message in queue.take_all()]

    def _write_down(self) -> None:
        """For people: what was sent, and the faults."""
        home = self._service.home
        (home / "sent.json").write_text(json.dumps([each._asdict() for each in self._sent()]))
        faults = [
            {"what": each.what, "role": each.role, "at_ns": each.at_ns, "pids": each.pids}
            for each in self._injector.faults
        ]
        (home / "faults.json").write_text(json.dumps(faults))


def read_letter(message: dict[str, Any]) -> Letter:
    """A message of a dead-letter queue."""
    attribute = message.get("MessageAttributes", {}).get(DEAD_ATTRIBUTE)
    name = name_in(message["Body"])
    if attribute is None:
        return Letter(name, None, int(message["Attributes"]["ApproximateReceiveCount"]))
    dead = msgspec.json.decode(attribute["StringValue"], type=DeadAttribute)
    return Letter(name, dead.reason, dead.attempt)
