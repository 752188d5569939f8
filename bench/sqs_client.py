"""Raw clients of an SQS server, each a process: `python -m bench.sqs_client ROLE PORT ARGUMENT`.

They print their results as lines of JSON. They parse as little as possible, so that the server is
the slowest part.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from typing import Any

import msgspec

from bench.server import TEXT

ACCOUNT = "000000000000"
BATCH = 10
CONNECTIONS = 16
"""Connections of each process in the cycle."""
CREDENTIAL = "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/sqs/aws4_request"
_HANDLE = re.compile(rb'"ReceiptHandle": ?("[^"]*")')
_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
_CLOSE = re.compile(rb"(?i)\r\nconnection: *close")


class SqsConnection:
    """One connection, with one request at a time. moto wants a new one for each request."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._is_closed = False

    async def open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._is_closed = False

    def send(self, action: str, request: Any) -> None:
        """Send a request: an object, or its JSON."""
        body = request if isinstance(request, bytes) else msgspec.json.encode(request)
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers(action).items())
        head = f"POST / HTTP/1.1\r\nhost: localhost:{self._port}\r\n{lines}"
        self._writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)

    async def answer(self) -> bytes:
        """The body of the next answer. Raises RuntimeError if it is an error."""
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(head)
        assert length is not None, "the response has no content-length"
        body = await self._reader.readexactly(int(length[1]))
        if head[9:12] != b"200":
            raise RuntimeError(f"the server answered {head[9:12].decode()}: {body.decode()[:300]}")
        if _CLOSE.search(head):
            self.close()
        return body

    async def call(self, action: str, request: Any) -> bytes:
        if self._is_closed:
            await self.open()
        self.send(action, request)
        return await self.answer()

    def close(self) -> None:
        self._is_closed = True
        self._writer.close()


def headers(action: str) -> dict[str, str]:
    """The headers of an action. moto and ministack find the service by the credential."""
    return {
        "content-type": "application/x-amz-json-1.0",
        "x-amz-target": f"AmazonSQS.{action}",
        "authorization": f"{CREDENTIAL}, SignedHeaders=host, Signature=00",
    }


def queue_url(port: int, queue: str) -> str:
    return f"http://localhost:{port}/{ACCOUNT}/{queue}"


def one_message(url: str) -> bytes:
    """The request that sends one message, of the same size as in the other benchmarks."""
    return msgspec.json.encode({"QueueUrl": url, "MessageBody": TEXT})


def ten_messages(url: str) -> bytes:
    """The request that sends ten messages."""
    entries = [{"Id": str(number), "MessageBody": TEXT} for number in range(BATCH)]
    return msgspec.json.encode({"QueueUrl": url, "Entries": entries})


async def create_queue(port: int, queue: str) -> str:
    """Create a queue and return its URL, with the account that the server gave it."""
    connection = SqsConnection(port)
    await connection.open()
    answer = msgspec.json.decode(await connection.call("CreateQueue", {"QueueName": queue}))
    connection.close()
    url: str = answer["QueueUrl"]
    return url


async def cycle(port: int, seconds: float) -> None:
    """For each input line, send, receive and delete in tens; print the number of messages done."""
    url = await create_queue(port, "cycle")
    _print("ready")
    while await asyncio.to_thread(sys.stdin.readline):
        # New ones for each turn: the server closes connections that were idle for long.
        connections = [SqsConnection(port) for _ in range(CONNECTIONS)]
        for connection in connections:
            await connection.open()
        end = time.monotonic() + seconds
        done = await asyncio.gather(*(_cycle(each, url, end) for each in connections))
        for connection in connections:
            connection.close()
        _print(sum(done))


async def _cycle(connection: SqsConnection, url: str, end: float) -> int:
    quoted = msgspec.json.encode(url)
    send = ten_messages(url)
    receive = msgspec.json.encode({"QueueUrl": url, "MaxNumberOfMessages": BATCH})
    done = 0
    while time.monotonic() < end:
        await connection.call("SendMessageBatch", send)
        handles = _HANDLE.findall(await connection.call("ReceiveMessage", receive))
        if not handles:
            continue
        entries = b",".join(
            b'{"Id":"%d","ReceiptHandle":%s}' % entry for entry in enumerate(handles)
        )
        delete = b'{"QueueUrl":%s,"Entries":[%s]}' % (quoted, entries)
        answer = await connection.call("DeleteMessageBatch", delete)
        assert answer.count(b'"Id"') == len(handles), answer
        done += len(handles)
    return done


async def waker(port: int, times: float) -> None:
    """Wait for one message after the other, and print when each arrived, by the monotonic clock."""
    url = await create_queue(port, "wake")
    connection = SqsConnection(port)
    await connection.open()
    request = msgspec.json.encode({"QueueUrl": url, "WaitTimeSeconds": 20})
    _print("ready")
    for _ in range(int(times)):
        handles = _HANDLE.findall(await connection.call("ReceiveMessage", request))
        at = time.monotonic_ns()
        [handle] = handles
        delete = b'{"QueueUrl":%s,"ReceiptHandle":%s}' % (msgspec.json.encode(url), handle)
        await connection.call("DeleteMessage", delete)
        _print(at)


async def pollers(port: int, count: float) -> None:
    """Begin long polls; then, for each input line, print how many have received a message."""
    url = await create_queue(port, "poll")
    request = msgspec.json.encode({"QueueUrl": url, "WaitTimeSeconds": 20})
    answers: list[bytes] = []

    async def poll() -> None:
        connection = SqsConnection(port)
        await connection.open()
        connection.send("ReceiveMessage", request)
        sent.release()
        answers.append(await connection.answer())

    sent = asyncio.Semaphore(0)
    polls = []
    for _ in range(int(count)):
        polls.append(asyncio.create_task(poll()))
        await sent.acquire()
    _print("ready")
    while await asyncio.to_thread(sys.stdin.readline):
        failed = [each.exception() for each in polls if each.done() and each.exception()]
        if failed:
            raise RuntimeError(f"{len(failed)} polls failed, the first with {failed[0]}")
        _print(len([each for each in answers if b"ReceiptHandle" in each]))


def _print(value: Any) -> None:
    print(msgspec.json.encode(value).decode(), flush=True)


async def main(role: str, port: str, argument: str) -> None:
    roles = {"cycle": cycle, "waker": waker, "pollers": pollers}
    await roles[role](int(port), float(argument))


if __name__ == "__main__":
    import uvloop

    uvloop.run(main(*sys.argv[1:]))
