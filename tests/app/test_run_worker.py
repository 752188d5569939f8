"""`app.run_worker()`: the application finds its own name, and workers run its tasks."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import BlockingHoldfast, Holdfast, JobFilter
from holdfast.app.application import target_of, worker_options
from holdfast.engines.registry import open_engine
from holdfast.errors import UsageError
from holdfast.worker.options import numbered

named = Holdfast("sqlite:///never.db")
blocking = BlockingHoldfast("sqlite:///never.db")


def test_an_application_in_a_module_is_found_by_its_name() -> None:
    assert target_of(named) == f"{__name__}:named"
    assert target_of(blocking._app) == f"{__name__}:blocking"
    assert blocking.handlers == {}


def test_one_without_a_name_cannot_be_imported_by_a_worker() -> None:
    with pytest.raises(UsageError, match="has no name in any module"):
        target_of(Holdfast("sqlite:///never.db"))


def test_options_are_those_of_a_worker() -> None:
    options = worker_options(named, {"processes": 3, "queues": {"mail": 2}})
    assert (options.url, options.target) == ("sqlite:///never.db", f"{__name__}:named")
    assert (options.processes, options.queues) == (3, {"mail": 2})
    wrong: Any
    for wrong in (
        {"processes": "3"},
        {"colour": "red"},
        {"processes": -1},
        {"concurrency": 0},
        {"prefetch": -1},
        {"grace_ms": -1},
        {"heartbeat_ms": 0},
        {"queues": {"mail": 0}},
    ):
        with pytest.raises(UsageError, match="run_worker: "):
            worker_options(named, wrong)


def test_several_workers_of_one_name_are_numbered() -> None:
    options = worker_options(named, {"name": "mail"})
    assert [each.name for each in numbered(options, 2)] == ["mail-1", "mail-2"]
    assert numbered(options, 1) == [options]
    plain = worker_options(named, {})
    assert numbered(plain, 2) == [plain, plain]
    with pytest.raises(UsageError, match="0 workers: start 1 to 256"):
        numbered(options, 0)


def test_jobs_in_memory_are_out_of_a_worker_s_reach() -> None:
    with pytest.raises(UsageError, match="opens the store by its URL"):
        worker_options(Holdfast("memory:"), {})


def test_an_engine_that_was_given_has_no_url_that_a_worker_could_use() -> None:
    """Else the worker would work off whatever the default URL names."""
    app = Holdfast(engine=open_engine("sqlite:///never.db"))
    assert app.url is None
    with pytest.raises(UsageError, match="opens the store by its URL"):
        worker_options(app, {})


SCRIPT = """
import sys
from holdfast import Context, Holdfast

app = Holdfast()

@app.task(queue="sums")
def add(first: int, second: int, *, ctx: Context) -> int:
    if ctx.attempt == 1 and first == 0:
        raise ConnectionError
    ctx.then(shout.job("done"))
    return first + second

@app.task
def relay(text: str) -> str:
    return shout.enqueue(text).id

@app.task
async def async_relay(text: str) -> str:
    return (await shout.aenqueue(text)).id

@app.task(queue="shouts")
async def shout(text: str) -> str:
    return text.upper()

if __name__ == "__main__":
    sys.exit(app.run_worker(processes=1, grace_ms=2_000))
"""


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """Where a worker of the script works."""
    script = tmp_path / "sums.py"
    script.write_text(SCRIPT)
    url = f"sqlite:///{tmp_path}/work.db"
    environment = {**os.environ, "HOLDFAST_URL": url}
    worker = subprocess.Popen([sys.executable, str(script)], cwd=tmp_path, env=environment)
    try:
        yield url
    finally:
        worker.send_signal(signal.SIGTERM)
        code = worker.wait(60)
    assert code == 0


def test_a_script_runs_its_own_workers(url: str) -> None:
    app = Holdfast(url)

    @app.task(name="sums:add", queue="sums", backoff="constant(10ms)")
    def add(first: int, second: int) -> int:
        raise AssertionError("it runs over there")

    assert add.enqueue(1, second=2).result(timeout="60s") == 3
    assert add.enqueue(0, second=2).result(timeout="60s") == 2
    tasks = [job.task for job in app.run(app.find(JobFilter(queue="shouts"))).jobs]
    assert tasks == ["sums:shout", "sums:shout"], "the follow-up of each, in a queue of its own"
    asyncio.run(app.close())


@pytest.mark.parametrize("name", ["relay", "async_relay"])
def test_a_handler_enqueues_where_its_worker_leases(url: str, name: str) -> None:
    app = Holdfast(url)

    @app.task(name=f"sums:{name}")
    def relay(text: str) -> str:
        raise AssertionError("it runs over there")

    id_ = relay.enqueue("a").result(timeout="60s")
    job = app.run(app.get(id_))
    assert job is not None
    assert job.task == "sums:shout"
    assert relay.handle(id_).result(timeout="60s") == "A"
    asyncio.run(app.close())
