"""The tables and their numbered migrations; each runs in one transaction under the write lock.

Every name begins with `hf_` and the number lives in `hf_meta`, because a program may keep its own
tables in the same file so as to enqueue and settle in its own transactions.
"""

from __future__ import annotations

from collections.abc import Callable

import apsw

from holdfast.core import limits
from holdfast.core.model import Queue
from holdfast.engines.sqlite.catalog import encode_queue
from holdfast.engines.sqlite.flow_schema import MIGRATION_3
from holdfast.errors import EngineUnavailable, SchemaMismatch

READY = "FROM hf_jobs INDEXED BY hf_ready WHERE queue = ? AND state = 0 AND holds = 0"
RANK_FIRST = -limits.PRIORITY_MAX - 1
"""The waiting jobs of a queue without those put aside, and a rank before all of theirs."""

PART_PAYLOAD, PART_NOTES, PART_EVENTS, PART_RESULT = 1, 2, 4, 8
"""Bits of `hf_jobs.parts`: which rows a job has beside its own."""

PART_ALONE = 16
"""The bit beside them that says `Job.alone`."""

PART_AFTER = 32
"""The ids of its parents are kept beside it too."""

# The hot columns stand first, because SQLite decodes a row from its beginning. `rank` is the
# negated priority, `deadline` is on the boot clock, and `holds` keeps a waiting job out of
# `hf_ready`; a payload or result too large to be rewritten with its row lives beside it.
_MIGRATION_1 = """
CREATE TABLE hf_meta(
  one INTEGER PRIMARY KEY CHECK (one = 1),
  schema INTEGER NOT NULL,
  number INTEGER NOT NULL,
  revision INTEGER NOT NULL,
  boot TEXT NOT NULL
) STRICT;
INSERT INTO hf_meta VALUES (1, 0, 0, 0, '');
CREATE TABLE hf_namespaces(id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE) STRICT;
CREATE TABLE hf_queues(
  id INTEGER PRIMARY KEY,
  ns INTEGER NOT NULL,
  name TEXT,
  settings BLOB NOT NULL,
  UNIQUE (ns, name)
) STRICT;
CREATE TABLE hf_jobs(
  seq INTEGER PRIMARY KEY,
  ns INTEGER NOT NULL,
  queue INTEGER NOT NULL,
  state INTEGER NOT NULL DEFAULT 0,
  holds INTEGER NOT NULL DEFAULT 0,
  rank INTEGER NOT NULL,
  due_at INTEGER NOT NULL,
  place INTEGER NOT NULL,
  expires_at INTEGER,
  parts INTEGER NOT NULL DEFAULT 0,
  attempt INTEGER NOT NULL DEFAULT 0,
  crashes INTEGER NOT NULL DEFAULT 0,
  releases INTEGER NOT NULL DEFAULT 0,
  version INTEGER NOT NULL DEFAULT 1,
  token INTEGER,
  deadline INTEGER,
  leased_at INTEGER,
  created_at INTEGER NOT NULL,
  finished_at INTEGER,
  cancel INTEGER NOT NULL DEFAULT 0,
  lease_ms INTEGER,
  worker TEXT,
  reason TEXT,
  id TEXT NOT NULL,
  task TEXT NOT NULL,
  key TEXT,
  tenant TEXT,
  grp TEXT,
  extra BLOB,
  payload BLOB,
  result BLOB
) STRICT;
CREATE UNIQUE INDEX hf_id ON hf_jobs(id, ns);
CREATE INDEX hf_ready ON hf_jobs(queue, rank, due_at, place, expires_at)
  WHERE state = 0 AND holds = 0;
CREATE INDEX hf_held ON hf_jobs(ns, expires_at) WHERE state = 0 AND holds <> 0;
CREATE INDEX hf_expiring ON hf_jobs(ns, expires_at) WHERE state = 0 AND expires_at IS NOT NULL;
CREATE INDEX hf_leased ON hf_jobs(ns, deadline) WHERE state = 1;
CREATE INDEX hf_ended ON hf_jobs(queue, state, finished_at) WHERE state >= 2;
CREATE INDEX hf_buried ON hf_jobs(ns, seq) WHERE state >= 3;
CREATE TABLE hf_payloads(seq INTEGER PRIMARY KEY, data BLOB NOT NULL) STRICT;
CREATE TABLE hf_results(seq INTEGER PRIMARY KEY, data BLOB NOT NULL) STRICT;
CREATE TABLE hf_notes(
  seq INTEGER PRIMARY KEY, progress REAL, checkpoint BLOB, output BLOB
) STRICT;
CREATE TABLE hf_events(
  seq INTEGER NOT NULL, n INTEGER NOT NULL, body BLOB NOT NULL, PRIMARY KEY (seq, n)
) STRICT, WITHOUT ROWID;
CREATE TABLE hf_keys(
  queue INTEGER NOT NULL,
  key TEXT NOT NULL,
  ns INTEGER NOT NULL,
  id TEXT NOT NULL,
  until INTEGER NOT NULL,
  PRIMARY KEY (queue, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX hf_keys_until ON hf_keys(ns, until);
CREATE TABLE hf_records(
  ns INTEGER NOT NULL,
  kind TEXT NOT NULL,
  key TEXT NOT NULL,
  version INTEGER NOT NULL,
  value BLOB NOT NULL,
  PRIMARY KEY (ns, kind, key)
) STRICT, WITHOUT ROWID;
"""

# Nobody knows when the records that are there were saved: their age counts from now.
_MIGRATION_2 = """
ALTER TABLE hf_records ADD COLUMN saved_at INTEGER NOT NULL DEFAULT 0;
UPDATE hf_records SET saved_at = CAST(unixepoch('subsec') * 1000 AS INTEGER);
"""

MIGRATIONS: tuple[str, ...] = (_MIGRATION_1, _MIGRATION_2, MIGRATION_3)
"""Number n brings a store of schema n - 1 to schema n. Never edited once released."""


def prepare(
    connection: apsw.Connection, namespace: str, boot_id: str, is_alone: Callable[[], bool]
) -> None:
    """Inside a write transaction: everything that a writer expects to find."""
    migrate(connection)
    run = connection.execute
    known = run("SELECT boot FROM hf_meta").get
    if known != boot_id:
        if known and not is_alone():
            raise EngineUnavailable(
                f"{connection.filename} is in use by a process in another time namespace:"
                " run all its users on one boot clock"
            )
        # The deadlines were on a clock that has started again: all of them have passed.
        run("UPDATE hf_jobs SET deadline = 0 WHERE state = 1")
        run("UPDATE hf_parks SET wake_us = 0")
        run("UPDATE hf_slots SET free_us = 0")
        run("UPDATE hf_meta SET boot = ?", (boot_id,))
    run("INSERT INTO hf_namespaces(name) VALUES (?) ON CONFLICT DO NOTHING", (namespace,))
    namespace_id = run("SELECT id FROM hf_namespaces WHERE name = ?", (namespace,)).get
    if not run("SELECT 1 FROM hf_queues WHERE ns = ? AND name = 'default'", (namespace_id,)).get:
        run("UPDATE hf_meta SET number = number + 1, revision = revision + 1")
        run(
            "INSERT INTO hf_queues(id, ns, name, settings)"
            " VALUES ((SELECT number FROM hf_meta), ?, 'default', ?)",
            (namespace_id, encode_queue(Queue(name="default"))),
        )


def migrate(connection: apsw.Connection) -> None:
    """Inside a write transaction: bring the store to the newest schema."""
    found = stored_schema(connection)
    if found > len(MIGRATIONS):
        raise mismatch(connection, found)
    for number, migration in enumerate(MIGRATIONS[found:], start=found + 1):
        connection.execute(migration)
        connection.execute("UPDATE hf_meta SET schema = ?", (number,))


def mismatch(connection: apsw.Connection, found: int) -> SchemaMismatch:
    return SchemaMismatch(
        f"{connection.filename} has schema {found}, this version knows up to "
        f"{len(MIGRATIONS)}: run the newer version of Holdfast that wrote it"
    )


def stored_schema(connection: apsw.Connection) -> int:
    if not connection.table_exists("main", "hf_meta"):
        return 0
    found = connection.execute("SELECT schema FROM hf_meta").get
    if not isinstance(found, int):
        raise apsw.CorruptError("hf_meta has no row")
    return found
