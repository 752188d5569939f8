"""The launcher restarts workers that die, not those that cannot start, and reports their names."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.worker.launcher import _keep_running as keep_running
from holdfast.worker.launcher import as_program
from holdfast.worker.managed_process import ManagedProcess
from holdfast.worker.options import WorkerOptions
from tests.worker.live_workers import Place, until


async def test_invalid_options_end_it(place: Place) -> None:
    """Also beside workers that can run: it would fail again."""
    launcher = place.start(
        "holdfast.worker.launcher",
        [place.options(name="w"), place.options(name="x", target="missing:app")],
    )
    await until(lambda: launcher.poll() is not None, "the launcher to end")
    assert launcher.returncode == 2
    assert "missing:app cannot be imported" in place.stderr()
    await place.nobody_left()


@pytest.mark.parametrize("processes", [0, 1])
async def test_an_application_that_cannot_be_imported_ends_it(place: Place, processes: int) -> None:
    (place.folder / "broken.py").write_text("\nraise RuntimeError('half written')")
    options = place.options(target="broken:app", processes=processes)
    launcher = place.start("holdfast.worker.launcher", [options])
    await until(lambda: launcher.poll() is not None, "the launcher to end")
    assert launcher.returncode == 2
    told = "broken:app cannot be imported: RuntimeError: half written at broken.py:2 in <module>"
    assert told in place.stderr()


def test_a_process_that_cannot_be_started_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The launcher must outlive it: its other workers end with it."""
    post = ManagedProcess(as_program(WorkerOptions(url="memory:")))
    descriptors = len(os.listdir("/proc/self/fd"))  # noqa: PTH208

    def refuse(*_args: object, **_named: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", refuse)
        assert keep_running(post, stopping=False) == 0
    assert (post.process, post.ready, post.over) == (None, -1, False)
    assert post.start_at > time.monotonic()
    assert len(os.listdir("/proc/self/fd")) == descriptors  # noqa: PTH208


async def test_a_name_in_use_ends_it(place: Place) -> None:
    await place.worker(name="w")
    launcher = place.start("holdfast.worker.launcher", [place.options(name="w")])
    await until(lambda: launcher.poll() is not None, "the launcher to end")
    assert launcher.returncode == 2
    assert "a worker named w is already running" in place.stderr()


async def test_an_engine_out_of_reach_is_tried_again(place: Place) -> None:
    options = place.options(name="w")
    nowhere = type(options)(url="postgresql://nobody@127.0.0.1:9/none", name="w")
    launcher = place.start("holdfast.worker.launcher", [nowhere])
    await until(lambda: place.stderr().count("restarting it in") > 1, "two tries")
    assert launcher.poll() is None
    launcher.terminate()
    await until(lambda: launcher.poll() is not None)
    assert launcher.returncode == 0


async def test_a_worker_that_dies_starts_again_under_its_name(place: Place) -> None:
    launcher = await place.launcher(place.options(name="w"))
    ids = set()
    for _ in range(2):
        (view,) = await place.workers()
        ids.add(view.record.id)
        os.kill(view.record.pid, signal.SIGKILL)

        async def another() -> bool:
            views = await place.workers()
            return any(view.record.id not in ids for view in views)

        await until(another, "its next start")
    await place.enqueue("note", "a", to="w")
    (job,) = await place.finished("a")
    assert (job.worker, launcher.poll()) == ("w", None)


def test_a_signal_that_came_while_a_process_was_started() -> None:
    """It is passed on afterwards, once."""
    post = ManagedProcess.__new__(ManagedProcess)
    post.passed = 0
    post.process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    post.pass_signals(0)
    assert post.passed == 0
    post.pass_signals(1)
    assert post.process.wait() == -signal.SIGTERM
    post.pass_signals(1)
    post.pass_signals(2)
    assert post.passed == 2


@pytest.mark.parametrize("count", [1, 2])
async def test_the_names_are_reported_when_all_are_ready(place: Place, count: int) -> None:
    code = (
        "import sys, msgspec; from holdfast.worker.launcher import run;"
        "from holdfast.worker.options import WorkerOptions as O;"
        "given = msgspec.json.decode(sys.stdin.buffer.readline(), type=list[O]);"
        "run(given, started=lambda names: open('names', 'w').write(' '.join(names)))"
    )
    path = place.folder / "with_names.py"
    path.write_text(code)
    environment_path = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = f"{place.folder}:{environment_path}"
    try:
        names = [f"w-{number}" for number in range(count)]
        place.start("with_names", [place.options(name=name) for name in names])
        told = place.folder / "names"
        await until(lambda: told.exists() and told.read_text(), "their names")
        assert Path(told).read_text().split() == names
    finally:
        os.environ["PYTHONPATH"] = environment_path
