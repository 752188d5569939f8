"""A proxy that injects faults runs in a process of its own and ends with its owner. Its owner turns
the faults on and off through a pipe."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, ClassVar, Protocol, Self

from holdfast.conformance.private_server import free_ports


class ProxyProcess:
    """A running proxy, as its owner sees it. Faults begin with `start_faults`."""

    MODULE: ClassVar[str]
    """Its `main` takes the port to listen on, and then `arguments`."""

    def __init__(self, *arguments: object) -> None:
        [self._port] = free_ports(1)
        self._arguments = [str(each) for each in (self._port, *arguments)]
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", self.MODULE, *self._arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._read()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.communicate()

    def start_faults(self) -> None:
        self._ask("on")

    def stop_faults(self) -> Counter[str]:
        """Let everything pass from now on; returns how often each fault was injected."""
        return Counter(self._ask("off"))

    def _ask(self, word: str) -> dict[str, int]:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, int]:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the proxy ended; see its traceback above")
        answer: dict[str, int] = json.loads(line)
        return answer


class Dice(Protocol):
    """Chooses faults while it runs, and counts those that were injected."""

    counts: Counter[str]

    def run(self) -> Coroutine[Any, Any, None]: ...


async def serve_owner(server: asyncio.Server, dice: Dice) -> None:
    """Serve until the owner ends, and inject faults while it wants them."""
    print("{}", flush=True)
    arming: asyncio.Task[None] | None = None
    async with server:
        while word := (await asyncio.to_thread(sys.stdin.readline)).strip():
            if arming is not None:
                arming.cancel()
            arming = asyncio.create_task(dice.run()) if word == "on" else None
            print(json.dumps(dice.counts), flush=True)
