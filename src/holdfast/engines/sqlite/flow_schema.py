"""The tables of flow control, and what the bits in a job's own row mean.

A plain job has `flow` and `holds` at 0 and no lane: nothing in this file costs it anything.
"""

from __future__ import annotations

HOLD_LANED, HOLD_EXPIRED, HOLD_BEHIND, HOLD_PARENT = 1, 2, 4, 8
"""Why a waiting job is not in `hf_ready`, added up: it is in a lane, where its lane is asked; put
aside as expired; behind in its strict group; and `HOLD_PARENT` for each open parent."""

FLOW_LANE, FLOW_GROUP, FLOW_PARENTS, FLOW_CHILDREN, FLOW_TENANT = 1, 2, 4, 8, 16
"""Bits of `hf_jobs.flow`: what an end of the job means beyond its own row. With the last one it
is counted under its tenant while it is leased."""

OPEN, ASLEEP = 0, -1
"""`hf_lanes.bar`, where it is not the slot that had no room: takeable, or its first job is not
yet due."""

# `hf_aside` has every waiting job that is not plainly ready; a lane's jobs stand in it in order.
# `hf_meta.aside_at` is when jobs were last put aside as expired: an earlier clock was set back.
# `hf_edges` has open edges alone, and `hf_meta.forsaken` says that some have lost their parent.
# A lane is of one priority, so that it is a plain line of jobs, and carries the place of its first
# one. `hf_parks` says of which slots lanes wait, and from when (on the boot clock; 0 is now) it is
# worth asking again.
MIGRATION_3 = """
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
