"""What every test may ask for: the event loop, and PostgreSQL. It holds no policy of its own."""

import contextlib
from collections.abc import Iterator

import pytest
from hypothesis import settings

from holdfast.testing.services import ServiceUnavailable
from tests import services

# The machine's noise is no property of the code, and a failure must be repeatable elsewhere.
settings.register_profile("holdfast", deadline=None, print_blob=True)
settings.load_profile("holdfast")


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


@pytest.fixture
def pg_dsn(pg_server_dsn: str) -> Iterator[str]:
    """An empty database of this test's own."""
    with services.fresh_database(pg_server_dsn) as dsn:
        yield dsn
