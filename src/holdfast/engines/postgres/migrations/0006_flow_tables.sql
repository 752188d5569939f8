-- Flow control: strict groups, dependencies, limits, rates and fairness. It changes nothing for
-- queues and jobs that do not use it: `laned` is false for such a queue, `flow` 0 for such a job.

-- flow: 1 has a lane, 2 is in a group, 4 has parents, 8 has children, 16 is behind in its group, 32
-- was leased before its queue had lanes. holds: open parents, + 1 while behind, + 1,000,000 while
-- held as expired. lane: where the job waits and, while it is leased, the lane whose slots it
-- holds; for a done job it has no meaning, nor has the lane bit of flow: leaving them halves the
-- log.
ALTER TABLE jobs
    ADD COLUMN flow smallint NOT NULL DEFAULT 0,
    ADD COLUMN lane int,
    ADD COLUMN fingerprint text COLLATE "C";

-- Jobs held as expired, and jobs of a group that arrived before groups were strict.
UPDATE jobs SET holds = 1000000 WHERE state = 0 AND holds <> 0;
UPDATE jobs SET flow = 2 WHERE grp IS NOT NULL;
UPDATE jobs j SET flow = 18, holds = j.holds + 1
WHERE j.grp IS NOT NULL AND j.state = 0 AND EXISTS (
    SELECT FROM jobs x
    WHERE x.queue = j.queue AND x.grp = j.grp AND (x.state = 1 OR (x.state = 0 AND x.seq < j.seq))
);

CREATE INDEX jobs_laned ON jobs (lane, rank, due_at, place)
    WHERE state = 0 AND holds = 0 AND lane IS NOT NULL;
-- Only one job of a group is exposed.
CREATE UNIQUE INDEX jobs_exposed ON jobs (queue, grp)
    WHERE grp IS NOT NULL AND state = 0 AND (flow & 16) = 0;
CREATE INDEX jobs_grouped ON jobs (queue, grp, state, seq)
    WHERE grp IS NOT NULL AND state < 2;
DROP INDEX jobs_aside;
CREATE INDEX jobs_aside ON jobs (queue, due_at, place) WHERE state = 0 AND holds <> 0;

-- laned: its jobs wait in lanes, because of limits, fairness, aging or group batches. fairness: 0
-- off, 1 shares, 2 noisy.
ALTER TABLE queues
    ADD COLUMN laned boolean NOT NULL DEFAULT false,
    ADD COLUMN fairness smallint NOT NULL DEFAULT 0,
    ADD COLUMN aging_ms bigint,
    ADD COLUMN group_batch int NOT NULL DEFAULT 1;

-- A call that changes the flow of a queue holds the lock of its domain, before any row of a job.
-- Queues that share a limit are one domain, so that its slots need no separate locks.
CREATE SEQUENCE domains AS int;
CREATE TABLE limit_domains (
    ns      int NOT NULL,
    name    text COLLATE "C" NOT NULL,
    domain  int NOT NULL,
    PRIMARY KEY (ns, name)
);

-- sorting: its jobs are being moved into the lanes of its new settings. The cursor is the progress.
CREATE TABLE flows (
    queue     int PRIMARY KEY,
    domain    int NOT NULL,
    vclock    bigint NOT NULL DEFAULT 0,
    sorting   boolean NOT NULL DEFAULT false,
    wanted    boolean NOT NULL DEFAULT false,
    is_aside  boolean NOT NULL DEFAULT true,
    rank      smallint NOT NULL DEFAULT -32768,
    due_at    bigint NOT NULL DEFAULT -1,
    place     bigint NOT NULL DEFAULT -1
) WITH (fillfactor = 20);
CREATE INDEX flows_domain ON flows (domain);

-- Jobs that moved from one index of waiting jobs to the other while their queue was being sorted:
-- the cursor may have missed them.
CREATE TABLE strays (
    queue  int NOT NULL,
    seq    bigint NOT NULL
);
CREATE INDEX strays_queue ON strays (queue);

-- The numbers of a queue's limits. wide: the key under which every job of the queue counts for it.
CREATE TABLE bounds (
    queue        int NOT NULL,
    name         text COLLATE "C" NOT NULL,
    concurrency  int,
    apart_us     bigint,
    burst        int,
    wide         text COLLATE "C",
    PRIMARY KEY (queue, name)
);
CREATE TABLE weights (
    queue   int NOT NULL,
    tenant  text COLLATE "C" NOT NULL,
    weight  int NOT NULL,
    PRIMARY KEY (queue, tenant)
);

CREATE TABLE slots (
    number   int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    ns       int NOT NULL,
    name     text COLLATE "C" NOT NULL,
    key      text COLLATE "C" NOT NULL,
    used     int NOT NULL DEFAULT 0,
    free_us  bigint NOT NULL DEFAULT 0,
    UNIQUE (ns, name, key)
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_scale_factor = 0.01);

-- Jobs that a leasing call need not distinguish wait in one lane. plain: they differ from others
-- only in task and time. key is made of the other fields.
CREATE TABLE lanes (
    number  int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue   int NOT NULL,
    key     bytea NOT NULL,
    task    text COLLATE "C" NOT NULL,
    tenant  text COLLATE "C",
    plain   boolean NOT NULL,
    slots   int[] NOT NULL,
    UNIQUE (queue, key)
);

-- Position of the first job of each lane at each priority that waits only for its time and its
-- slots. It is never behind that job, but the job may be gone: a call that uses it checks, and
-- writes it again. parked: NULL if it may start, 0 while it is not due, otherwise the slot without
-- room. turn: that of its tenant, or whether the tenant is noisy.
CREATE TABLE heads (
    lane    int NOT NULL,
    rank    smallint NOT NULL,
    queue   int NOT NULL,
    parked  int,
    turn    bigint NOT NULL DEFAULT 0,
    due_at  bigint NOT NULL,
    place   bigint NOT NULL,
    tenant  text COLLATE "C",
    PRIMARY KEY (lane, rank)
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_scale_factor = 0.01);
CREATE INDEX heads_open ON heads (queue, rank, turn, due_at, place) WHERE parked IS NULL;
CREATE INDEX heads_asleep ON heads (queue, due_at) WHERE parked = 0;
CREATE INDEX heads_parked ON heads (queue, parked) WHERE parked > 0;
CREATE INDEX heads_tenant ON heads (queue, tenant) WHERE tenant IS NOT NULL;

-- Slots at which heads of a queue are parked, and from when there may be room; NULL: not before a
-- lease ends.
CREATE TABLE parks (
    queue    int NOT NULL,
    slot     int NOT NULL,
    wake_us  bigint,
    PRIMARY KEY (queue, slot)
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_scale_factor = 0.01);
CREATE INDEX parks_wake ON parks (queue, wake_us) WHERE wake_us IS NOT NULL;

-- What ended leases free and how long they took, until the next holder of the flow lock applies it:
-- ending a lease does not wait for a leasing call.
CREATE TABLE freed (
    number   bigint GENERATED ALWAYS AS IDENTITY,
    at       bigint NOT NULL,
    queue    int NOT NULL,
    slots    int[],
    counts   int[],
    tenants  text[] COLLATE "C",
    took_ms  bigint[]
) WITH (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0);
CREATE INDEX freed_queue ON freed (queue, number);
CREATE VIEW freed_slots AS
SELECT x.slot, sum(x.count_)::int AS count_
FROM freed f CROSS JOIN LATERAL unnest(f.slots, f.counts) AS x(slot, count_) GROUP BY x.slot;

CREATE TABLE tenants (
    queue    int NOT NULL,
    tenant   text COLLATE "C" NOT NULL,
    turn     bigint NOT NULL DEFAULT 0,
    busy_ms  float8 NOT NULL DEFAULT 0,
    busy_at  bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (queue, tenant)
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_scale_factor = 0.01);

-- The parents that a child still waits for. on_done and on_death: the effect of such an end of the
-- parent: 0 the child no longer waits for it, 1 it is cancelled, 2 it keeps waiting.
CREATE TABLE edges (
    child     bigint NOT NULL,
    ns        int NOT NULL,
    on_done   smallint NOT NULL,
    on_death  smallint NOT NULL,
    parent    text COLLATE "C" NOT NULL,
    PRIMARY KEY (child, parent)
);
CREATE INDEX edges_parent ON edges (parent, ns, child);

-- Ended parents whose children were not notified yet. state NULL: deleted before its end.
CREATE TABLE endings (
    number  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at      bigint NOT NULL DEFAULT now_ms(NULL),
    ns      int NOT NULL,
    state   smallint,
    parent  text COLLATE "C" NOT NULL
);

-- Ids of missing jobs that children still wait for: such a job may be enqueued again.
CREATE TABLE awaited (
    ns      int NOT NULL,
    parent  text COLLATE "C" NOT NULL,
    PRIMARY KEY (ns, parent)
);
