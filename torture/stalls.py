"""Notes stalls of the whole machine, in which timeouts end through nobody's fault."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

from holdfast.conformance.chaos.verify import Fault

STALL_S = 0.5


@contextlib.contextmanager
def noting_stalls(faults: list[Fault]) -> Iterator[None]:
    """Append a fault for every stall during the block."""
    over = threading.Event()

    def watch() -> None:
        before = time.monotonic_ns()
        while not over.wait(0.02):
            now = time.monotonic_ns()
            if now - before > STALL_S * 1e9:
                faults.append(Fault("stall", "machine", before, until_ns=now))
            before = now

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
