-- All objects are in the schema that the search path names. Instants are milliseconds since 1970.

-- The version of this schema, and a name that identifies the store to a caller's connection.
CREATE TABLE meta (
    one      boolean PRIMARY KEY DEFAULT true CHECK (one),
    version  int NOT NULL,
    store    uuid NOT NULL DEFAULT gen_random_uuid()
);

CREATE TABLE namespaces (
    number  int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name    text COLLATE "C" NOT NULL UNIQUE
);

-- A dropped queue keeps its number and loses its name: no reader sees its jobs any more, and they
-- are removed afterwards in bounded steps.
CREATE TABLE queues (
    number             int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    ns                 int NOT NULL,
    name               text COLLATE "C",
    lease_ms           bigint NOT NULL,
    retention_ms       bigint NOT NULL,
    dead_retention_ms  bigint NOT NULL,
    payload_max        int NOT NULL,
    paused             boolean NOT NULL,
    -- Whether jobs may enter without being counted or refused.
    plain              boolean NOT NULL,
    dropped_at         bigint,
    settings           bytea NOT NULL,
    UNIQUE (ns, name)
);

-- The numbers of arrivals and places, and of leases.
CREATE SEQUENCE numbers CACHE 1;
CREATE SEQUENCE tokens CACHE 1;

-- state: 0 waiting, 1 leased, 2 done, 3 dead, 4 cancelled. rank is the negated priority. holds
-- counts the reasons why a waiting job may not start; a job that was found expired has one.
CREATE TABLE jobs (
    seq          bigint NOT NULL,
    place        bigint NOT NULL,
    due_at       bigint NOT NULL,
    created_at   bigint NOT NULL,
    expires_at   bigint,
    token        bigint,
    leased_at    bigint,
    deadline_at  bigint,
    finished_at  bigint,
    lease_ms     bigint,
    ns           int NOT NULL,
    queue        int NOT NULL,
    attempt      int NOT NULL DEFAULT 0,
    crashes      int NOT NULL DEFAULT 0,
    releases     int NOT NULL DEFAULT 0,
    version      int NOT NULL DEFAULT 1,
    holds        int NOT NULL DEFAULT 0,
    rank         smallint NOT NULL,
    state        smallint NOT NULL DEFAULT 0,
    cancel       boolean NOT NULL DEFAULT false,
    -- Whether the job has a row in notes: others are leased without looking for one.
    noted        boolean NOT NULL DEFAULT false,
    id           text COLLATE "C" NOT NULL,
    task         text COLLATE "C" NOT NULL,
    key          text COLLATE "C",
    tenant       text COLLATE "C",
    grp          text COLLATE "C",
    worker       text COLLATE "C",
    origin       text COLLATE "C",
    reason       text COLLATE "C",
    -- Rarely set fields, as JSON: content type, labels, headers, overrides.
    extra        bytea,
    payload      bytea NOT NULL,
    result       bytea
) WITH (
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_analyze_threshold = 5000,
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 1
);

CREATE UNIQUE INDEX jobs_id ON jobs (id, ns);
CREATE UNIQUE INDEX jobs_seq ON jobs (ns, seq);
CREATE INDEX jobs_ready ON jobs (queue, rank, due_at, place) WHERE state = 0 AND holds = 0;
CREATE INDEX jobs_aside ON jobs (queue, due_at) WHERE state = 0 AND holds <> 0;
CREATE INDEX jobs_leased ON jobs (ns, deadline_at, seq) INCLUDE (queue) WHERE state = 1;
CREATE INDEX jobs_stale ON jobs (queue, expires_at)
    WHERE state = 0 AND holds = 0 AND expires_at IS NOT NULL;
CREATE INDEX jobs_expiring ON jobs (ns, expires_at, seq) WHERE state = 0 AND expires_at IS NOT NULL;
CREATE INDEX jobs_ended ON jobs (queue, state, finished_at, seq) WHERE state >= 2;
CREATE INDEX jobs_failed ON jobs (ns, seq) WHERE state >= 3;

-- A once-only key outlives its job.
CREATE TABLE keys (
    ns        int NOT NULL,
    queue     int NOT NULL,
    key       text COLLATE "C" NOT NULL,
    id        text COLLATE "C" NOT NULL,
    until_at  bigint NOT NULL,
    -- When the pruner checks it: first when its window is over, then from time to time.
    look_at   bigint NOT NULL,
    PRIMARY KEY (queue, key)
);
CREATE INDEX keys_look ON keys (ns, look_at);

CREATE TABLE notes (
    job         bigint PRIMARY KEY,
    progress    float8,
    checkpoint  bytea,
    output      bytea
);

CREATE TABLE events (
    job     bigint NOT NULL,
    number  bigint NOT NULL DEFAULT nextval('numbers'),
    body    bytea NOT NULL,
    PRIMARY KEY (job, number)
);

CREATE TABLE records (
    ns       int NOT NULL,
    kind     text COLLATE "C" NOT NULL,
    key      text COLLATE "C" NOT NULL,
    version  bigint NOT NULL,
    value    bytea NOT NULL,
    PRIMARY KEY (ns, kind, key)
);

-- Until when a call waits for jobs of a namespace: otherwise no notification is sent.
CREATE TABLE waiters (
    ns        int PRIMARY KEY,
    until_at  bigint NOT NULL
) WITH (fillfactor = 20);
