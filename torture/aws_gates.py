"""The part `gates` of the torture test `aws`: gates and a distributor of SQS, which are killed.

Another program sends messages to tenants' queues, to the source of an inlet, and to a queue whose
messages become dead letters. A distributor moves those of the tenants to the source, gates move
them in, a worker completes each job with a follow-up, and a gate moves those out.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from holdfast.conformance.chaos.verify import Fault
from holdfast.core.model import Job, Queue, State
from holdfast.engines.registry import open_engine
from holdfast.ops.gates import Gate, Gates
from torture import gate_flow
from torture.aws_workers import (
    DRAIN_S_MAX,
    KEYS,
    REGION,
    ROOT,
    AwsPlan,
    AwsQueue,
    PartResult,
    Service,
)
from torture.gate_flow import SINK, SOURCE, SinkMessage, judge_gates
from torture.service_history import Causes, judge_moves, read_service_calls
from torture.stalls import noting_stalls
from torture.store_checks import all_jobs

TENANTS = ("tenant-a", "tenant-b", "tenant-c")
BROKEN, BROKEN_DEAD = "broken", "broken-dlq"
LETTERS = "letters"
HIDDEN_S = 2
"""The visibility timeout of gates and distributors here, so that messages return soon."""
ROLES = ("gates", "gates", "distributor")
BATCH = 10
_PROGRAM = f"""
import signal, sys
from holdfast.worker import processes
processes.die_with_parent(int(sys.argv.pop(1)), signal.SIGKILL)
from holdfast.cli import main
from holdfast.engines.sqs import source
source.HIDDEN_S = {HIDDEN_S}
source._CHECK_S, source._MARGIN_S = source.HIDDEN_S / 4, source.HIDDEN_S / 2
sys.exit(main())
"""
"""`holdfast` with the short timeout; it dies with its owner."""
LINES = {
    "gates": ("gate", "run"),
    "distributor": ("distribute", "--broker", "aws", "--from", "tenant-*", "--to", SOURCE),
}


class GatePart:
    """Gates and distributors are killed while messages pass through the proxy."""

    def __init__(self, service: Service, plan: AwsPlan) -> None:
        self._service = service
        self._plan = plan
        self._rng = random.Random(plan.seed)
        self._store = f"sqlite:///{service.home / 'jobs.db'}"
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._faults: list[Fault] = []
        self._lines: list[dict[str, Any]] = []
        self._places: dict[str, str] = {}
        self._confirmed: set[str] = set()

    async def run(self) -> PartResult:
        client = self._service.client()
        await asyncio.to_thread(self._create, client)
        engine = open_engine(self._store)
        await engine.open()
        for queue in (*gate_flow.QUEUES, Queue(name=LETTERS)):
            await engine.declare(queue)
        for gate in _gates():
            await Gates(engine).add(gate)
        working = asyncio.create_task(gate_flow.run_worker(engine, "w"))
        try:
            with noting_stalls(self._faults):
                struck = await self._torment(client)
                left = await self._drain(client, engine)
            jobs = await all_jobs(engine, tuple(State))
        finally:
            working.cancel()
            self._stop()
            with suppress(asyncio.CancelledError):
                await working
            await engine.close()
        sink = await asyncio.to_thread(AwsQueue(client, SINK).take_all)
        (self._service.home / "sent.json").write_text(json.dumps(self._lines))
        figures, wrong = self._judge(jobs, sink)
        wrong = [*(f"not drained: {name} has {count}" for name, count in left.items()), *wrong]
        struck_figures = {f"proxy_{fault}": count for fault, count in struck.items()}
        kills = sum(fault.what == "kill" for fault in self._faults)
        return {"kills": kills, **figures, **struck_figures}, wrong

    def _create(self, client: Any) -> None:
        for name in (*TENANTS, SOURCE, SINK, BROKEN_DEAD):
            client.create_queue(QueueName=name)
        arn = f"arn:aws:sqs:{REGION}:000000000000:{BROKEN_DEAD}"
        policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})
        client.create_queue(QueueName=BROKEN, Attributes={"RedrivePolicy": policy})

    async def _torment(self, client: Any) -> dict[str, int]:
        for number in range(len(ROLES)):
            self._start(number)
        await self._first_message(client)
        proxy = self._service.proxy
        proxy.start_faults()
        sending = asyncio.create_task(self._send(client))
        try:
            instants = sorted(
                self._rng.random() * self._plan.seconds for _ in range(self._plan.kills)
            )
            started = time.monotonic()
            for instant in instants:
                await asyncio.sleep(max(started + instant - time.monotonic(), 0))
                self._kill(self._rng.randrange(len(ROLES)))
            await sending
        finally:
            sending.cancel()
            struck = proxy.stop_faults()
        return struck

    async def _first_message(self, client: Any) -> None:
        """Wait until a message has passed through all programs: starting ones make no calls that
        faults could hit."""
        await asyncio.to_thread(
            self._send_batch, client, AwsQueue(client, TENANTS[0]).url, TENANTS[0], ["m-0"]
        )
        sink = AwsQueue(client, SINK)
        end = time.monotonic() + DRAIN_S_MAX
        while not await asyncio.to_thread(sink.depth):
            if time.monotonic() > end:
                raise RuntimeError(f"no message passed; see the logs in {self._service.home}")
            await asyncio.sleep(0.05)

    def _start(self, number: int) -> None:
        url = f"sqs://{REGION}?endpoint={self._service.proxy.url}"
        environment = {
            **{name: text for name, text in os.environ.items() if "HOLDFAST" not in name},
            **KEYS,
            "PYTHONPATH": str(ROOT),
            "HOLDFAST_URL": self._store,
            "HOLDFAST_BROKER_AWS": url,
        }
        with (self._service.home / f"{ROLES[number]}.log").open("ab") as log:
            self._running[number] = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, str(os.getpid()), *LINES[ROLES[number]]],
                cwd=self._service.home,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _kill(self, number: int) -> None:
        process = self._running[number]
        at_ns = time.monotonic_ns()
        process.send_signal(signal.SIGKILL)
        process.wait()
        self._faults.append(Fault("kill", ROLES[number], at_ns, (process.pid,)))
        self._start(number)

    def _stop(self) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()

    async def _send(self, client: Any) -> None:
        """Send messages as another program does, through the proxy, spread over the time."""
        faulty = self._service.client(with_faults=True)
        broken = AwsQueue(client, BROKEN)
        urls = {name: AwsQueue(client, name).url for name in (*TENANTS, SOURCE, BROKEN)}
        started, count = time.monotonic(), self._plan.messages
        batches = -(-count // BATCH)
        for number in range(batches):
            pause_s = started + self._plan.seconds * number / batches - time.monotonic()
            await asyncio.sleep(max(pause_s, 0))
            place = self._rng.choice((*TENANTS, *TENANTS, SOURCE, SOURCE, BROKEN))
            size = min(BATCH, count - number * BATCH)
            names = [f"m-{1 + number * BATCH + each}" for each in range(size)]
            await asyncio.to_thread(self._send_batch, faulty, urls[place], place, names)
            if place == BROKEN:
                await asyncio.to_thread(broken.shake)

    def _send_batch(self, client: Any, url: str, place: str, names: Sequence[str]) -> None:
        entries = [{"Id": str(at), "MessageBody": name} for at, name in enumerate(names)]
        for name in names:
            self._places[name] = place
            # The distributor may move a message twice; at the source it has one id.
            self._lines.append(
                {"what": "try", "id": name if place == SOURCE else None, "body": name}
            )
        try:
            answer = client.send_message_batch(QueueUrl=url, Entries=entries)
        except (BotoCoreError, ClientError):
            return
        for each in answer.get("Successful", ()):
            name = names[int(each["Id"])]
            self._confirmed.add(name)
            id_ = name if place == SOURCE else None
            self._lines.append({"what": "confirmed", "id": id_, "body": name})

    async def _drain(self, client: Any, engine: Any) -> dict[str, int]:
        """Wait until nothing is on its way; returns what is left, by queue."""
        queues = {name: AwsQueue(client, name) for name in (*TENANTS, SOURCE, BROKEN, BROKEN_DEAD)}
        end = time.monotonic() + DRAIN_S_MAX
        while True:
            await asyncio.to_thread(queues[BROKEN].shake)
            left = {name: await asyncio.to_thread(each.depth) for name, each in queues.items()}
            for view in await engine.queues():
                left[f"queue {view.queue.name}"] = (
                    view.ready + view.delayed + view.blocked + view.leased
                )
            left = {name: count for name, count in left.items() if count}
            if not left or time.monotonic() > end:
                return left
            await asyncio.sleep(0.2)

    def _judge(self, jobs: Sequence[Job], sink: Sequence[dict[str, Any]]) -> PartResult:
        lines = [line for line in self._lines if self._places[line["body"]] != BROKEN]
        published = [
            SinkMessage(each["MessageAttributes"]["holdfast.id"]["StringValue"], each["Body"])
            for each in sink
        ]
        counts, wrong = judge_gates(lines, [job for job in jobs if job.queue != LETTERS], published)
        broken = {
            name: name in self._confirmed for name, at in self._places.items() if at == BROKEN
        }
        wrong += judge_letters(broken, [job for job in jobs if job.queue == LETTERS])
        calls = read_service_calls(self._service.journal)
        causes = Causes(self._faults, calls)
        tenants = {
            name: name in self._confirmed for name, at in self._places.items() if at in TENANTS
        }
        moves = judge_moves(tenants, calls, SOURCE, causes)
        adopted = sum(job.queue == LETTERS for job in jobs)
        figures = {"sent": len(self._confirmed), **counts, **moves.counts, "adopted": adopted}
        return figures, [*wrong, *moves.violations]


def _gates() -> list[Gate]:
    common: dict[str, Any] = {"broker": "aws"}
    return [
        Gate(name="in", direction="inlet", queue="in", source=SOURCE, task="torture", **common),
        Gate(
            name="dead", direction="inlet", queue=LETTERS, source=BROKEN_DEAD, task="torture",
            dead=True, **common,
        ),
        Gate(name="out", direction="outlet", queue="out", routing_key=SINK, **common),
    ]  # fmt: skip


def judge_letters(sent: dict[str, bool], jobs: Sequence[Job]) -> list[str]:
    """Judge the dead letters that an inlet adopted. `sent` are the messages that the service moved
    to the dead-letter queue, and whether each was confirmed. Each was sent only once."""
    adopted = Counter(job.payload.decode() for job in jobs)
    return [
        *(
            f"forgotten: {name} died at the service and is no dead letter"
            for name, is_confirmed in sent.items()
            if is_confirmed and not adopted[name]
        ),
        *(f"adopted {count} times: {name}" for name, count in adopted.items() if count > 1),
        *(f"invented: the dead letter {name} was never sent" for name in adopted.keys() - sent),
        *(
            f"not dead: the letter {job.payload.decode()} is {job.state}"
            for job in jobs
            if job.state is not State.DEAD
        ),
        *(
            f"the letter {job.payload.decode()} lacks {header}"
            for job in jobs
            for header in ("gate.receive_count", "gate.sent_at", "gate.source_arn")
            if header not in job.headers
        ),
    ]
