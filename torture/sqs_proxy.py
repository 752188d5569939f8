"""An HTTP proxy between clients and an SQS endpoint that misbehaves as the service may.

It throttles, loses replies, cuts connections, delays, delivers twice and out of order, and answers
receives as if there were nothing. It writes down every call about messages, with its fault. It runs
in a process of its own, `python -m torture.sqs_proxy`, and ends with its owner.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec

from torture.proxy_process import ProxyProcess, serve_owner
from torture.service_history import FAULTS, ServiceCall

STALL_S = 0.5
DOUBLE_S_MAX = 0.3
"""How long after its delivery a message becomes visible although it is in flight."""
RATES = {
    "throttle": 0.2, "entry": 0.1, "request": 0.1, "reply": 0.2, "half": 0.1, "stall": 0.1,
    "double": 0.1, "shuffle": 0.05, "empty": 0.05,
}  # fmt: skip
"""The shares of the faults. Each hits the next call that it can happen to."""
BODY_BYTES_MAX = 16 * 1024 * 1024
_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
_TARGET = re.compile(rb"(?i)\r\nx-amz-target: *AmazonSQS\.(\w+)")
_NAME = re.compile(r"m-\d+(?:\.then)?")
_CODES = ("ThrottlingException", "RequestThrottled", "ServiceUnavailable")
_MESSAGE_ACTIONS = frozenset(
    "SendMessage SendMessageBatch ReceiveMessage DeleteMessage DeleteMessageBatch"
    " ChangeMessageVisibility ChangeMessageVisibilityBatch".split()
)
OTHERS = 0.1
"""The share of the other actions that a fault may hit: a client makes many of them when it
starts."""
_BATCHES = ("SendMessageBatch", "DeleteMessageBatch", "ChangeMessageVisibilityBatch")


class SqsProxy(ProxyProcess):
    """The running proxy before one endpoint."""

    MODULE = "torture.sqs_proxy"

    def __init__(self, endpoint: str, journal: Path, *, seed: int, every_s: float) -> None:
        super().__init__(endpoint.rpartition(":")[2], journal, seed, every_s)

    @property
    def url(self) -> str:
        """The URL of the endpoint through the proxy."""
        return f"http://127.0.0.1:{self._port}"


class ServiceDice:
    """Draws one fault after the other. A fault is armed at its time and happens at the next call
    that it can happen to, on any connection. At most one of each kind is armed."""

    def __init__(self, seed: int, every_s: float) -> None:
        self.rng = random.Random(seed)
        self._every_s = every_s
        self._armed: set[str] = set()
        self.counts: Counter[str] = Counter()

    async def run(self) -> None:
        """Arm faults until it is cancelled."""
        try:
            while True:
                await asyncio.sleep(self.rng.expovariate(1 / self._every_s))
                self.arm()
        finally:
            self._armed.clear()

    def arm(self) -> None:
        [fault] = self.rng.choices(list(RATES), list(RATES.values()))
        self._armed.add(fault)

    def strike(self, candidates: tuple[str, ...]) -> str:
        """The fault that happens now: the first of these that is armed; empty if none is."""
        fault = next((each for each in candidates if each in self._armed), "")
        if fault:
            self._armed.discard(fault)
            self.counts[fault] += 1
        return fault


def faults_before(action: str, request: dict[str, Any]) -> tuple[str, ...]:
    """The faults that can happen to a call before it is carried out."""
    own: tuple[str, ...] = ()
    if action == "ReceiveMessage":
        own = ("empty",)
    elif action in _BATCHES and len(request.get("Entries", ())) > 1:
        own = ("entry",)
    return (*own, "throttle", "request", "stall")


def faults_after(action: str, answer: dict[str, Any]) -> tuple[str, ...]:
    """The faults that can happen to a call that was carried out."""
    own: tuple[str, ...] = ()
    if action == "ReceiveMessage" and answer.get("Messages"):
        own = ("double", "shuffle") if len(answer["Messages"]) > 1 else ("double",)
    return (*own, "reply", "half")


def name_in(body: str) -> str:
    """The name that every message of a run has in its body; empty if there is none."""
    found = _NAME.search(body)
    return "" if found is None else found[0]


def without_entry(request: dict[str, Any], at: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """A batch without one of its entries, and the failure of that one."""
    entries = list(request["Entries"])
    left_out = entries.pop(at)
    failed = {
        "Id": left_out["Id"],
        "Code": "ServiceUnavailable",
        "Message": "the entry was not processed",
        "SenderFault": False,
    }
    return {**request, "Entries": entries}, failed


class _Cut(Exception):
    """The connection of the client is to end."""


class _Proxy:
    def __init__(self, target_port: int, journal: int, dice: ServiceDice) -> None:
        self._target_port = target_port
        self._journal = journal
        self._dice = dice
        self._names: dict[str, str] = {}
        """By receipt handle."""
        self._tasks: set[asyncio.Task[None]] = set()

    def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._begin(self._serve(reader, writer))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Run it as a task that is referenced until it ends."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far: _Endpoint | None = None
        try:
            far = await _Endpoint.connected(self._target_port)
            while True:
                head, body = await _read_message(reader)
                await self._answer(head, body, far, writer)
        except (_Cut, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return
        finally:
            writer.transport.abort()
            if far is not None:
                far.close()

    async def _answer(
        self, head: bytes, body: bytes, far: _Endpoint, writer: asyncio.StreamWriter
    ) -> None:
        target = _TARGET.search(head)
        action = "" if target is None else target[1].decode()
        request = msgspec.json.decode(body) if action else {}
        began_ns = time.monotonic_ns()
        is_exposed = action in _MESSAGE_ACTIONS or self._dice.rng.random() < OTHERS
        before = self._dice.strike(faults_before(action, request)) if is_exposed else ""
        failed: dict[str, Any] | None = None
        names = self._names_in(request)
        if before == "throttle":
            self._note(action, request, before, names, began_ns)
            writer.write(_refusal(self._dice.rng.choice(_CODES)))
            return await writer.drain()
        if before == "request":
            self._note(action, request, before, names, began_ns)
            raise _Cut
        if before == "empty":
            self._note(action, request, before, names, began_ns)
            writer.write(_response(b"{}"))
            return await writer.drain()
        if before == "stall":
            await asyncio.sleep(STALL_S)
        if before == "entry":
            at = self._dice.rng.randrange(len(request["Entries"]))
            left_out = request["Entries"][at]
            names = self._names_in({"Entries": [left_out]})
            self._note(action, request, before, names, began_ns)
            request, failed = without_entry(request, at)
            head, body = _with_body(head, msgspec.json.encode(request))
            names = self._names_in(request)
            before = ""
        far_head, far_body = await far.ask(head, body)
        if not action or far_head[9:12] != b"200":
            self._note(action, request, before, names, began_ns)
            writer.write(far_head + far_body)
            return await writer.drain()
        answer: dict[str, Any] = msgspec.json.decode(far_body) if far_body else {}
        names += self._learn(answer)
        after = self._dice.strike(faults_after(action, answer)) if is_exposed else ""
        if after == "shuffle":
            self._dice.rng.shuffle(answer["Messages"])
        if failed is not None:
            answer.setdefault("Failed", []).append(failed)
        if after == "shuffle" or failed is not None:
            far_body = msgspec.json.encode(answer)
            far_head, far_body = _with_body(far_head, far_body)
        self._note(action, request, after or before, names, began_ns)
        if after == "reply":
            raise _Cut
        if after == "half":
            whole = far_head + far_body
            writer.write(whole[: len(far_head) + len(far_body) // 2])
            await writer.drain()
            raise _Cut
        if after == "double":
            self._deliver_again(head, request, answer)
        writer.write(far_head + far_body)
        return await writer.drain()

    def _deliver_again(self, head: bytes, request: dict[str, Any], answer: dict[str, Any]) -> None:
        """Make a delivered message visible soon, without a word to the client that has it."""
        message = self._dice.rng.choice(answer["Messages"])
        change = {
            "QueueUrl": request["QueueUrl"],
            "ReceiptHandle": message["ReceiptHandle"],
            "VisibilityTimeout": 0,
        }
        pause_s = self._dice.rng.random() * DOUBLE_S_MAX
        self._begin(self._change_later(head, change, pause_s))

    async def _change_later(self, head: bytes, change: dict[str, Any], pause_s: float) -> None:
        await asyncio.sleep(pause_s)
        target = b"\r\nx-amz-target: AmazonSQS.ChangeMessageVisibility"
        head = _TARGET.sub(target, head, count=1)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            far = await _Endpoint.connected(self._target_port)
            began_ns = time.monotonic_ns()
            await far.ask(*_with_body(head, msgspec.json.encode(change)))
            far.close()
            name = self._names.get(change["ReceiptHandle"], "")
            self._note("ChangeMessageVisibility", change, "double", [name], began_ns)

    def _names_in(self, request: dict[str, Any]) -> list[str]:
        """The names of the messages that a request sends, or whose handles it has."""
        entries = request.get("Entries") or [request]
        found: list[str] = []
        for entry in entries:
            if "MessageBody" in entry:
                found.append(name_in(entry["MessageBody"]))
            elif "ReceiptHandle" in entry:
                found.append(self._names.get(entry["ReceiptHandle"], ""))
        return found

    def _learn(self, answer: dict[str, Any]) -> list[str]:
        found: list[str] = []
        for message in answer.get("Messages") or ():
            name = self._names[message["ReceiptHandle"]] = name_in(message.get("Body", ""))
            found.append(name)
        return found

    def _note(
        self, action: str, request: dict[str, Any], fault: str, names: list[str], began_ns: int
    ) -> None:
        if not names and not fault:
            return
        call = ServiceCall(
            action=action,
            queue=str(request.get("QueueUrl", "")).rpartition("/")[2],
            fault=fault,
            names=names,
            began_ns=began_ns,
            ended_ns=time.monotonic_ns(),
        )
        os.write(self._journal, msgspec.json.encode(call) + b"\n")


class _Endpoint:
    """A connection to the endpoint behind the proxy."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connected(cls, port: int) -> _Endpoint:
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=BODY_BYTES_MAX))

    async def ask(self, head: bytes, body: bytes) -> tuple[bytes, bytes]:
        self._writer.write(head + body)
        await self._writer.drain()
        return await _read_message(self._reader)

    def close(self) -> None:
        self._writer.transport.abort()


async def _read_message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = _LENGTH.search(head)
    return head, await reader.readexactly(int(length[1])) if length else b""


def _with_body(head: bytes, body: bytes) -> tuple[bytes, bytes]:
    return _LENGTH.sub(b"\r\ncontent-length: %d" % len(body), head, count=1), body


def _refusal(code: str) -> bytes:
    error = {"__type": f"com.amazonaws.sqs#{code}", "message": "Rate exceeded"}
    status = b"503 Service Unavailable" if code == _CODES[-1] else b"400 Bad Request"
    return _response(msgspec.json.encode(error), status)


def _response(body: bytes, status: bytes = b"200 OK") -> bytes:
    head = b"HTTP/1.1 %s\r\ncontent-type: application/x-amz-json-1.0\r\n" % status
    return b"%scontent-length: %d\r\n\r\n%s" % (head, len(body), body)


async def main(port: str, target_port: str, journal: str, seed: str, every_s: str) -> None:
    assert set(RATES) == set(FAULTS)
    dice = ServiceDice(int(seed), float(every_s))
    file = os.open(journal, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    proxy = _Proxy(int(target_port), file, dice)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", port, limit=BODY_BYTES_MAX)
    await serve_owner(server, dice)


if __name__ == "__main__":
    try:
        asyncio.run(main(*sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
