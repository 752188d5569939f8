"""Tables and their numbered migrations; each runs in one transaction under the write lock.

Every name begins with `hf_` and the schema number lives in `hf_meta`, because a program may keep
its own tables in the same file to enqueue and settle in its own transactions.
"""

from __future__ import annotations

from collections.abc import Callable

import apsw
import msgspec

from holdfast.core import bounds
from holdfast.core.model import Queue
from holdfast.errors import EngineUnavailable, SchemaMismatch

READY = "FROM hf_jobs INDEXED BY hf_ready WHERE queue = ? AND state = 0 AND holds = 0"
"""The waiting jobs of a queue that nothing holds back."""

RANK_FIRST = -bounds.PRIORITY_MAX - 1
"""A rank before all others; a job's rank is its negated priority."""

PART_PAYLOAD, PART_NOTES, PART_EVENTS, PART_RESULT = 1, 2, 4, 8
"""Bits of `hf_jobs.parts`: which other tables hold a row of the job."""

PART_ALONE = 16
"""Bit of `hf_jobs.parts` that stores `Job.alone`."""

PART_AFTER = 32
"""Bit of `hf_jobs.parts`: `hf_after` holds the ids of the job's parents."""

PART_QUEUE_EXPIRY = 64
"""Bit of `hf_jobs.parts` that stores `Job.queue_expiry`."""

HOLD_LANED, HOLD_EXPIRED, HOLD_BEHIND, HOLD_PARENT = 1, 2, 4, 8
"""Why a waiting job is not in `hf_ready`, summed in `hf_jobs.holds`: it waits in a lane; it has
expired; it is behind in its strict group; and `HOLD_PARENT` for each open parent."""

FLOW_LANE, FLOW_GROUP, FLOW_PARENTS, FLOW_CHILDREN, FLOW_TENANT = 1, 2, 4, 8, 16
"""Bits of `hf_jobs.flow`: what else changes when the job ends. FLOW_TENANT: its tenant's leases
are counted. A plain job has `flow` and `holds` 0 and no lane, and costs nothing extra."""

OPEN, ASLEEP = 0, -1
"""Values of `hf_lanes.bar`: the lane can be leased from, or its first job is not due yet. Any other
value is the slot that had no capacity."""

# The hot columns come first, because SQLite decodes a row from its beginning. `rank` is the
# negated priority, `deadline` is on the boot clock, and `holds` keeps a waiting job out of
# `hf_ready`; a payload or result too large to be rewritten with its row is stored in a separate
# table.
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

# When existing records were saved is unknown: their age counts from the migration.
_MIGRATION_2 = """
ALTER TABLE hf_records ADD COLUMN saved_at INTEGER NOT NULL DEFAULT 0;
UPDATE hf_records SET saved_at = CAST(unixepoch('subsec') * 1000 AS INTEGER);
"""

# `hf_aside` has every waiting job that is not simply ready, with a lane's jobs in their order.
# `hf_meta.aside_at` is when jobs were last held as expired: an earlier clock was set back.
# `hf_edges` has open edges only, and `hf_meta.forsaken` says that some have lost their parent.
# All jobs of a lane have one priority; its row stores the position of its first job. `hf_parks` has
# the slots that lanes wait for, and from when (on the boot clock; 0 is now) to try again.
_MIGRATION_3 = """
ALTER TABLE hf_meta ADD COLUMN forsaken INTEGER NOT NULL DEFAULT 0;
ALTER TABLE hf_jobs ADD COLUMN flow INTEGER NOT NULL DEFAULT 0;
ALTER TABLE hf_jobs ADD COLUMN lane INTEGER;
ALTER TABLE hf_jobs ADD COLUMN fingerprint TEXT;
DROP INDEX hf_held;
UPDATE hf_jobs SET holds = 2 WHERE state = 0 AND holds <> 0;
ALTER TABLE hf_meta ADD COLUMN aside_at INTEGER NOT NULL DEFAULT 0;
UPDATE hf_meta SET aside_at = ifnull(
  (SELECT max(expires_at) FROM hf_jobs WHERE state = 0 AND holds <> 0), 0);
CREATE INDEX hf_grouped ON hf_jobs(queue, grp, state) WHERE grp IS NOT NULL AND state < 2;
UPDATE hf_jobs SET flow = 2 WHERE grp IS NOT NULL AND state < 2;
UPDATE hf_jobs SET holds = holds + 4 WHERE grp IS NOT NULL AND state = 0 AND EXISTS (
  SELECT 1 FROM hf_jobs AS other INDEXED BY hf_grouped
  WHERE other.queue = hf_jobs.queue AND other.grp = hf_jobs.grp AND other.grp IS NOT NULL
  AND other.state < 2 AND (other.state = 1 OR other.seq < hf_jobs.seq));
CREATE INDEX hf_aside ON hf_jobs(queue, holds, lane, due_at, place, expires_at)
  WHERE state = 0 AND holds <> 0;
CREATE TABLE hf_after(seq INTEGER PRIMARY KEY, ids BLOB NOT NULL) STRICT;
CREATE TABLE hf_edges(
  parent TEXT NOT NULL,
  ns INTEGER NOT NULL,
  child INTEGER NOT NULL,
  PRIMARY KEY (parent, ns, child)
) STRICT, WITHOUT ROWID;
CREATE INDEX hf_edges_child ON hf_edges(child);
CREATE TABLE hf_lanes(
  id INTEGER PRIMARY KEY,
  queue INTEGER NOT NULL,
  rank INTEGER NOT NULL,
  bar INTEGER NOT NULL DEFAULT 0,
  turn INTEGER NOT NULL DEFAULT 0,
  due_at INTEGER,
  place INTEGER,
  tenant TEXT NOT NULL,
  task TEXT NOT NULL,
  slots TEXT NOT NULL,
  name TEXT NOT NULL,
  UNIQUE (queue, tenant, name, rank)
) STRICT;
CREATE INDEX hf_lanes_first ON hf_lanes(queue, bar, rank, turn, due_at, place)
  WHERE due_at IS NOT NULL;
CREATE INDEX hf_lanes_asleep ON hf_lanes(queue, due_at) WHERE bar = -1;
CREATE TABLE hf_slots(
  id INTEGER PRIMARY KEY,
  ns INTEGER NOT NULL,
  name TEXT NOT NULL,
  key TEXT NOT NULL,
  used INTEGER NOT NULL DEFAULT 0,
  free_us INTEGER NOT NULL DEFAULT 0,
  UNIQUE (ns, name, key)
) STRICT;
CREATE TABLE hf_parks(
  queue INTEGER NOT NULL,
  slot INTEGER NOT NULL,
  wake_us INTEGER,
  PRIMARY KEY (queue, slot)
) STRICT, WITHOUT ROWID;
CREATE INDEX hf_parks_slot ON hf_parks(slot);
CREATE INDEX hf_parks_wake ON hf_parks(queue, wake_us) WHERE wake_us IS NOT NULL;
CREATE TABLE hf_tenants(
  queue INTEGER NOT NULL,
  tenant TEXT NOT NULL,
  turn INTEGER NOT NULL DEFAULT 0,
  leased INTEGER NOT NULL DEFAULT 0,
  busy_ms REAL NOT NULL DEFAULT 0,
  busy_at INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (queue, tenant)
) STRICT, WITHOUT ROWID;
CREATE TABLE hf_flows(
  queue INTEGER PRIMARY KEY,
  vclock INTEGER NOT NULL DEFAULT 0,
  sorting TEXT
) STRICT;
"""

# State 5 is a dead letter under lease. Until now a job that died in a queue with a dead queue was
# moved there to wait as a fresh job with its reason: it becomes a dead letter, and the group and
# lane it leaves go on without it. One that is just leased goes on as an ordinary job. None had
# a retention: it counts from the migration.
_MIGRATION_4 = """
DROP INDEX hf_leased;
UPDATE hf_jobs SET reason = NULL WHERE state = 1 AND reason IS NOT NULL;
UPDATE hf_jobs SET state = 3, holds = 0, lane = NULL, flow = flow & 12, token = NULL,
  version = version + 1, finished_at = CAST(unixepoch('subsec') * 1000 AS INTEGER)
WHERE state = 0 AND reason IS NOT NULL;
UPDATE hf_jobs SET due_at = finished_at WHERE state = 3 AND due_at > finished_at;
CREATE INDEX hf_leased ON hf_jobs(ns, deadline) WHERE state IN (1, 5);
CREATE INDEX hf_dead ON hf_jobs(queue, due_at) WHERE state = 3;
UPDATE hf_jobs SET holds = holds - 4
WHERE grp IS NOT NULL AND state = 0 AND holds & 4 AND NOT EXISTS (
  SELECT 1 FROM hf_jobs AS other INDEXED BY hf_grouped
  WHERE other.queue = hf_jobs.queue AND other.grp = hf_jobs.grp AND other.grp IS NOT NULL
  AND other.state < 2 AND (other.state = 1 OR other.seq < hf_jobs.seq));
UPDATE hf_lanes SET (due_at, place) = (
  SELECT due_at, place FROM hf_jobs INDEXED BY hf_aside
  WHERE queue = hf_lanes.queue AND state = 0 AND holds <> 0 AND holds = 1 AND lane = hf_lanes.id
  ORDER BY due_at, place LIMIT 1);
"""

# `hf_children` has the parents of `hf_after` in an index, to list the children of a job: those that
# no longer wait for it, too. Triggers keep it. A job's row is inserted before that of `hf_after`.
_MIGRATION_5 = """
CREATE TABLE hf_children(
  parent TEXT NOT NULL,
  namespace INTEGER NOT NULL,
  child INTEGER NOT NULL,
  PRIMARY KEY (parent, namespace, child)
) STRICT, WITHOUT ROWID;
INSERT OR IGNORE INTO hf_children(parent, namespace, child)
SELECT id.value, hf_jobs.ns, hf_after.seq
FROM hf_after CROSS JOIN hf_jobs ON hf_jobs.seq = hf_after.seq
CROSS JOIN json_each(CAST(hf_after.ids AS TEXT)) AS id;
CREATE TRIGGER hf_after_added AFTER INSERT ON hf_after BEGIN
  INSERT OR IGNORE INTO hf_children(parent, namespace, child)
  SELECT id.value, (SELECT ns FROM hf_jobs WHERE seq = NEW.seq), NEW.seq
  FROM json_each(CAST(NEW.ids AS TEXT)) AS id;
END;
CREATE TRIGGER hf_after_removed AFTER DELETE ON hf_after BEGIN
  DELETE FROM hf_children WHERE child = OLD.seq
  AND namespace = (SELECT ns FROM hf_jobs WHERE seq = OLD.seq)
  AND parent IN (SELECT id.value FROM json_each(CAST(OLD.ids AS TEXT)) AS id);
END;
"""

MIGRATIONS: tuple[str, ...] = (
    _MIGRATION_1,
    _MIGRATION_2,
    _MIGRATION_3,
    _MIGRATION_4,
    _MIGRATION_5,
)
"""Number n brings a store of schema n - 1 to schema n. Never edited once released."""


def prepare(
    connection: apsw.Connection, namespace: str, boot_id: str, is_alone: Callable[[], bool]
) -> None:
    """Migrate, and create the namespace and its default queue. Runs in a write transaction."""
    migrate(connection)
    run = connection.execute
    known = run("SELECT boot FROM hf_meta").get
    if known != boot_id:
        if known and not is_alone():
            raise other_boot_clock(connection.filename)
        # The deadlines refer to a boot clock that has restarted: all of them have passed.
        run("UPDATE hf_jobs SET deadline = 0 WHERE state IN (1, 5)")
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
    """Bring the store to the newest schema. Runs in a write transaction."""
    found = stored_schema(connection)
    if found > len(MIGRATIONS):
        raise mismatch(connection, found)
    for number, migration in enumerate(MIGRATIONS[found:], start=found + 1):
        connection.execute(migration)
        connection.execute("UPDATE hf_meta SET schema = ?", (number,))


def stored_schema(connection: apsw.Connection) -> int:
    """The schema number of the file; 0 if it holds no store."""
    if not connection.table_exists("main", "hf_meta"):
        return 0
    found = connection.execute("SELECT schema FROM hf_meta").get
    if not isinstance(found, int):
        raise apsw.CorruptError("hf_meta has no row")
    return found


def mismatch(connection: apsw.Connection, found: int) -> SchemaMismatch:
    """The error for a file that a newer version has migrated."""
    return SchemaMismatch(
        f"{connection.filename} has schema {found}, this version supports up to "
        f"{len(MIGRATIONS)}: run the newer version of Holdfast that wrote it"
    )


def other_boot_clock(path: str) -> EngineUnavailable:
    """The error for a file in use by a process with another boot clock."""
    return EngineUnavailable(
        f"{path} is in use by a process in another time namespace:"
        " run all its users on one boot clock"
    )


def encode_queue(queue: Queue) -> bytes:
    """The stored form of a queue's settings."""
    return msgspec.json.encode(queue)
