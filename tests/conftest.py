"""What every test may ask for: the event loop, PostgreSQL, a small disk. No policy of its own."""

import contextlib
import gc
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from holdfast.engines.sqlite.disk import FLOOR_BYTES
from holdfast.testing.services import ServiceUnavailable
from tests import services

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


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


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


@pytest.fixture
def pg_dsn(pg_server_dsn: str) -> Iterator[str]:
    """An empty database of this test's own."""
    with services.fresh_database(pg_server_dsn) as dsn:
        yield dsn


@pytest.fixture
def quick_path(tmp_path: Path) -> Iterator[Path]:
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
