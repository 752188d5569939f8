"""Kill the server under the load of SQS clients, every second process with boto3. The clients send,
receive, delete and hide messages of a standard and a FIFO queue, and move tasks forward dead
letters. Then the queues drain and the recorded calls are checked: no acknowledged message is lost,
none comes back after its delete, groups keep their order, and a message has one holder at a time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from torture import results
from torture.message_history import HistoryEnd, MessageCall, Violation, check, read_calls
from torture.private_server import PrivateServer
from torture.sqs_client import (
    ACCOUNT,
    DEAD,
    MOVED,
    ORDERS,
    QUEUES,
    WORK,
    ClientPlan,
    RawCaller,
    url,
)
from torture.stores import ENGINES, store

SECONDS_EACH = 1.2
"""Time between two kills, without the start of the server."""
DRAIN_S_MAX = 120.0
RECEIVE_COUNT_MAX = 2
MOVES_PER_S = 20
"""Slow, so that a move task runs while the server is killed."""
COUNTS = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
)


def main(argv: list[str]) -> int:
    given = _parser().parse_args(argv)
    names = ENGINES if given.engine == "both" else (given.engine,)
    return results.conclude("sqs", [_torture(name, given) for name in names], given)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="hf torture sqs", description=__doc__)
    parser.add_argument(
        "--engine",
        choices=(*ENGINES, "both"),
        default="both",
        help="store behind the server [default: both]",
    )
    parser.add_argument(
        "--clients", type=int, default=4, metavar="N", help="client processes [default: 4]"
    )
    parser.add_argument(
        "--receivers",
        type=int,
        default=16,
        metavar="N",
        help="receivers in all processes together [default: 16]",
    )
    parser.add_argument(
        "--kills", type=int, default=50, metavar="N", help="kills of the server [default: 50]"
    )
    results.add_options(parser)
    return parser


def _torture(name: str, given: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    seconds = given.kills * SECONDS_EACH if given.seconds is None else given.seconds
    replay = (
        f"--engine {name} --clients {given.clients} --receivers {given.receivers}"
        f" --kills {given.kills} --seconds {seconds:g}"
    )
    print(f"./hf torture sqs {replay} --seed {given.seed}", flush=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="holdfast-torture-") as home:
        histories = Path(home, "histories")
        histories.mkdir()
        with (
            store(name, Path(home)) as behind,
            PrivateServer(behind.url, Path(home), upkeep=True) as server,
        ):
            run = SqsRun(server, histories, given, seconds)
            end = run.run()
            (histories / "server.log").write_text(server.log)
        (histories / "end.json").write_bytes(msgspec.json.encode(end))
        calls = read_calls(histories)
        violations = check(calls, end)
        results.keep_histories(histories, name, given, wrong=bool(violations), checked=False)
    for violation in violations[:10]:
        print(violation)
    figures = {
        "engine": name,
        "clients": given.clients,
        "receivers": given.receivers,
        "seed": given.seed,
        "seconds": round(time.monotonic() - started, 1),
        "server_kills": run.kills,
        "moves": len(end.moves),
        "interrupted_moves": run.interrupted_moves,
        **_figures(calls, violations),
    }
    print(_summary(figures), flush=True)
    return figures, not violations


class SqsRun:
    """One run: create the queues, kill the server under load, drain."""

    def __init__(
        self, server: PrivateServer, directory: Path, given: argparse.Namespace, seconds: float
    ) -> None:
        self._server = server
        self._port = int(server.url.rpartition(":")[2])
        self._directory = directory
        self._given = given
        self._seconds = seconds
        self._rng = random.Random(given.seed)
        self._moves: dict[str, str] = {}
        self.kills = 0
        self.interrupted_moves = 0

    def run(self) -> HistoryEnd:
        """Return the state of the queues at the end."""
        asyncio.run(self._create_queues())
        with self._clients() as clients:
            self._kill_server(clients)
            for client in clients:
                assert client.stdin is not None
                client.stdin.write("drain\n")
                client.stdin.flush()
            left = self._drain(clients)
        return HistoryEnd(left=left, moves=list(self._moves.values()))

    async def _create_queues(self) -> None:
        caller = RawCaller(self._port)
        for queue in QUEUES:
            attributes = {"FifoQueue": "true"} if queue == ORDERS else {}
            if queue == WORK:
                continue
            await caller.call("CreateQueue", QueueName=queue, Attributes=attributes)
        policy = {"deadLetterTargetArn": _arn(DEAD), "maxReceiveCount": RECEIVE_COUNT_MAX}
        attributes = {"RedrivePolicy": json.dumps(policy)}
        await caller.call("CreateQueue", QueueName=WORK, Attributes=attributes)

    @contextmanager
    def _clients(self) -> Iterator[list[subprocess.Popen[str]]]:
        clients: list[subprocess.Popen[str]] = []
        count, receivers = self._given.clients, self._given.receivers
        try:
            for number in range(count):
                first, last = number * receivers // count, (number + 1) * receivers // count
                plan = ClientPlan(
                    name=f"c{number}",
                    port=self._port,
                    seed=str(self._given.seed),
                    directory=str(self._directory),
                    producers=1,
                    receivers=last - first,
                    first_receiver=first,
                    boto3=number % 2 == 1,
                )
                command = [sys.executable, "-m", "torture.sqs_client"]
                command.append(msgspec.json.encode(plan).decode())
                # A client ends when its input closes, so also with this process.
                clients.append(subprocess.Popen(command, stdin=subprocess.PIPE, text=True))
            yield clients
            for client in clients:
                assert client.stdin is not None
                client.stdin.close()
            for client in clients:
                client.wait(60)
        finally:
            for client in clients:
                client.kill()
                client.wait()

    def _kill_server(self, clients: list[subprocess.Popen[str]]) -> None:
        share = self._seconds / max(1, self._given.kills)
        for _ in range(self._given.kills):
            _sleep_watching(share * self._rng.uniform(0.5, 1.5), clients)
            asyncio.run(self._tend_moves(start=True))
            self.interrupted_moves += "RUNNING" in self._moves.values()
            self._server.kill()
            self.kills += 1
            self._server.restart()
        _sleep_watching(share, clients)

    def _drain(self, clients: list[subprocess.Popen[str]]) -> dict[str, int]:
        """Wait until no queue has a message; return how many are left in each."""
        end = time.monotonic() + DRAIN_S_MAX
        while True:
            left = asyncio.run(self._tend_moves(start=False))
            is_moving = bool(left[DEAD]) or "RUNNING" in self._moves.values()
            if (not any(left.values()) and not is_moving) or time.monotonic() > end:
                return left
            if left[DEAD] and "RUNNING" not in self._moves.values():
                asyncio.run(self._tend_moves(start=True))
            _sleep_watching(0.5, clients)

    async def _tend_moves(self, *, start: bool) -> dict[str, int]:
        """Note the state of the move tasks; start one if none runs. Returns the numbers of
        messages."""
        caller = RawCaller(self._port)
        await self._note_moves(caller)
        if start and "RUNNING" not in self._moves.values():
            await caller.call(
                "StartMessageMoveTask",
                SourceArn=_arn(DEAD),
                DestinationArn=_arn(MOVED),
                MaxNumberOfMessagesPerSecond=MOVES_PER_S,
            )
            await self._note_moves(caller)
        left = {}
        for queue in QUEUES:
            request = {"QueueUrl": url(queue), "AttributeNames": COUNTS}
            answer = await caller.call("GetQueueAttributes", **request)
            left[queue] = sum(int(each) for each in answer["Attributes"].values())
        return left

    async def _note_moves(self, caller: RawCaller) -> None:
        request = {"SourceArn": _arn(DEAD), "MaxResults": 10}
        answer = await caller.call("ListMessageMoveTasks", **request)
        for task in answer.get("Results", ()):
            self._moves[str(task["StartedTimestamp"])] = task["Status"]


def _arn(queue: str) -> str:
    return f"arn:aws:sqs:us-east-1:{ACCOUNT}:{queue}"


def _sleep_watching(seconds: float, clients: list[subprocess.Popen[str]]) -> None:
    """Sleep, and fail if a client ended by itself: this test has a bug."""
    time.sleep(seconds)
    for client in clients:
        if client.poll() is not None:
            raise RuntimeError("a client ended by itself; see its traceback above")


def _figures(calls: list[MessageCall], violations: list[Violation]) -> dict[str, int]:
    done = Counter((call.action, call.result) for call in calls)
    broken = Counter(violation.promise for violation in violations)
    return {
        "sent": done["send", "ok"],
        "received": done["receive", "ok"],
        "deleted": done["delete", "ok"],
        "unknown": sum(count for (_, result), count in done.items() if result == "unknown"),
        "moved": len({call.body for call in calls if call.queue == MOVED}),
        "lost": broken["lost"],
        "resurrected": broken["resurrected"],
        "held_twice": broken["held twice"],
        "out_of_order": broken["order"],
        "violations": len(violations),
    }


def _summary(figures: dict[str, Any]) -> str:
    return (
        f"SQS on {figures['engine']}: killed {figures['server_kills']} times under"
        f" {figures['clients']} processes with {figures['receivers']} receivers;"
        f" {figures['sent']:,} sent, {figures['received']:,} received, {figures['deleted']:,}"
        f" deleted, {figures['moved']:,} moved by {figures['moves']} tasks,"
        f" {figures['interrupted_moves']} of the kills during one; {figures['unknown']:,} calls"
        f" without an answer; {figures['violations']} violations"
    )
