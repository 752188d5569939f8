"""Real workers for tests: started as the launcher does, watched from outside, and all gone at the
end. All their processes bear the test's own marker, so that every survivor is found.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple, TypeVar, overload

import msgspec

from holdfast.app.application import Holdfast
from holdfast.core.model import Job, State, Status
from holdfast.ops.workers import WorkerView
from holdfast.worker import processes
from holdfast.worker.options import WorkerOptions

T = TypeVar("T")

TARGET = f"{Path(__file__).with_name('application.py')}:app"
_TIMEOUT_S = 60.0


@asynccontextmanager
async def alongside(loop: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run a loop beside the test; it must not end by itself, and is cancelled at the end."""
    task = asyncio.create_task(loop)
    yield
    assert not task.done()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


@overload
async def until(look: Callable[[], Awaitable[T]], what: str = "it") -> T: ...


@overload
async def until(look: Callable[[], T], what: str = "it") -> T: ...


async def until(look: Callable[[], Any], what: str = "it") -> Any:
    """Wait until `look` returns something true, and return it; fail after a minute."""
    deadline = monotonic() + _TIMEOUT_S
    while True:
        found = look()
        if isinstance(found, Awaitable):
            found = await found
        if found:
            return found
        assert monotonic() < deadline, f"waited {_TIMEOUT_S:.0f} s in vain for {what}"
        await asyncio.sleep(0.05)


class Entry(NamedTuple):
    """A line of the journal that the tasks of `application` write."""

    word: str
    id: str
    attempt: int
    token: int
    pid: int
    at_ns: int


class Place:
    """A folder with a queue file and a journal, an application for the test, and its workers."""

    def __init__(self, folder: Path, url: str, app: Holdfast) -> None:
        self.folder = folder
        self.url = url
        self.app = app
        self.marker = uuid.uuid4().hex
        self._processes: list[subprocess.Popen[bytes]] = []

    def options(self, **given: Any) -> WorkerOptions:
        plain: dict[str, Any] = {"target": TARGET, "processes": 1, "concurrency": 4}
        quick = {"commands": False, "heartbeat_ms": 500, "prefetch": 0}
        return WorkerOptions(url=self.url, **{**plain, **quick, **given})

    async def worker(self, **given: Any) -> subprocess.Popen[bytes]:
        """Start a supervisor and wait until it is ready to lease."""
        return await self._ready("holdfast.worker.supervisor", self.options(**given), 1)

    async def launcher(self, *workers: WorkerOptions) -> subprocess.Popen[bytes]:
        return await self._ready("holdfast.worker.launcher", list(workers), len(workers))

    def start(self, module: str, given: WorkerOptions | list[WorkerOptions]) -> Any:
        with (self.folder / "stderr").open("ab") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-m", module],
                stdin=subprocess.PIPE,
                stderr=stderr,
                env={**os.environ, "HOLDFAST_TEST": self.marker},
                cwd=self.folder,
            )
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(given) + b"\n")
        process.stdin.flush()
        self._processes.append(process)
        return process

    async def enqueue(self, task: str, *ids: str, **options: Any) -> None:
        """Enqueue a job for each id, with this folder as its argument unless there is a payload."""
        payload = options.pop("payload", {"folder": str(self.folder)})
        jobs = [self.app.job(task, payload, id=id_, **options) for id_ in ids]
        receipts = await self.app.enqueue_many(jobs)
        assert all(receipt.status is not Status.REFUSED for receipt in receipts), receipts

    def go(self) -> None:
        (self.folder / "go").touch()

    def journal(self, word: str = "") -> list[Entry]:
        path = self.folder / "journal"
        text = path.read_text() if path.exists() else ""
        # The last line may be on its way: a line that crosses pages arrives in two pieces.
        complete = text.rpartition("\n")[0].splitlines()
        entries = [Entry(**json.loads(line)) for line in complete]
        return [entry for entry in entries if entry.word == word or not word]

    def stderr(self) -> str:
        return (self.folder / "stderr").read_text(errors="replace")

    async def started(self, *ids: str) -> list[Entry]:
        """Wait until each of these jobs has started, as often as it is named."""
        wanted = Counter(ids)
        await until(
            lambda: Counter(entry.id for entry in self.journal("start")) >= wanted,
            f"the start of {ids}",
        )
        return [entry for entry in self.journal("start") if entry.id in wanted]

    async def job(self, id: str) -> Job:
        job = await self.app.get(id)
        assert job is not None
        return job

    async def finished(self, *ids: str) -> list[Job]:
        async def look() -> list[Job]:
            jobs = [await self.job(id_) for id_ in ids]
            return jobs if all(job.state.finished for job in jobs) else []

        return await until(look, f"the end of {ids}")

    async def in_state(self, id: str, state: State) -> Job:
        async def look() -> Job | None:
            job = await self.job(id)
            return job if job.state is state else None

        found = await until(look, f"{id} to be {state}")
        assert found is not None
        return found

    async def workers(self, count: int = 1) -> list[WorkerView]:
        async def look() -> list[WorkerView]:
            found = [view for view in await self.app.workers.all() if view.record.tasks]
            return found if len(found) >= count else []

        return await until(look, f"{count} workers")

    def alive(self, parent: int | None = None) -> list[int]:
        """Living processes that this test's workers started."""
        found = processes.marked({b"HOLDFAST_TEST": self.marker.encode()})
        living = [pid for pid in found if (stat := processes.stat(pid)) and stat.state != "Z"]
        if parent is None:
            return living
        return [pid for pid in living if pid in processes.children(parent)]

    async def nobody_left(self) -> None:
        await until(lambda: not self.alive(), "every process to be gone")

    async def end(self) -> None:
        """End the workers; no process may outlive them, whatever the test did."""
        for process in self._processes:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
            if process.stdin is not None:
                with suppress(BrokenPipeError):
                    process.stdin.close()
            process.terminate()
        await until(lambda: all(process.poll() is not None for process in self._processes))
        try:
            await self.nobody_left()
        finally:
            for pid in self.alive():
                processes.kill(pid)
            print(self.stderr()[-4000:] if (self.folder / "stderr").exists() else "")

    async def _ready(
        self, module: str, given: WorkerOptions | list[WorkerOptions], count: int
    ) -> subprocess.Popen[bytes]:
        before = {view.record.id for view in await self.app.workers.all()}
        process: subprocess.Popen[bytes] = self.start(module, given)

        async def look() -> bool:
            assert process.poll() is None, self.stderr()
            views = await self.app.workers.all()
            return sum(bool(v.record.tasks) for v in views if v.record.id not in before) >= count

        await until(look, "the workers to be ready")
        return process
