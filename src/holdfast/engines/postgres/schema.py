"""The database schema: numbered migrations, run once under a lock, and the check at open.

A column of `meta` carries the version in its name, and every statement names it: after a migration
the statements of older processes that are still connected fail, before they do anything.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from holdfast.errors import ConfigError, EngineUnavailable, SchemaMismatch

SCHEMA_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}\Z")
MIGRATION_S_MAX = 3600.0
MOVE_BATCH = 5_000
"""Jobs that one step of a migration moves at the most."""

_EXISTS = "SELECT to_regclass('$schema.meta') IS NOT NULL"
_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('holdfast ' || $1::text, 0))"
_HAS_SCHEMA = "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1::text)"
_CREATE = "CREATE SCHEMA $schema"
_PATH = "SET LOCAL search_path = $schema, pg_temp"
_VERSION = "SELECT version FROM $schema.meta"
_FIRST = "INSERT INTO $schema.meta (version) VALUES (0)"
_SET_VERSION = "UPDATE $schema.meta SET version = $1::int"
_VERSION_COLUMN = "for_version_"
_FIND_COLUMN = f"""
SELECT attname::text FROM pg_attribute
WHERE attrelid = '$schema.meta'::regclass AND attname ~ '^{_VERSION_COLUMN}' AND NOT attisdropped
"""
_ADD_COLUMN = "ALTER TABLE $schema.meta ADD COLUMN {now} boolean"
_RENAME_COLUMN = "ALTER TABLE $schema.meta RENAME COLUMN {before} TO {now}"
_NAMESPACE = """
INSERT INTO $schema.namespaces (name) VALUES ($1::text) ON CONFLICT (name) DO NOTHING
"""
_MOVES_FROM = 23
"""The first version whose jobs are moved in steps after the migration."""
_MOVE = """
SELECT CASE WHEN (SELECT is_moved FROM $schema.older) THEN false
            ELSE $schema.move_jobs($1::int) END
"""
_IDENTITY = """
SELECT m.version, m.store::text, n.number, current_setting('transaction_read_only') = 'on',
       current_setting('server_encoding')
FROM $schema.meta m LEFT JOIN $schema.namespaces n ON n.name = $1::text
"""


class NamespaceIdentity(NamedTuple):
    """The unique name of a store, and the number of a namespace in it."""

    store: str
    ns: int


async def prepare(connection: Any, schema: str, namespace: str) -> NamespaceIdentity:
    """The identity of the store in this database, which is created or migrated if necessary.

    Jobs of an older version are moved in steps, each a transaction of its own. Another process that
    is killed meanwhile leaves the rest to this one."""
    identity = await identify(connection, schema, namespace)
    if identity is None:
        await migrate(connection, schema, namespace)
        identity = await identify(connection, schema, namespace)
    assert identity is not None
    if len(migrations()) >= _MOVES_FROM:
        while await connection.fetchval(plain_text(_MOVE, schema), MOVE_BATCH):
            pass
    return identity


async def exists(connection: Any, schema: str) -> bool:
    """Whether the schema holds a store."""
    return bool(await connection.fetchval(plain_text(_EXISTS, schema)))


async def identify(connection: Any, schema: str, namespace: str) -> NamespaceIdentity | None:
    """The identity of the store; None if the schema or namespace is missing or too old."""
    if not await exists(connection, schema):
        return None
    row = await connection.fetchrow(plain_text(_IDENTITY, schema), namespace)
    version, store, number, read_only, encoding = row
    if read_only:
        raise EngineUnavailable("the server is read-only: a standby, or configured so")
    if encoding != "UTF8":
        raise ConfigError(f"the database's encoding is {encoding}: use a database with UTF8")
    _check(version)
    if version < len(migrations()) or number is None:
        return None
    return NamespaceIdentity(store, number)


@cache
def migrations() -> tuple[str, ...]:
    """The SQL texts in order; their number is the schema version of this package."""
    folder = resources.files(__package__) / "migrations"
    files = sorted(
        (entry for entry in folder.iterdir() if entry.name.endswith(".sql")),
        key=lambda entry: entry.name,
    )
    return tuple(entry.read_text(encoding="utf-8") for entry in files)


async def migrate(connection: Any, schema: str, namespace: str) -> None:
    """Bring the schema to this version, in one transaction, one process at a time."""
    async with connection.transaction():
        await connection.execute(_LOCK, schema)
        if not await connection.fetchval(_HAS_SCHEMA, schema):
            await connection.execute(plain_text(_CREATE, schema))
        await connection.execute(plain_text(_PATH, schema))
        version = -1
        if await connection.fetchval(plain_text(_EXISTS, schema)):
            version = await connection.fetchval(plain_text(_VERSION, schema))
            _check(version)
        for number, migration in enumerate(migrations(), 1):
            if number > version:
                await connection.execute(migration, timeout=MIGRATION_S_MAX)
                if version < 0:
                    await connection.execute(plain_text(_FIRST, schema))
                    version = 0
                await connection.execute(plain_text(_SET_VERSION, schema), number)
        await _rename_version_column(connection, schema)
        await connection.execute(plain_text(_NAMESPACE, schema), namespace)


async def _rename_version_column(connection: Any, schema: str) -> None:
    """Make the statements of every other version fail."""
    before = await connection.fetchval(plain_text(_FIND_COLUMN, schema))
    if before == version_column():
        return
    change = _ADD_COLUMN if before is None else _RENAME_COLUMN
    text = change.format(before=before, now=version_column())
    await connection.execute(plain_text(text, schema))


def version_column() -> str:
    """The column of `meta` that exists only while the schema has the version of this package."""
    return f"{_VERSION_COLUMN}{len(migrations())}"


def checked_text(statement: str, schema: str) -> str:
    """The SQL with the schema's name in it, which fails if the schema has another version.

    The part that names the version is never run: it is looked up whenever the statement is planned,
    and every change of `meta` makes the server plan statements anew.
    """
    check = f"this_version AS (SELECT {version_column()} FROM $schema.meta)"
    text = statement.lstrip()
    for start in ("WITH RECURSIVE ", "WITH "):
        if text.startswith(start):
            return plain_text(f"{start}{check}, {text.removeprefix(start)}", schema)
    return plain_text(f"WITH {check} {text}", schema)  # sql: both parts are constants


def _check(version: int) -> None:
    newest = len(migrations())
    if version > newest:
        raise SchemaMismatch(
            f"the schema has version {version}, this Holdfast knows up to {newest}: "
            "upgrade Holdfast"
        )


def quoted(schema: str) -> str:
    """The schema's name quoted for SQL."""
    assert SCHEMA_NAME.match(schema)
    return f'"{schema}"'


def plain_text(statement: str, schema: str) -> str:
    """The SQL with the schema's name in it."""
    return statement.replace("$schema", quoted(schema))
