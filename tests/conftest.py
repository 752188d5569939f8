"""Fixtures for every test: an event loop, a clock, stores, a small disk. No policy here."""

import contextlib
import gc
import os
import shutil
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from hypothesis import settings

from holdfast.conformance.private_server import ServiceUnavailable
from holdfast.conformance.rabbitmq_packages import find_programs
from holdfast.conformance.rabbitmq_server import RabbitNode
from holdfast.core.text import counted
from holdfast.engines.base import Engine
from holdfast.engines.postgres import PostgresEngine
from holdfast.engines.registry import open_engine
from holdfast.engines.sqlite.files import FLOOR_BYTES
from holdfast.testing.clock import ManualClock
from tests import services, template
from tests.engines.pg_connections import ReusedConnections
from tests.shared_broker import SharedBroker

# The machine's noise is no property of the code, and a failure must be repeatable elsewhere.
settings.register_profile("holdfast", deadline=None, print_blob=True)
settings.load_profile("holdfast")

# A shell lets what it starts in the background ignore interrupts, and every process would inherit
# that: some tests send one.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Ten thousand tests are half a million objects, all of which stay: looking for garbage among
    them, now or in the middle of a test, finds none and takes half a second each time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


_SHARED = pytest.StashKey[SharedBroker]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_SHARED] = SharedBroker()


@pytest.hookimpl(optionalhook=True)
def pytest_workers_forked(config: pytest.Config) -> None:
    """Answer the workers, which ask this process for the broker."""
    config.stash[_SHARED].serve()


def pytest_unconfigure(config: pytest.Config) -> None:
    template.close()
    config.stash[_SHARED].close()
    report: Any = config.pluginmanager.get_plugin("terminalreporter")
    reasons = [skip.longrepr[2] for skip in report.stats.get("skipped", ())] if report else []
    missing = [reason for reason in reasons if services.MISSING in reason]
    lines = Counter(" ".join(reason.removeprefix("Skipped: ").split()) for reason in missing)
    for why, count in lines.items():
        report.write_line(f"{counted(count, 'test')} did not run. {why}")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(scope="session")
def pg_server_dsn() -> Iterator[str]:
    """One server for this test process, started by the first test that needs it."""
    missing = None
    with contextlib.ExitStack() as stack:
        try:
            yield stack.enter_context(services.postgres_server())
        except ServiceUnavailable as error:
            missing = str(error)
    # Outside of the handler, so that the report is this line and no chain of causes.
    if missing is not None:
        pytest.fail(f"PostgreSQL is missing: {missing}", pytrace=False)


@pytest.fixture(scope="session")
def shared_pg_dsn(pg_server_dsn: str) -> Iterator[str]:
    """A database for all tests of this process that only need a namespace of their own."""
    with services.fresh_database(pg_server_dsn) as dsn:
        yield dsn


@pytest.fixture(scope="session")
def pg_model(pg_server_dsn: str) -> Iterator[str]:
    """The name of a database in which an engine was opened once."""
    with services.fresh_database(pg_server_dsn) as dsn:
        services.open_once(dsn)
        yield urlsplit(dsn).path.removeprefix("/")


@pytest.fixture
def pg_dsn(pg_server_dsn: str, pg_model: str) -> Iterator[str]:
    """A database of this test's own with the tables of the engine: copying them takes a tenth of
    the time that it takes to make them."""
    with services.fresh_database(pg_server_dsn, like=pg_model) as dsn:
        services.name_anew(dsn)
        yield dsn


@pytest.fixture
def empty_pg_dsn(pg_server_dsn: str) -> Iterator[str]:
    """A database of this test's own with nothing in it."""
    with services.fresh_database(pg_server_dsn) as dsn:
        yield dsn


@pytest.fixture(scope="session")
def rabbit_node(request: pytest.FixtureRequest) -> RabbitNode:
    """The private RabbitMQ of this run, with which a test may do everything but stop it."""
    with services.rabbitmq_needed():
        return request.config.stash[_SHARED].get()


@pytest.fixture(scope="session")
def rabbitmq_programs() -> None:
    """For tests whose own processes start and kill a RabbitMQ."""
    with services.rabbitmq_needed():
        find_programs()


@pytest.fixture(scope="session")
def amqp_url(request: pytest.FixtureRequest) -> str:
    """A virtual host for all tests of this process that only need names of their own."""
    try:
        given = services.given_broker()
    except ServiceUnavailable as error:
        pytest.fail(str(error), pytrace=False)
    if given is not None:
        return given
    node: RabbitNode = request.getfixturevalue("rabbit_node")
    return node.add_vhost(f"test-{os.getpid()}")


@pytest.fixture
def pg_url(shared_pg_dsn: str) -> str:
    """A namespace of this test's own in the shared database."""
    return f"{shared_pg_dsn}{'&' if '?' in shared_pg_dsn else '?'}namespace={uuid4().hex}"


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store of each sort."""
    match request.param:
        case "sqlite":
            return f"sqlite:///{tmp_path}/work.db"
        case "postgresql":
            url: str = request.getfixturevalue("pg_url")
            return url
        case _:
            return "memory:"


@pytest.fixture(scope="module")
async def reused() -> AsyncIterator[ReusedConnections]:
    """Asynchronous, so that all tests of a module share the event loop of its connections."""
    with ReusedConnections() as reused:
        yield reused


@pytest.fixture
def unopened_engine(url: str, clock: ManualClock, request: pytest.FixtureRequest) -> Engine:
    engine = open_engine(url, clock=clock)
    if isinstance(engine, PostgresEngine):
        reused: ReusedConnections = request.getfixturevalue("reused")
        reused.serve(engine)
    return engine


@pytest.fixture
async def engine(unopened_engine: Engine) -> AsyncIterator[Engine]:
    """One of each sort, on a clock that only the test moves."""
    engine = unopened_engine
    await engine.open()
    yield engine
    await engine.close()


@pytest.fixture
def memory_path(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is room, for tests that never cut the power: a dozen syncs
    of each engine are most of what a short test on a file costs."""
    memory = Path("/dev/shm")
    if not (os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 16 * FLOOR_BYTES):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-test-", dir=memory) as name:
        yield Path(name)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own. Where mounting is not permitted, other tests say the same with the
    room and the free space injected."""
    home = tmp_path / "small"
    home.mkdir()
    size = 2 * FLOOR_BYTES
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(home)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield home
    subprocess.run(["umount", "--lazy", str(home)], check=True)


@pytest.fixture
def fill_up(small_disk: Path) -> Callable[[int], None]:
    def fill(left: int) -> None:
        free = os.statvfs(small_disk)
        size = free.f_bavail * free.f_frsize - left
        # Others may write at the same time: then it is full a little sooner.
        filler = (small_disk / "filler").open("ab", buffering=0)
        with filler, contextlib.suppress(OSError):
            filler.write(bytes(max(size, 0)))
        assert os.statvfs(small_disk).f_bavail * free.f_frsize <= left + FLOOR_BYTES // 8

    return fill


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """The URL of our own SQS endpoint. It is not there for longer, because its thread draws random
    numbers, which Hypothesis forbids while it draws its own."""
    from holdfast.testing.sqs import sqs_server

    with sqs_server() as url:
        yield url


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials that no server here verifies."""
    import boto3.session

    from holdfast.testing.sqs import KEY
    from tests.engines.sqs import servers

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEY)
    monkeypatch.setattr(boto3.session, "Session", servers.session)
