"""The first words with a database: which store it holds, made or changed if it must be."""

from __future__ import annotations

from holdfast.engines.postgres import schemas
from holdfast.engines.postgres.pool import FAILURES, Pool


async def prepare(pool: Pool, schema: str, namespace: str) -> schemas.Identity:
    """The connection that was made for it goes to the pool."""
    try:
        connection = await pool.dial()
        try:
            found = await schemas.identify(connection, schema, namespace)
            if found is None:
                await schemas.migrate(connection, schema, namespace)
                found = await schemas.identify(connection, schema, namespace)
        except BaseException:
            connection.terminate()
            raise
        pool.admit(connection)
    except FAILURES as error:
        raise pool.explain(error) from error
    assert found is not None
    return found
