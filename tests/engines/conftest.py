"""One PostgreSQL database for all tests that only need a namespace of their own."""

from collections.abc import Iterator

import pytest

from tests import services


@pytest.fixture(scope="session")
def shared_pg_dsn(pg_server_dsn: str) -> Iterator[str]:
    with services.fresh_database(pg_server_dsn) as dsn:
        yield dsn
