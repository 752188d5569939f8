"""The benchmark `fleet`: `holdfast fleet run` at ministack, which plays all services of AWS.

Terminations per second compared with a bare loop of the same calls, the calls of each message by
action, and a burst in which no message may become visible again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import boto3.session
import msgspec

from bench.peers.install import NotInstalled, install_sqs_servers
from bench.peers.workspace import SQS_KEYS
from bench.processes import ROOT
from bench.report import Report
from bench.sqs import other_server
from bench.sqs_counter import counting_proxy

BARE_GOAL = 0.5
LAPSES_MAX = 0
REGION = "us-east-1"
STACK = "runs-fleet"
TEMPLATE = ROOT / "deploy" / "fleet" / "template.yaml"
QUEUE = "runs-fleet-termination"
TABLE = "runs-fleet-jobs"
DRAIN_S_MAX = 600
STOP_S_MAX = 60
PUT_MAX = 25

Log = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes of the measurements. The goals apply to the defaults."""

    messages: int = 1_000
    repeats: int = 3
    burst: int = 1_000


QUICK = Sizes(messages=100, repeats=1, burst=100)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """`endpoint` is a running ministack, used instead of a new one."""

    sizes: Sizes = Sizes()
    endpoint: str | None = None


class Failed(Exception):
    """A measurement has no result; the text is one line with the reason."""


async def run(options: Options, log: Log) -> Report:
    """Run at ministack, with the stack of deploy/fleet."""
    report = Report("fleet")
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-bench-")))
        endpoint = options.endpoint
        if endpoint is None:
            try:
                programs = await asyncio.to_thread(install_sqs_servers, log)
            except NotInstalled as error:
                report.notes.append(f"not measured: ministack ({error})")
                return report
            port = await stack.enter_async_context(other_server(programs, "ministack", folder))
            endpoint = f"http://127.0.0.1:{port}"
        account = Account(endpoint)
        await asyncio.to_thread(account.create_stack)
        bench = _Bench(options.sizes, report, log, account, folder)
        for measure in (bench.rates, bench.burst):
            try:
                await measure()
            except Failed as error:
                report.notes.append(f"failed: {error}")
    return report


@dataclass(frozen=True, slots=True)
class Turn:
    """A queue of its own with a message for each of these jobs. A poll of a program that was
    stopped can take messages until it ends, so that no two programs share a queue."""

    queue: str
    ids: list[str]


class Account:
    """The emulated account: its stack, messages, records and parameters."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self._session = boto3.session.Session(
            aws_access_key_id=SQS_KEYS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=SQS_KEYS["AWS_SECRET_ACCESS_KEY"],
            region_name=REGION,
        )

    @cached_property
    def _sqs(self) -> Any:
        return self._client("sqs")

    @cached_property
    def _dynamodb(self) -> Any:
        return self._client("dynamodb")

    def _client(self, service: str) -> Any:
        return self._session.client(service, endpoint_url=self.endpoint)

    def create_stack(self) -> None:
        """Create the stack, without the rules that would send messages of their own."""
        client = self._client("cloudformation")
        state = {"ParameterKey": "ScheduleState", "ParameterValue": "DISABLED"}
        client.create_stack(
            StackName=STACK,
            TemplateBody=TEMPLATE.read_text(),
            Parameters=[state],
            Capabilities=["CAPABILITY_NAMED_IAM"],
        )
        end = time.monotonic() + DRAIN_S_MAX
        while True:
            [found] = client.describe_stacks(StackName=STACK)["Stacks"]
            if found["StackStatus"] == "CREATE_COMPLETE":
                return
            if time.monotonic() > end or not found["StackStatus"].endswith("IN_PROGRESS"):
                raise Failed(f"the stack is {found['StackStatus']}")
            time.sleep(0.1)

    def environment(self, queue: str, endpoint: str) -> dict[str, str]:
        """The settings of a fleet that consumes this queue, and reaches the account at this
        endpoint."""
        base = f"{endpoint}/000000000000"
        return {
            **SQS_KEYS,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ENDPOINT_URL": endpoint,
            "RUNS_FLEET_TERMINATION_QUEUE_URL": f"{base}/{queue}",
            "RUNS_FLEET_HOUSEKEEPING_QUEUE_URL": f"{base}/runs-fleet-housekeeping",
            "RUNS_FLEET_JOBS_TABLE": TABLE,
            "RUNS_FLEET_POOLS_TABLE": "runs-fleet-pools",
        }

    def fill(self, count: int) -> Turn:
        """Store so many running jobs, the parameters of their runners, and the messages that end
        them."""
        turn = Turn(f"{QUEUE}-{uuid.uuid4().hex[:8]}", [uuid.uuid4().hex for _ in range(count)])
        ids = turn.ids
        runners = {id_: f"i-{uuid.uuid4().hex[:17]}" for id_ in ids}
        ssm = self._client("ssm")
        for batch in _batches(ids, PUT_MAX):
            puts = [{"PutRequest": {"Item": _record(id_, runners[id_])}} for id_ in batch]
            self._dynamodb.batch_write_item(RequestItems={TABLE: puts})
        for runner in runners.values():
            ssm.put_parameter(
                Name=f"/runs-fleet/runners/{runner}/config", Value="{}", Type="String"
            )
        url = self._create_queue(turn.queue)
        for batch in _batches(ids, 10):
            entries = [
                {"Id": str(number), "MessageBody": _message(id_, runners[id_])}
                for number, id_ in enumerate(batch)
            ]
            self._sqs.send_message_batch(QueueUrl=url, Entries=entries)
        return turn

    def _create_queue(self, name: str) -> str:
        """Create a queue with the attributes and tags of the stack's."""
        like = self._sqs.get_queue_url(QueueName=QUEUE)["QueueUrl"]
        names = ["MessageRetentionPeriod", "ReceiveMessageWaitTimeSeconds"]
        names += ["RedrivePolicy", "VisibilityTimeout"]
        given = self._sqs.get_queue_attributes(QueueUrl=like, AttributeNames=names)["Attributes"]
        task = {"holdfast.task": "termination"}
        url: str = self._sqs.create_queue(QueueName=name, Attributes=given, tags=task)["QueueUrl"]
        return url

    def depth(self, queue: str) -> int:
        """Messages of a queue, those in flight included."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        url = self._sqs.get_queue_url(QueueName=queue)["QueueUrl"]
        answer = self._sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)
        return sum(int(answer["Attributes"][name]) for name in names)

    def unfinished(self, ids: list[str]) -> int:
        """How many of these jobs have no completed record."""
        done = 0
        for batch in _batches(ids, 100):
            keys = [{"job_id": {"S": id_}} for id_ in batch]
            answer = self._dynamodb.batch_get_item(RequestItems={TABLE: {"Keys": keys}})
            done += sum(item["status"] == {"S": "completed"} for item in answer["Responses"][TABLE])
        return len(ids) - done


class _Bench:
    """The measurements."""

    def __init__(
        self, sizes: Sizes, report: Report, log: Log, account: Account, folder: Path
    ) -> None:
        self._sizes = sizes
        self._report = report
        self._log = log
        self._account = account
        self._folder = folder

    async def rates(self) -> None:
        """Drain the queue by both programs in turns, from their start until it is empty."""
        rates: dict[str, list[float]] = {"fleet": [], "bare loop": []}
        count = self._sizes.messages
        for turn in range(self._sizes.repeats):
            for name in sorted(rates, reverse=bool(turn % 2)):
                self._log(f"terminations, turn {turn + 1} of {self._sizes.repeats}: {name}")
                drained = await asyncio.to_thread(self._account.fill, count)
                took_s = await self._drain(name, drained, self._account.endpoint)
                rates[name].append(count / took_s)
        self._report.section(
            f"terminations: {count:,} messages, medians of {self._sizes.repeats}; the reference is"
            " a bare loop of the same AWS calls"
        )
        add_rates(self._report, rates["fleet"], rates["bare loop"])

    async def burst(self) -> None:
        """Handle one burst through a proxy that counts the calls."""
        count = self._sizes.burst
        self._log(f"a burst of {count:,} terminations")
        drained = await asyncio.to_thread(self._account.fill, count)
        async with counting_proxy(int(self._account.endpoint.rpartition(":")[2])) as (port, counts):
            await self._drain("fleet", drained, f"http://127.0.0.1:{port}")
            found = Counter(counts)
        dead = await asyncio.to_thread(self._account.depth, f"{QUEUE}-dlq")
        self._report.section(
            f"API calls of a burst of {count:,} terminations, the start of the fleet included"
        )
        add_calls(self._report, found, count)
        self._report.section(f"the burst of {count:,} terminations; the reference is the bound")
        add_lapses(self._report, found["UpdateItem"] - count, dead)

    async def _drain(self, name: str, turn: Turn, endpoint: str) -> float:
        """Seconds from the start of a program until it has handled the messages of a turn."""
        environment = self._account.environment(turn.queue, endpoint)
        if name == "fleet":
            control = f"sqlite:///{self._folder / 'control.db'}"
            holdfast = str(Path(sys.executable).with_name("holdfast"))
            line = [holdfast, "fleet", "run", "--url", control, "--json"]
        else:
            url = environment["RUNS_FLEET_TERMINATION_QUEUE_URL"]
            line = [sys.executable, "-m", "bench.raw_fleet", url, TABLE]
        started = time.monotonic()
        async with _program(line, environment) as process:
            while await asyncio.to_thread(self._account.depth, turn.queue):
                if process.returncode is not None:
                    raise Failed(f"{name} ended with status {process.returncode}")
                if time.monotonic() - started > DRAIN_S_MAX:
                    raise Failed(f"{name} did not empty the queue in {DRAIN_S_MAX} s")
                await asyncio.sleep(0.05)
            took_s = time.monotonic() - started
        left = await asyncio.to_thread(self._account.unfinished, turn.ids)
        if left:
            raise Failed(f"{name} left {left} of {len(turn.ids)} jobs unfinished")
        return took_s


@contextlib.asynccontextmanager
async def _program(
    line: list[str], environment: dict[str, str]
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a program for the duration of the block; then let it finish, within a minute."""
    kept = {
        name: text
        for name, text in os.environ.items()
        if not name.startswith(("HOLDFAST_", "AWS_", "RUNS_FLEET_"))
    }
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    process = await asyncio.create_subprocess_exec(
        *line,
        env={**kept, **environment, "PYTHONPATH": os.pathsep.join(path)},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), STOP_S_MAX)
            except TimeoutError:
                process.kill()
                await process.wait()


def add_rates(report: Report, ours: list[float], bare: list[float]) -> None:
    """Add the medians, ours compared with the bare loop."""
    reference = statistics.median(bare)
    report.rate("fleet", "bare loop", reference, unit="messages/s")
    report.rate(
        "fleet",
        "holdfast fleet run",
        statistics.median(ours),
        unit="messages/s",
        reference=reference,
        goal=BARE_GOAL,
    )


def add_calls(report: Report, counts: Counter[str], messages: int) -> None:
    """Add the calls of each action, and of all."""
    for action, count in counts.most_common():
        report.cost("fleet", action, count / messages, unit="calls/message")
    report.cost("fleet", "all", counts.total() / messages, unit="calls/message")


def add_lapses(report: Report, lapses: int, dead: int) -> None:
    """Add the messages that were handled again, because they had become visible again, and those
    that ended as dead letters."""
    for metric, value in (("visibility lapses", lapses), ("dead letters", dead)):
        report.cost("fleet", metric, value, unit="messages", reference=LAPSES_MAX, goal=1)


def _record(job_id: str, runner: str) -> dict[str, Any]:
    return {"job_id": {"S": job_id}, "instance_id": {"S": runner}, "status": {"S": "running"}}


def _message(job_id: str, runner: str) -> str:
    fields = {
        "instance_id": runner,
        "job_id": job_id,
        "status": "success",
        "exit_code": 0,
        "duration_seconds": 123,
        "started_at": "2025-11-25T10:00:00Z",
        "completed_at": "2025-11-25T10:02:03Z",
    }
    return msgspec.json.encode(fields).decode()


def _batches(values: list[str], size: int) -> Iterator[list[str]]:
    return (values[start : start + size] for start in range(0, len(values), size))
