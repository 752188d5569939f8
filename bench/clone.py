"""Copies stored jobs many times inside the store: enqueueing millions would take minutes.

It depends on the tables of the engines and must follow their changes. Each copy has its own id,
number and place; all other columns are as the engine wrote them.
"""

from __future__ import annotations

from typing import Any

import apsw
import asyncpg

from bench.stores import Store

CHUNK = 50_000


async def clone(store: Store, id: str, count: int) -> None:
    """Make `count - 1` copies, so that there are `count` in total."""
    if store.engine == "sqlite":
        _clone_sqlite(store.place, id, count - 1)
    else:
        await _clone_postgres(store.place, id, count - 1)


async def clone_all(store: Store, times: int) -> None:
    """Copy all jobs, so that there are `times` as many."""
    if store.engine == "sqlite":
        _clone_all_sqlite(store.place, times)
    else:
        await _clone_all_postgres(store.place, times)


def _clone_all_sqlite(path: str, times: int) -> None:
    connection = apsw.Connection(path)
    connection.execute("PRAGMA synchronous = OFF; PRAGMA cache_size = -262144")
    columns = [row[1] for row in connection.execute("PRAGMA table_info(hf_jobs)")]
    number = "?1 * n + template.seq"
    new = {"seq": number, "place": number, "id": "printf('%s-%d', template.id, n)"}
    copied = ", ".join(new.get(column, f"template.{column}") for column in columns)
    last = connection.execute("SELECT number FROM hf_meta").get
    step = max(1, CHUNK // last)
    for first in range(1, times, step):
        with connection:
            connection.execute(
                "WITH RECURSIVE numbers(n) AS"
                " (SELECT ?2 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?3)"
                f" INSERT INTO hf_jobs({', '.join(columns)}) SELECT {copied}"
                " FROM numbers CROSS JOIN hf_jobs AS template WHERE template.seq <= ?1",
                (last, first, min(first + step, times) - 1),
            )
            connection.execute("UPDATE hf_meta SET number = (SELECT max(seq) FROM hf_jobs)")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


async def _clone_all_postgres(dsn: str, times: int) -> None:
    connection = await _connect(dsn)
    if times > 1:
        await connection.execute(
            await _copies(connection, "SELECT seq FROM bodies", "generate_series(2, $1::int)"),
            times,
        )
    await connection.execute("VACUUM ANALYZE bodies, jobs, done")
    await connection.close()


def _clone_sqlite(path: str, id: str, count: int) -> None:
    connection = apsw.Connection(path)
    # Durability is not needed here: an interrupted benchmark starts again from scratch.
    connection.execute("PRAGMA synchronous = OFF; PRAGMA cache_size = -262144")
    columns = [row[1] for row in connection.execute("PRAGMA table_info(hf_jobs)")]
    new = {"seq": "?1 + n", "place": "?1 + n", "id": "printf('%s-%d', ?2, n)"}
    copied = ", ".join(new.get(column, f"template.{column}") for column in columns)
    for done in range(0, count, CHUNK):
        last = connection.execute("SELECT number FROM hf_meta").get
        values = (last - done, id, done + 1, min(done + CHUNK, count))
        with connection:
            connection.execute(
                "WITH RECURSIVE numbers(n) AS"
                " (SELECT ?3 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?4)"
                f" INSERT INTO hf_jobs({', '.join(columns)}) SELECT {copied}"
                " FROM (SELECT * FROM hf_jobs WHERE id = ?2) AS template, numbers",
                values,
            )
            connection.execute("UPDATE hf_meta SET number = (SELECT max(seq) FROM hf_jobs)")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


async def _clone_postgres(dsn: str, id: str, count: int) -> None:
    connection = await _connect(dsn)
    template = "SELECT seq FROM bodies WHERE id = $1"
    copies = await _copies(connection, template, "generate_series(1, $2::int)")
    await connection.execute(copies, id, count)
    # Otherwise autovacuum would run in the middle of a measurement.
    await connection.execute("VACUUM ANALYZE bodies, jobs, done")
    await connection.close()


async def _connect(dsn: str) -> Any:
    settings = {"search_path": "holdfast", "synchronous_commit": "off"}
    return await asyncpg.connect(dsn, server_settings=settings)


async def _copies(connection: Any, templates: str, times: str) -> str:
    """The statement that copies these jobs in all tables."""
    new = {"seq": "c.number", "place": "c.number", "id": "t.id || '-' || c.number"}
    inserts = []
    for table in ("bodies", "jobs", "done"):
        rows = await connection.fetch(
            "SELECT attname FROM pg_attribute WHERE attrelid = $1::text::regclass AND attnum > 0"
            " AND NOT attisdropped AND attgenerated = '' ORDER BY attnum",
            table,
        )
        columns = [str(row[0]) for row in rows]
        copied = ", ".join(new.get(column, f"t.{column}") for column in columns)
        inserts.append(
            f"INSERT INTO {table}({', '.join(columns)})"
            f" SELECT {copied} FROM copies c JOIN {table} t ON t.seq = c.seq"
        )
    return (
        f"WITH copies AS MATERIALIZED (SELECT t.seq, nextval('numbers') AS number"
        f" FROM ({templates}) t CROSS JOIN {times} n),"
        f" copied AS ({inserts[0]}), waiting AS ({inserts[1]}) {inserts[2]}"
    )  # sql: tables and columns of the schema
