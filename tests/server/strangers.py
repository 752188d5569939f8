"""Strangers who wish no good, in one process: event streams that are only held, heads and bodies
that come drop by drop, and what is malformed, again and again.

It prints how many streams were taken on when all have begun, and after a line on the standard input
how many of these are still open; then it ends.
"""

import asyncio
import resource
import sys
from contextlib import suppress

AT_ONCE = 100
DROP_S = 0.5
HEAD = b"POST /v1/queues/default/jobs HTTP/1.1\r\nhost: localhost\r\n"
MALFORMED = (
    b"\x00\xff\r\n\r\n",
    HEAD + b"content-length: -1\r\n\r\n",
    HEAD + b"content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\n",
    HEAD + b"".join(b"x-%d: y\r\n" % number for number in range(10_000)) + b"\r\n",
    b"GET /v1/queues/" + b"q" * 1_000_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n",
    HEAD
    + b"content-encoding: gzip\r\ncontent-length: 9\r\n\r\n\x1f\x8b\x08\x00\x00\x00\x00\x00\x00",
)


class Strangers:
    def __init__(self, host: str, port: int) -> None:
        self._place = (host, port)
        self._gate = asyncio.Semaphore(AT_ONCE)
        self.held: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def hold(self) -> None:
        async with self._gate:
            with suppress(OSError, asyncio.IncompleteReadError):
                reader, writer = await asyncio.open_connection(*self._place, limit=2**12)
                writer.write(b"GET /v1/events HTTP/1.1\r\nhost: localhost\r\n\r\n")
                head = await reader.readuntil(b"\r\n\r\n")
                if head.startswith(b"HTTP/1.1 200"):
                    self.held.append((reader, writer))
                else:
                    writer.close()

    async def drip(self, begin: bytes, drop: bytes) -> None:
        """Once it was cut off it begins again."""
        while True:
            with suppress(OSError):
                reader, writer = await asyncio.open_connection(*self._place)
                writer.write(begin)
                while not reader.at_eof():
                    await asyncio.sleep(DROP_S)
                    writer.write(drop)
                    await writer.drain()
                writer.close()
            await asyncio.sleep(DROP_S)

    async def send_malformed(self) -> None:
        while True:
            for data in MALFORMED:
                with suppress(OSError):
                    reader, writer = await asyncio.open_connection(*self._place)
                    writer.write(data)
                    await reader.read()
                    writer.close()
                await asyncio.sleep(0.05)


async def main(host: str, port: int, streams: int, slow: int) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    strangers = Strangers(host, port)
    await asyncio.gather(*(strangers.hold() for _ in range(streams)))
    others = [strangers.drip(HEAD, b"x: y\r\n") for _ in range(slow)]
    body = HEAD + b"content-type: application/json\r\ncontent-length: 100000\r\n\r\n"
    others += [strangers.drip(body, b" ") for _ in range(slow)]
    others += [strangers.send_malformed() for _ in range(min(slow, 4))]
    tasks = [asyncio.create_task(each) for each in others]
    print(len(strangers.held), flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    print(sum(not reader.at_eof() for reader, _ in strangers.held), flush=True)
    for task in tasks:
        task.cancel()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], *map(int, sys.argv[2:5])))
