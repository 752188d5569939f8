"""A TCP proxy between clients and RabbitMQ that injects faults at chosen frames of AMQP 0-9-1.

It loses confirms and acknowledgements, cuts connections after deliveries and within frames, and
stalls. It runs in a process of its own, `python -m torture.amqp_proxy`, and ends with its owner.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import sys
from collections import Counter
from collections.abc import Iterator
from urllib.parse import urlsplit

from torture.proxy_process import ProxyProcess, serve_owner

KINDS = ("confirm", "ack", "delivery", "cut", "frame", "stall")
"""`confirm`: the broker's answer to a publish is lost. `ack`: that of a consumer is lost, so the
message is delivered again. `delivery`: the connection ends after a delivery. `cut`: it ends
anywhere between frames. `frame`: it ends within a frame. `stall`: nothing passes for a while."""
STALL_S = 0.5
LINGER_S = 0.2
"""After a frame was lost, others pass for up to this time before the connection ends."""
_HEADER = b"AMQP\x00\x00\x09\x01"
_METHOD = 1
_BASIC = b"\x00\x3c"
_DELIVER, _ACK, _NACK = b"\x00\x3c", b"\x00\x50", b"\x00\x78"


class AmqpProxy(ProxyProcess):
    """The running proxy before one broker."""

    MODULE = "torture.amqp_proxy"

    def __init__(self, broker_url: str, *, seed: int, every_s: float) -> None:
        self._parts = urlsplit(broker_url)
        super().__init__(self._parts.port, seed, every_s)

    @property
    def url(self) -> str:
        """The URL of the broker through the proxy."""
        account = self._parts.netloc.rpartition("@")[0]
        return self._parts._replace(netloc=f"{account}@127.0.0.1:{self._port}").geturl()


class FaultDice:
    """Draws one fault after the other. A fault is armed at its time and happens at the next frame
    that it can happen to, on any connection. At most one of each kind is armed."""

    def __init__(self, seed: int, every_s: float) -> None:
        self._rng = random.Random(seed)
        self._every_s = every_s
        self._armed: set[str] = set()
        self.counts: Counter[str] = Counter()

    async def run(self) -> None:
        """Arm faults until it is cancelled."""
        try:
            while True:
                await asyncio.sleep(self._rng.expovariate(1 / self._every_s))
                self._armed.add(self._rng.choice(KINDS))
        finally:
            self._armed.clear()

    def strike(self, candidates: tuple[str, ...]) -> str | None:
        """The fault that happens now: the first of these that is armed."""
        fault = next((each for each in candidates if each in self._armed), None)
        if fault is not None:
            self._armed.discard(fault)
            self.counts[fault] += 1
        return fault

    def linger_s(self) -> float:
        return self._rng.random() * LINGER_S


class Frames:
    """Splits one direction of a connection into the frames of the protocol."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The frames that are complete with this data; the greeting of a client is one too."""
        self._buffer += data
        while True:
            if self._buffer.startswith(_HEADER[:4]):
                size = len(_HEADER)
            elif len(self._buffer) >= 7:
                size = 8 + int.from_bytes(self._buffer[3:7], "big")
            else:
                return
            if len(self._buffer) < size:
                return
            yield bytes(self._buffer[:size])
            del self._buffer[:size]


def faults_at(frame: bytes, *, from_broker: bool) -> tuple[str, ...]:
    """The faults that can happen at this frame."""
    special: tuple[str, ...] = ()
    if frame[0] == _METHOD and frame[7:9] == _BASIC:
        method = frame[9:11]
        if method in (_ACK, _NACK):
            special = ("confirm" if from_broker else "ack",)
        elif method == _DELIVER and from_broker:
            special = ("delivery",)
    return (*special, "cut", "frame", "stall")


class _Proxy:
    def __init__(self, target_port: int, dice: FaultDice) -> None:
        self._target_port = target_port
        self._dice = dice

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            writer.transport.abort()
            return
        pair = (writer, far_writer)
        directions = [
            asyncio.create_task(self._forward(reader, far_writer, from_broker=False)),
            asyncio.create_task(self._forward(far_reader, writer, from_broker=True)),
        ]
        await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        for one in pair:
            one.transport.abort()
        for task in directions:
            task.cancel()
        await asyncio.gather(*directions, return_exceptions=True)

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, from_broker: bool
    ) -> None:
        """Returns when the connection is to end."""
        frames = Frames()
        ends_at: float | None = None
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):
            while True:
                left_s = None if ends_at is None else ends_at - loop.time()
                try:
                    async with asyncio.timeout(left_s):
                        data = await reader.read(65536)
                except TimeoutError:
                    return
                if not data:
                    return
                for frame in frames.feed(data):
                    fault = self._dice.strike(faults_at(frame, from_broker=from_broker))
                    if fault in ("confirm", "ack"):
                        ends_at = loop.time() + self._dice.linger_s()
                        continue
                    if fault == "frame":
                        writer.write(frame[: len(frame) // 2])
                        await writer.drain()
                    if fault in ("cut", "frame"):
                        return
                    if fault == "stall":
                        await asyncio.sleep(STALL_S)
                    if fault == "delivery":
                        # The rest of the message may still pass.
                        ends_at = loop.time() + self._dice.linger_s()
                    writer.write(frame)
                await writer.drain()


async def main(port: str, target_port: str, seed: str, every_s: str) -> None:
    dice = FaultDice(int(seed), float(every_s))
    server = await asyncio.start_server(_Proxy(int(target_port), dice).serve, "127.0.0.1", port)
    await serve_owner(server, dice)


if __name__ == "__main__":
    # A write to the end of a cut connection is no news here.
    logging.disable(logging.WARNING)
    try:
        asyncio.run(main(*sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
