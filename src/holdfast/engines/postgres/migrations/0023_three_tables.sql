-- A job is in three tables: what hardly changes is in `bodies`, a waiting or leased job also in
-- `jobs`, a done one also in `done`. Leasing and completing touch only narrow rows and few indexes.
-- Dead letters and cancelled jobs stay in `jobs`, because a redrive takes them back.
--
-- The table of all jobs becomes `bodies`; its other columns keep the jobs that were done before
-- this version, until the pruner deletes them, and are NULL for all others. `move_jobs` moves the
-- rest in bounded steps, each in a transaction of its own, before the first engine opens.

DROP INDEX jobs_ready, jobs_aside, jobs_leased, jobs_stale, jobs_expiring, jobs_failed, jobs_laned,
           jobs_exposed, jobs_grouped, jobs_dead;
ALTER TABLE jobs RENAME TO bodies;
ALTER INDEX jobs_id RENAME TO bodies_id;
ALTER INDEX jobs_seq RENAME TO bodies_seq;
ALTER INDEX jobs_ended RENAME TO bodies_ended;
ALTER TABLE bodies
    ALTER COLUMN place DROP NOT NULL,
    ALTER COLUMN due_at DROP NOT NULL,
    ALTER COLUMN queue DROP NOT NULL,
    ALTER COLUMN attempt DROP NOT NULL, ALTER COLUMN attempt DROP DEFAULT,
    ALTER COLUMN crashes DROP NOT NULL, ALTER COLUMN crashes DROP DEFAULT,
    ALTER COLUMN releases DROP NOT NULL, ALTER COLUMN releases DROP DEFAULT,
    ALTER COLUMN version DROP NOT NULL, ALTER COLUMN version DROP DEFAULT,
    ALTER COLUMN holds DROP NOT NULL, ALTER COLUMN holds DROP DEFAULT,
    ALTER COLUMN rank DROP NOT NULL,
    ALTER COLUMN state DROP NOT NULL, ALTER COLUMN state DROP DEFAULT,
    ALTER COLUMN cancel DROP NOT NULL, ALTER COLUMN cancel DROP DEFAULT,
    ALTER COLUMN noted DROP NOT NULL, ALTER COLUMN noted DROP DEFAULT,
    ALTER COLUMN flow DROP NOT NULL, ALTER COLUMN flow DROP DEFAULT;
-- A body is hardly ever written again, and its ids and numbers ascend.
ALTER TABLE bodies SET (fillfactor = 100);
ALTER INDEX bodies_id SET (fillfactor = 90);
ALTER INDEX bodies_seq SET (fillfactor = 90);

-- state: 0 waiting, 1 leased, 3 dead, 4 cancelled, 5 a leased dead letter. task, tenant and grp
-- repeat those of the body, because leasing chooses by them. So much of each page is left free that
-- leased versions of all its rows fit on it: then the log has only what differs between two
-- versions. The columns that a lease changes stand together for that.
CREATE TABLE jobs (
    seq          bigint NOT NULL,
    place        bigint NOT NULL,
    due_at       bigint NOT NULL,
    expires_at   bigint,
    finished_at  bigint,
    lease_ms     bigint,
    ns           int NOT NULL,
    queue        int NOT NULL,
    crashes      int NOT NULL DEFAULT 0,
    releases     int NOT NULL DEFAULT 0,
    holds        int NOT NULL DEFAULT 0,
    lane         int,
    rank         smallint NOT NULL,
    flow         smallint NOT NULL DEFAULT 0,
    cancel       boolean NOT NULL DEFAULT false,
    noted        boolean NOT NULL DEFAULT false,
    state        smallint NOT NULL DEFAULT 0,
    attempt      int NOT NULL DEFAULT 0,
    version      int NOT NULL DEFAULT 1,
    token        bigint,
    leased_at    bigint,
    deadline_at  bigint,
    worker       text COLLATE "C",
    task         text COLLATE "C" NOT NULL,
    tenant       text COLLATE "C",
    grp          text COLLATE "C",
    reason       text COLLATE "C",
    fingerprint  text COLLATE "C"
) WITH (
    fillfactor = 40,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_analyze_threshold = 5000,
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 1
);
CREATE UNIQUE INDEX jobs_seq ON jobs (ns, seq);
CREATE INDEX jobs_ready ON jobs (queue, rank, due_at, place) WHERE state = 0 AND holds = 0;
CREATE INDEX jobs_aside ON jobs (queue, due_at, place) WHERE state = 0 AND holds <> 0;
CREATE INDEX jobs_laned ON jobs (lane, rank, due_at, place)
    WHERE state = 0 AND holds = 0 AND lane IS NOT NULL;
CREATE INDEX jobs_leased ON jobs (ns, queue, deadline_at) WHERE state IN (1, 5);
CREATE INDEX jobs_stale ON jobs (queue, expires_at)
    WHERE state = 0 AND holds = 0 AND expires_at IS NOT NULL;
CREATE INDEX jobs_expiring ON jobs (ns, expires_at, seq) WHERE state = 0 AND expires_at IS NOT NULL;
CREATE UNIQUE INDEX jobs_exposed ON jobs (queue, grp)
    WHERE grp IS NOT NULL AND state = 0 AND (flow & 16) = 0;
CREATE INDEX jobs_grouped ON jobs (queue, grp, state, seq) WHERE grp IS NOT NULL AND state < 2;
CREATE INDEX jobs_dead ON jobs (queue, due_at, seq) WHERE state = 3;
CREATE INDEX jobs_ended ON jobs (queue, state, finished_at, seq) WHERE state >= 3;
CREATE INDEX jobs_failed ON jobs (ns, seq) WHERE state >= 3;

-- Rows are written once, and deleted by the pruner or by a redrive. Columns that few jobs set are
-- NULL instead of 0 or false.
CREATE TABLE done (
    seq          bigint NOT NULL,
    due_at       bigint NOT NULL,
    expires_at   bigint,
    token        bigint,
    leased_at    bigint,
    finished_at  bigint NOT NULL,
    ns           int NOT NULL,
    queue        int NOT NULL,
    attempt      int NOT NULL,
    version      int NOT NULL,
    rank         smallint,
    cancel       boolean,
    noted        boolean,
    crashes      int,
    releases     int,
    worker       text COLLATE "C",
    result       bytea
);
CREATE UNIQUE INDEX done_seq ON done (ns, seq);
CREATE INDEX done_ended ON done (queue, finished_at);

-- Where the move of older jobs has arrived.
CREATE TABLE older (
    ns        int NOT NULL,
    seq       bigint NOT NULL,
    is_moved  boolean NOT NULL
);
INSERT INTO older SELECT -1, -1, NOT EXISTS (SELECT FROM bodies);
-- Done jobs of before, newest first; no other job has an entry.
CREATE INDEX bodies_done ON bodies (ns, seq) WHERE state = 2;

-- The numbers, queues and tokens of all done jobs.
CREATE VIEW done_jobs AS
SELECT d.ns, d.seq, d.queue, d.token FROM done d
UNION ALL
SELECT b.ns, b.seq, b.queue, b.token FROM bodies b WHERE b.state = 2;

-- Jobs with their bodies: those that are not done, and all. They are looked up one by one, in the
-- order of a scan, because of OFFSET 0: a join of another kind would read whole tables.
CREATE VIEW undone_with_bodies AS
SELECT j.seq, j.ns, b.id, b.created_at, j.task, b.key, j.tenant, j.grp, b.origin, b.extra,
       b.payload, j.deadline_at, j.lane, j.place, j.due_at, j.queue, j.attempt, j.crashes,
       j.releases, j.version, j.rank, j.state, j.flow, j.cancel, j.noted, j.expires_at, j.token,
       j.leased_at, j.finished_at, j.worker, NULL::bytea AS result, j.reason, j.fingerprint
FROM jobs j
CROSS JOIN LATERAL (SELECT * FROM bodies x WHERE x.ns = j.ns AND x.seq = j.seq OFFSET 0) b;
CREATE VIEW all_jobs AS
SELECT b.seq, b.ns, b.id, b.created_at, b.task, b.key, b.tenant, b.grp, b.origin, b.extra,
    b.payload, j.deadline_at, j.lane,
    coalesce(j.place, b.seq) AS place,
    coalesce(j.due_at, d.due_at, b.due_at) AS due_at,
    coalesce(j.queue, d.queue, b.queue) AS queue,
    coalesce(j.attempt, d.attempt, b.attempt) AS attempt,
    coalesce(j.version, d.version, b.version) AS version,
    coalesce(j.state, 2::smallint) AS state,
    coalesce(j.flow, 0::smallint) AS flow,
    CASE WHEN j.seq IS NOT NULL THEN j.crashes WHEN d.seq IS NOT NULL THEN coalesce(d.crashes, 0)
         ELSE b.crashes END AS crashes,
    CASE WHEN j.seq IS NOT NULL THEN j.releases WHEN d.seq IS NOT NULL THEN coalesce(d.releases, 0)
         ELSE b.releases END AS releases,
    CASE WHEN j.seq IS NOT NULL THEN j.rank WHEN d.seq IS NOT NULL
         THEN coalesce(d.rank, 0::smallint) ELSE b.rank END AS rank,
    CASE WHEN j.seq IS NOT NULL THEN j.cancel WHEN d.seq IS NOT NULL THEN coalesce(d.cancel, false)
         ELSE b.cancel END AS cancel,
    CASE WHEN j.seq IS NOT NULL THEN j.noted WHEN d.seq IS NOT NULL THEN coalesce(d.noted, false)
         ELSE b.noted END AS noted,
    CASE WHEN j.seq IS NOT NULL THEN j.expires_at WHEN d.seq IS NOT NULL THEN d.expires_at
         ELSE b.expires_at END AS expires_at,
    CASE WHEN j.seq IS NOT NULL THEN j.token WHEN d.seq IS NOT NULL THEN d.token
         ELSE b.token END AS token,
    CASE WHEN j.seq IS NOT NULL THEN j.leased_at WHEN d.seq IS NOT NULL THEN d.leased_at
         ELSE b.leased_at END AS leased_at,
    CASE WHEN j.seq IS NOT NULL THEN j.finished_at WHEN d.seq IS NOT NULL THEN d.finished_at
         ELSE b.finished_at END AS finished_at,
    CASE WHEN j.seq IS NOT NULL THEN j.worker WHEN d.seq IS NOT NULL THEN d.worker
         ELSE b.worker END AS worker,
    CASE WHEN j.seq IS NOT NULL THEN NULL WHEN d.seq IS NOT NULL THEN d.result
         ELSE b.result END AS result,
    j.reason, j.fingerprint
FROM bodies b
LEFT JOIN LATERAL (SELECT * FROM jobs x WHERE x.ns = b.ns AND x.seq = b.seq OFFSET 0) j ON true
LEFT JOIN LATERAL (
    SELECT * FROM done x WHERE j.seq IS NULL AND x.ns = b.ns AND x.seq = b.seq OFFSET 0
) d ON true;

-- Moves the next older jobs that are not done out of `bodies`; returns whether there are more.
CREATE FUNCTION move_jobs(most int) RETURNS boolean LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    cursor_ older;
    last_ record;
    is_left boolean;
BEGIN
    SELECT o.* INTO cursor_ FROM older o FOR UPDATE;
    IF cursor_.is_moved THEN
        RETURN false;
    END IF;
    SELECT b.ns, b.seq INTO last_ FROM bodies b WHERE (b.ns, b.seq) > (cursor_.ns, cursor_.seq)
    ORDER BY b.ns, b.seq OFFSET most - 1 LIMIT 1;
    IF NOT FOUND THEN
        SELECT b.ns, b.seq INTO last_ FROM bodies b ORDER BY b.ns DESC, b.seq DESC LIMIT 1;
    END IF;
    INSERT INTO jobs (
        seq, place, due_at, expires_at, token, leased_at, deadline_at, finished_at, lease_ms, ns,
        queue, attempt, crashes, releases, version, holds, lane, rank, state, flow, cancel, noted,
        task, tenant, grp, worker, reason, fingerprint
    )
    SELECT b.seq, b.place, b.due_at, b.expires_at, b.token, b.leased_at, b.deadline_at,
           b.finished_at, b.lease_ms, b.ns, b.queue, b.attempt, b.crashes, b.releases, b.version,
           b.holds, b.lane, b.rank, b.state, b.flow, b.cancel, b.noted, b.task, b.tenant, b.grp,
           b.worker, b.reason, b.fingerprint
    FROM bodies b
    WHERE (b.ns, b.seq) > (cursor_.ns, cursor_.seq) AND (b.ns, b.seq) <= (last_.ns, last_.seq)
      AND b.state <> 2;
    UPDATE older SET ns = last_.ns, seq = last_.seq, is_moved = NOT EXISTS (
        SELECT FROM bodies b WHERE (b.ns, b.seq) > (last_.ns, last_.seq)
    )
    RETURNING NOT is_moved INTO is_left;
    RETURN is_left;
END $$;

DROP FUNCTION free_ids, remove, lease_jobs_by_id, complete_jobs, complete_light_jobs,
              complete_flow_jobs, rewrite_jobs;

-- Locks jobs in the order of seq, in which the list must be, so that their state does not change
-- before the end of the transaction: the rows in jobs, then those of done jobs.
CREATE FUNCTION lock_jobs(ns_ int, seqs bigint[]) RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off AS $$
DECLARE
    left_ bigint[];
BEGIN
    left_ := ARRAY(
        SELECT w.seq FROM unnest(seqs) AS w(seq) EXCEPT SELECT j.seq FROM unnest(seqs) AS w(seq)
        CROSS JOIN LATERAL (
            SELECT c.seq FROM jobs c WHERE c.ns = ns_ AND c.seq = w.seq FOR NO KEY UPDATE
        ) j
        ORDER BY 1
    );
    IF cardinality(left_) = 0 THEN
        RETURN;
    END IF;
    left_ := ARRAY(
        SELECT w.seq FROM unnest(left_) AS w(seq) EXCEPT SELECT d.seq FROM unnest(left_) AS w(seq)
        CROSS JOIN LATERAL (
            SELECT c.seq FROM done c WHERE c.ns = ns_ AND c.seq = w.seq FOR NO KEY UPDATE
        ) d
        ORDER BY 1
    );
    IF cardinality(left_) = 0 THEN
        RETURN;
    END IF;
    left_ := ARRAY(
        SELECT w.seq FROM unnest(left_) AS w(seq) EXCEPT SELECT b.seq FROM unnest(left_) AS w(seq)
        CROSS JOIN LATERAL (
            SELECT c.seq FROM bodies c WHERE c.ns = ns_ AND c.seq = w.seq AND c.state + 0 = 2
            FOR NO KEY UPDATE
        ) b
    );
    IF EXISTS (
        SELECT FROM unnest(left_) AS w(seq)
        CROSS JOIN LATERAL (SELECT FROM bodies b WHERE b.ns = ns_ AND b.seq = w.seq OFFSET 0) b
    ) THEN
        RAISE serialization_failure USING MESSAGE = 'a done job was put back meanwhile';
    END IF;
END $$;

-- The numbers of the jobs with these ids, in the same order; NULL for an id that is not known.
CREATE FUNCTION seqs_of(ns_ int, ids text[]) RETURNS bigint[] LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
BEGIN
    RETURN ARRAY(
        SELECT (SELECT b.seq FROM bodies b WHERE b.id = w.id AND b.ns + 0 = ns_)
        FROM unnest(ids) WITH ORDINALITY AS w(id, o) ORDER BY w.o
    );
END $$;

CREATE OR REPLACE FUNCTION hold(ns_ int, seqs bigint[], whole boolean) RETURNS SETOF kept
LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off AS $$
BEGIN
    PERFORM lock_jobs(ns_, seqs);
    RETURN QUERY
    SELECT j.id, j.seq, j.place, q.name, j.task, CASE WHEN whole THEN j.payload END,
           j.extra, j.rank, j.version, j.attempt, j.crashes, j.releases, j.created_at, j.due_at,
           j.expires_at, j.leased_at, j.deadline_at, j.token, j.worker, j.cancel, j.reason, j.key,
           j.tenant, j.grp, j.origin, NULL::float8, NULL::bytea, j.state, j.finished_at, j.noted,
           j.fingerprint, j.flow
    FROM unnest(seqs) AS w(seq)
    CROSS JOIN LATERAL (
        SELECT * FROM all_jobs c WHERE c.ns = ns_ AND c.seq = w.seq OFFSET 0
    ) j
    JOIN queues q ON q.number = j.queue
    WHERE q.name IS NOT NULL;
END $$;

CREATE OR REPLACE FUNCTION hold_ids(ns_ int, ids text[], whole boolean) RETURNS SETOF kept
LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off AS $$
BEGIN
    RETURN QUERY
    SELECT * FROM hold(ns_, ARRAY(
        SELECT DISTINCT w.seq FROM unnest(seqs_of(ns_, ids)) AS w(seq)
        WHERE w.seq IS NOT NULL ORDER BY w.seq
    ), whole);
END $$;

CREATE OR REPLACE FUNCTION known_ids(ns_ int, ids text[])
RETURNS TABLE (id_ text, is_left boolean) LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off AS $$
BEGIN
    RETURN QUERY
    SELECT w.id, x.is_left FROM unnest(ids) AS w(id)
    CROSS JOIN LATERAL (
        SELECT (SELECT q.name FROM queues q WHERE q.number = c.queue) IS NULL AS is_left
        FROM all_jobs c WHERE c.id = w.id AND c.ns + 0 = ns_ OFFSET 0
    ) x;
END $$;

CREATE OR REPLACE FUNCTION known(ns_ int, ids text[]) RETURNS SETOF text LANGUAGE sql
SET search_path FROM CURRENT AS $$
    SELECT k.id_ FROM known_ids(ns_, ids) k WHERE NOT k.is_left
$$;

CREATE OR REPLACE FUNCTION hold_parents(ns_ int, ids text[])
RETURNS TABLE (id_ text, state_ smallint) LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off AS $$
DECLARE
    seqs bigint[] := ARRAY(
        SELECT DISTINCT w.seq FROM unnest(seqs_of(ns_, ids)) AS w(seq)
        WHERE w.seq IS NOT NULL ORDER BY w.seq
    );
BEGIN
    PERFORM lock_jobs(ns_, seqs);
    RETURN QUERY
    SELECT j.id, j.state FROM unnest(seqs) AS w(seq)
    CROSS JOIN LATERAL (
        SELECT c.id, c.state, c.queue FROM all_jobs c WHERE c.ns = ns_ AND c.seq = w.seq OFFSET 0
    ) j
    CROSS JOIN LATERAL (
        SELECT FROM queues q WHERE q.number = j.queue AND q.name IS NOT NULL OFFSET 0
    ) q;
END $$;

CREATE OR REPLACE FUNCTION remove_keys(ns_ int, now_ bigint, most int) RETURNS void
LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off AS $$
DECLARE
    places tid[] := ARRAY(
        SELECT k.ctid FROM keys k WHERE k.ns = ns_ AND k.look_at <= now_
        ORDER BY k.look_at LIMIT most FOR UPDATE SKIP LOCKED
    );
BEGIN
    DELETE FROM keys k
    WHERE k.ctid = ANY (places) AND k.until_at <= now_ AND NOT EXISTS (
        SELECT FROM bodies b JOIN jobs j ON j.ns = b.ns AND j.seq = b.seq
        WHERE b.id = k.id AND b.ns + 0 = ns_ AND j.state + 0 < 2
    );
    UPDATE keys k SET look_at = now_ + 600000 WHERE k.ctid = ANY (places);
END $$;

CREATE OR REPLACE FUNCTION recognise(ns_ int, ids text[]) RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
DECLARE
    parents text[] := ARRAY(
        SELECT a.parent FROM awaited a WHERE a.ns = ns_ AND a.parent = ANY (ids)
        ORDER BY a.parent FOR UPDATE
    );
BEGIN
    IF cardinality(parents) > 0 THEN
        UPDATE jobs j SET flow = j.flow | 8
        WHERE j.ns = ns_ AND j.seq = ANY (seqs_of(ns_, parents));
        DELETE FROM awaited a WHERE a.ns = ns_ AND a.parent = ANY (parents);
    END IF;
END $$;

-- Writes which parents new jobs wait for. The parents' rows are locked.
CREATE OR REPLACE FUNCTION link_jobs(
    ns_ int, seqs bigint[], on_dones smallint[], on_deaths smallint[], parents text[]
) RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off AS $$
BEGIN
    INSERT INTO edges (child, ns, on_done, on_death, parent)
    SELECT u.seq, ns_, u.on_done, u.on_death, u.parent
    FROM unnest(seqs, on_dones, on_deaths, parents) AS u(seq, on_done, on_death, parent);
    UPDATE jobs j SET flow = j.flow | 8
    FROM (
        SELECT DISTINCT w.seq FROM unnest(seqs_of(ns_, ARRAY(
            SELECT DISTINCT u.parent FROM unnest(parents) AS u(parent)
        ))) AS w(seq)
    ) p
    CROSS JOIN LATERAL (
        SELECT c.ctid FROM jobs c WHERE c.ns = ns_ AND c.seq = p.seq AND (c.flow & 8) = 0 OFFSET 0
    ) x
    WHERE j.ctid = x.ctid;
END $$;

-- Adds admitted jobs, given in the order of their ids; returns the ids that were already known.
-- `decided` means that none of them was known a moment ago: if one is, the call fails and is
-- repeated. Otherwise NULL means that another call is just removing one of the ids. An empty array
-- stands for a column of defaults; refs are positions in queue_numbers; without seqs the jobs are
-- numbered in the order given. Known ids are rare: looking for them only after an insert failed
-- makes all other calls faster.
CREATE OR REPLACE FUNCTION insert_jobs(
    ns_ int, at bigint, decided boolean, queue_numbers int[], refs int[], seqs bigint[],
    ids text[], tasks text[], payloads bytea[], ranks smallint[], delays bigint[],
    expiries bigint[], keys_ text[], tenants text[], grps text[], leases bigint[],
    extras bytea[], lanes_ int[], flows_ smallint[], holds_ int[]
) RETURNS text[] LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off AS $$
DECLARE
    known_ text[] := '{}';
    fresh text[];
    fresh_seqs bigint[];
    free text[];
BEGIN
    IF cardinality(seqs) = 0 THEN
        seqs := ARRAY(SELECT nextval('numbers') FROM generate_series(1, cardinality(ids)));
    END IF;
    BEGIN
        INSERT INTO bodies (seq, created_at, ns, id, task, key, tenant, grp, extra, payload)
        SELECT u.seq, at, ns_, u.id, u.task, u.key, u.tenant, u.grp, u.extra, u.payload
        FROM unnest(seqs, ids, tasks, keys_, tenants, grps, extras, payloads)
             AS u(seq, id, task, key, tenant, grp, extra, payload);
    EXCEPTION WHEN unique_violation THEN
        BEGIN
            known_ := ids;
            LOOP
                WITH added AS (
                    INSERT INTO bodies (
                        seq, created_at, ns, id, task, key, tenant, grp, extra, payload
                    )
                    SELECT u.seq, at, ns_, u.id, u.task, u.key, u.tenant, u.grp, u.extra, u.payload
                    FROM unnest(seqs, ids, tasks, keys_, tenants, grps, extras, payloads)
                         AS u(seq, id, task, key, tenant, grp, extra, payload)
                    WHERE free IS NULL OR u.id = ANY (free)
                    ON CONFLICT (id, ns) DO NOTHING
                    RETURNING bodies.id, bodies.seq
                )
                SELECT fresh || array_agg(a.id), fresh_seqs || array_agg(a.seq)
                INTO fresh, fresh_seqs FROM added a;
                known_ := ARRAY(SELECT unnest(ids) EXCEPT SELECT unnest(fresh));
                EXIT WHEN free IS NOT NULL;
                free := free_leftovers(ns_, known_);
                EXIT WHEN cardinality(free) = 0;
            END LOOP;
        EXCEPTION WHEN lock_not_available THEN
            IF decided THEN
                RAISE serialization_failure USING MESSAGE = 'another call removes the same ids';
            END IF;
            RETURN NULL;
        END;
        IF decided AND cardinality(known_) > 0 THEN
            RAISE serialization_failure USING MESSAGE = 'another call added the same ids';
        END IF;
    END;
    INSERT INTO jobs (
        seq, place, due_at, expires_at, lease_ms, ns, queue, rank, task, tenant, grp, lane, flow,
        holds
    )
    SELECT u.seq, u.seq, at + coalesce(u.delay, 0), at + u.expiry, u.lease_ms, ns_,
           queue_numbers[coalesce(u.ref, 1)], coalesce(u.rank, 0), u.task, u.tenant, u.grp, u.lane,
           coalesce(u.flow, 0), coalesce(u.hold, 0)
    FROM unnest(seqs, refs, tasks, ranks, delays, expiries, tenants, grps, leases, lanes_, flows_,
                holds_)
         AS u(seq, ref, task, rank, delay, expiry, tenant, grp, lease_ms, lane, flow, hold)
    WHERE cardinality(known_) = 0 OR u.seq = ANY (fresh_seqs);
    IF EXISTS (SELECT FROM awaited) THEN
        PERFORM recognise(ns_, ids);
    END IF;
    IF cardinality(flows_) > 0 THEN
        PERFORM regroup(at, queue_numbers_of.numbers, grps) FROM (
            SELECT array_agg(queue_numbers[coalesce(u.ref, 1)] ORDER BY u.o) AS numbers
            FROM unnest(refs, ids) WITH ORDINALITY AS u(ref, id, o)
        ) queue_numbers_of
        WHERE cardinality(grps) > 0;
        PERFORM refresh(at, lanes_, CASE WHEN cardinality(ranks) > 0 THEN ranks
            ELSE array_fill(0::smallint, ARRAY[cardinality(lanes_)]) END)
        WHERE cardinality(lanes_) > 0;
    END IF;
    PERFORM wake_leases(ns_);
    RETURN known_;
END $$;

CREATE OR REPLACE FUNCTION insert_plain_jobs(
    ns_ int, given bigint, names text[], bytes_max int, refs int[], places int[], ids text[],
    tasks text[], payloads bytea[], ranks smallint[], delays bigint[], expiries bigint[],
    tenants text[], grps text[], leases bigint[], extras bytea[]
) RETURNS text[] LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off AS $$
DECLARE
    queue_numbers int[];
    numbers_ bigint[];
    seqs bigint[] := '{}';
BEGIN
    -- The shared locks keep these queues from getting lanes before this transaction ends.
    PERFORM pg_advisory_xact_lock_shared(ns_, hashtext(w.name)) FROM unnest(names) AS w(name);
    queue_numbers := ARRAY(
        SELECT q.number
        FROM unnest(names) WITH ORDINALITY AS w(name, o)
        JOIN queues q ON q.ns = ns_ AND q.name = w.name
        WHERE q.plain AND q.payload_max >= bytes_max
        ORDER BY w.o
    );
    IF cardinality(queue_numbers) < cardinality(names) THEN
        RETURN NULL;
    END IF;
    IF cardinality(places) > 0 THEN
        numbers_ := ARRAY(SELECT nextval('numbers') FROM generate_series(1, cardinality(ids)));
        seqs := ARRAY(
            SELECT numbers_[u.place] FROM unnest(places) WITH ORDINALITY AS u(place, o)
            ORDER BY u.o
        );
    END IF;
    RETURN insert_jobs(ns_, now_ms(given), false, queue_numbers, refs, seqs, ids, tasks, payloads,
                    ranks, delays, expiries, '{}', tenants, grps, leases, extras, '{}', '{}', '{}');
END $$;

CREATE OR REPLACE FUNCTION free_leftovers(ns_ int, ids text[]) RETURNS text[] LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off AS $$
DECLARE
    seqs bigint[];
    free text[];
BEGIN
    SELECT array_agg(x.seq), array_agg(x.id) INTO seqs, free
    FROM unnest(ids) AS w(id)
    CROSS JOIN LATERAL (
        SELECT c.seq, c.id FROM all_jobs c
        WHERE c.id = w.id AND c.ns + 0 = ns_
          AND (SELECT q.name FROM queues q WHERE q.number = c.queue) IS NULL
        OFFSET 0
    ) x;
    IF seqs IS NULL THEN
        RETURN '{}';
    END IF;
    PERFORM FROM unnest(seqs) AS w(seq)
    CROSS JOIN LATERAL (
        SELECT FROM bodies c WHERE c.ns = ns_ AND c.seq = w.seq FOR UPDATE NOWAIT
    ) b;
    PERFORM FROM unnest(seqs) AS w(seq)
    CROSS JOIN LATERAL (
        SELECT FROM jobs c WHERE c.ns = ns_ AND c.seq = w.seq FOR UPDATE NOWAIT
    ) j;
    PERFORM FROM unnest(seqs) AS w(seq)
    CROSS JOIN LATERAL (
        SELECT FROM done c WHERE c.ns = ns_ AND c.seq = w.seq FOR UPDATE NOWAIT
    ) d;
    PERFORM erase_jobs(ns_, now_ms(NULL), seqs);
    RETURN free;
END $$;

-- Leases of jobs that this transaction has leased or renewed, in the order given; none of a queue
-- that was dropped meanwhile.
CREATE FUNCTION leased_rows(ns_ int, places tid[]) RETURNS SETOF held LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_nestloop = off SET enable_mergejoin = off
SET enable_bitmapscan = off AS $$
BEGIN
    RETURN QUERY
    WITH leased AS MATERIALIZED (
        SELECT j.*, w.o, q.name AS queue_name
        FROM unnest(places) WITH ORDINALITY AS w(place, o)
        CROSS JOIN LATERAL (SELECT * FROM jobs x WHERE x.ctid = w.place OFFSET 0) j
        CROSS JOIN LATERAL (
            SELECT x.name FROM queues x WHERE x.number = j.queue AND x.name IS NOT NULL OFFSET 0
        ) q
    )
    SELECT b.id, l.seq, l.place, l.queue_name, l.task, b.payload, b.extra, l.rank, l.version,
           l.attempt, l.crashes, l.releases, b.created_at, l.due_at, l.expires_at, l.leased_at,
           l.deadline_at, l.token, l.worker, l.cancel, l.reason, b.key, l.tenant, l.grp, b.origin,
           CASE WHEN l.noted THEN (SELECT n.progress FROM notes n WHERE n.job = l.seq) END,
           CASE WHEN l.noted THEN (SELECT n.checkpoint FROM notes n WHERE n.job = l.seq) END
    FROM leased l
    JOIN (
        SELECT x.seq, x.id, x.payload, x.extra, x.created_at, x.key, x.origin
        FROM bodies x
        WHERE x.ns = ns_ AND x.seq = ANY (ARRAY(SELECT y.seq FROM leased y)) OFFSET 0
    ) b ON b.seq = l.seq
    ORDER BY l.o;
END $$;

-- Leases due jobs of the named queues, in their order. Priorities are walked by index probes, so
-- that any number of jobs that are not due costs nothing. A single row without an id means that
-- expired jobs were held and more may be in the way: call again.
CREATE OR REPLACE FUNCTION lease_jobs(
    ns_ int, given bigint, names text[], most int, worker_ text, span bigint, tasks text[]
) RETURNS SETOF held LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_nestloop = off SET enable_mergejoin = off
SET enable_bitmapscan = off AS $$
DECLARE
    now_ bigint := now_ms(given);
    need int := most;
    line record;
    level smallint;
    first_due bigint;
    count_ int;
    sign held;
BEGIN
    FOR line IN
        SELECT q.number, q.name, q.lease_ms, bool_or(q.laned) OVER () AS laned
        FROM unnest(names) WITH ORDINALITY AS w(name, o)
        CROSS JOIN LATERAL (
            SELECT * FROM queues x WHERE x.ns = ns_ AND x.name = w.name OFFSET 0
        ) q
        WHERE NOT q.paused
        ORDER BY w.o
    LOOP
        IF line.laned THEN
            sign.seq := -1;
            sign.queue := array_to_string(ARRAY(
                SELECT q.name FROM queues q WHERE q.ns = ns_ AND q.name = ANY (names) AND q.laned
            ), ',');
            RETURN NEXT sign;
            RETURN;
        END IF;
        PERFORM FROM jobs j
        WHERE j.queue = line.number AND j.state = 0 AND j.holds = 0 AND j.expires_at <= now_
        ORDER BY j.expires_at LIMIT 1;
        IF FOUND AND set_plain_aside(line.number, now_) THEN
            IF need = most THEN
                RETURN NEXT NULL::held;
            END IF;
            RETURN;
        END IF;
        level := -32768;
        LOOP
            SELECT j.rank, j.due_at INTO level, first_due FROM jobs j
            WHERE j.queue = line.number AND j.state = 0 AND j.holds = 0 AND j.rank > level
            ORDER BY j.rank, j.due_at LIMIT 1;
            EXIT WHEN NOT FOUND;
            CONTINUE WHEN first_due > now_;
            RETURN QUERY
            WITH leased AS (
                UPDATE jobs j SET
                    state = 1, attempt = j.attempt + 1, version = j.version + 1, worker = worker_,
                    token = nextval('tokens') << 16 | floor(random() * 65536)::bigint,
                    leased_at = now_, deadline_at = now_ + coalesce(span, j.lease_ms, line.lease_ms)
                WHERE j.ctid = ANY (ARRAY(
                    SELECT c.ctid FROM jobs c
                    WHERE c.queue = line.number AND c.state = 0 AND c.holds = 0 AND c.rank = level
                      AND c.due_at BETWEEN first_due AND now_
                      AND c.lane IS NULL -- Its queue may have come to have lanes meanwhile.
                      AND (c.expires_at IS NULL OR c.expires_at > now_)
                      AND (tasks IS NULL OR c.task = ANY (tasks))
                    ORDER BY c.due_at, c.place LIMIT need FOR NO KEY UPDATE SKIP LOCKED
                ))
                RETURNING
                    j.seq, j.place, j.task, j.rank, j.version, j.attempt, j.crashes, j.releases,
                    j.due_at, j.expires_at, j.leased_at, j.deadline_at, j.token, j.worker, j.cancel,
                    j.reason, j.tenant, j.grp, j.noted
            )
            -- A body changes only together with the row in jobs: this one is of the same version.
            SELECT b.id, l.seq, l.place, line.name, l.task, b.payload, b.extra, l.rank, l.version,
                   l.attempt, l.crashes, l.releases, b.created_at, l.due_at, l.expires_at,
                   l.leased_at, l.deadline_at, l.token, l.worker, l.cancel, l.reason, b.key,
                   l.tenant, l.grp, b.origin,
                   CASE WHEN l.noted THEN (SELECT n.progress FROM notes n WHERE n.job = l.seq) END,
                   CASE WHEN l.noted THEN (SELECT n.checkpoint FROM notes n WHERE n.job = l.seq) END
            FROM leased l
            JOIN (
                SELECT x.seq, x.id, x.payload, x.extra, x.created_at, x.key, x.origin
                FROM bodies x
                WHERE x.ns = ns_ AND x.seq = ANY (ARRAY(SELECT y.seq FROM leased y)) OFFSET 0
            ) b ON b.seq = l.seq;
            GET DIAGNOSTICS count_ = ROW_COUNT;
            need := need - count_;
            IF need <= 0 THEN
                RETURN;
            END IF;
        END LOOP;
    END LOOP;
END $$;

-- Leases the jobs with these ids that are due, in their order. A single row with the seq -1 means
-- that one of them waits in a lane.
CREATE FUNCTION lease_jobs_by_id(
    ns_ int, given bigint, ids text[], most int, worker_ text, span bigint, tasks text[]
) RETURNS SETOF held LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off AS $$
DECLARE
    now_ bigint := now_ms(given);
    seqs bigint[] := seqs_of(ns_, ids);
    places tid[];
    sign held;
BEGIN
    PERFORM FROM unnest(seqs) AS w(seq)
    CROSS JOIN LATERAL (
        SELECT FROM jobs c
        WHERE c.ns = ns_ AND c.seq = w.seq AND c.state + 0 = 0 AND c.holds = 0
          AND c.lane IS NOT NULL
        OFFSET 0
    ) x;
    IF FOUND THEN
        sign.seq := -1;
        RETURN NEXT sign;
        RETURN;
    END IF;
    WITH leased AS (
        UPDATE jobs j SET
            state = 1, attempt = j.attempt + 1, version = j.version + 1, worker = worker_,
            token = nextval('tokens') << 16 | floor(random() * 65536)::bigint,
            leased_at = now_, deadline_at = now_ + coalesce(span, j.lease_ms, q.lease_ms)
        FROM queues q
        WHERE q.number = j.queue AND j.ctid = ANY (ARRAY(
            SELECT x.ctid
            FROM unnest(seqs) WITH ORDINALITY AS w(seq, o)
            CROSS JOIN LATERAL (
                SELECT c.ctid FROM jobs c
                WHERE c.ns = ns_ AND c.seq = w.seq AND c.state + 0 = 0 AND c.holds = 0
                  AND c.due_at <= now_ AND c.lane IS NULL
                  AND (c.expires_at IS NULL OR c.expires_at > now_)
                  AND (tasks IS NULL OR c.task = ANY (tasks))
                  AND EXISTS (
                    SELECT FROM queues p
                    WHERE p.number = c.queue AND p.name IS NOT NULL AND NOT p.paused
                      AND NOT p.laned
                  )
                FOR NO KEY UPDATE SKIP LOCKED
            ) x
            LIMIT most
        ))
        RETURNING j.ctid AS place
    )
    SELECT array_agg(l.place) INTO places FROM leased l;
    RETURN QUERY SELECT * FROM leased_rows(ns_, places);
END $$;

CREATE OR REPLACE FUNCTION renew_leases(
    ns_ int, given bigint, ids text[], tokens_ bigint[], spans bigint[], progresses float8[],
    checkpoints bytea[], outputs bytea[]
) RETURNS SETOF held LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off AS $$
DECLARE
    now_ bigint;
    places tid[];
    seqs bigint[];
    deadlines bigint[];
    winners int[];
BEGIN
    SELECT array_agg(x.ctid), array_agg(x.seq), array_agg(x.deadline_at), array_agg(w.o::int)
    INTO places, seqs, deadlines, winners
    FROM unnest(seqs_of(ns_, ids), tokens_) WITH ORDINALITY AS w(seq, token, o)
    CROSS JOIN LATERAL (
        SELECT c.ctid, c.seq, c.deadline_at FROM jobs c
        WHERE c.ns = ns_ AND c.seq = w.seq AND c.token = w.token AND c.state + 0 IN (1, 5)
        FOR NO KEY UPDATE
    ) x;
    now_ := now_ms(given);
    IF now_ >= ANY (deadlines) THEN
        SELECT array_agg(u.place), array_agg(u.seq), array_agg(u.o)
        INTO places, seqs, winners
        FROM unnest(places, seqs, deadlines, winners) AS u(place, seq, deadline_at, o)
        WHERE u.deadline_at > now_;
    END IF;
    IF cardinality(progresses) > 0 THEN
        INSERT INTO notes (job, progress, checkpoint, output)
        SELECT u.seq, progresses[u.o], checkpoints[u.o], outputs[u.o]
        FROM unnest(seqs, winners) AS u(seq, o)
        WHERE NOT (progresses[u.o] IS NULL AND checkpoints[u.o] IS NULL AND outputs[u.o] IS NULL)
        ON CONFLICT (job) DO UPDATE SET
            progress = coalesce(excluded.progress, notes.progress),
            checkpoint = coalesce(excluded.checkpoint, notes.checkpoint),
            output = coalesce(excluded.output, notes.output);
    END IF;
    WITH renewed AS (
        UPDATE jobs j SET
            deadline_at = now_ + spans[u.o],
            noted = j.noted OR (cardinality(progresses) > 0 AND NOT (
                progresses[u.o] IS NULL AND checkpoints[u.o] IS NULL AND outputs[u.o] IS NULL))
        FROM unnest(places, winners) AS u(place, o), queues q
        WHERE j.ctid = u.place AND q.number = j.queue AND q.name IS NOT NULL
        RETURNING j.ctid AS place
    )
    SELECT array_agg(r.place) INTO places FROM renewed r;
    RETURN QUERY SELECT * FROM leased_rows(ns_, places);
END $$;

-- Completes jobs without flow control, given by number and token. NULL means that all are done;
-- otherwise the numbers of those that are, after a NULL if others turned out to have flow control.
CREATE FUNCTION complete_jobs(
    ns_ int, given bigint, seqs bigint[], tokens_ bigint[], results bytea[]
) RETURNS bigint[] LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_nestloop = off SET enable_mergejoin = off
SET enable_bitmapscan = off SET lock_timeout = '50ms' AS $$
DECLARE
    now_ bigint := now_ms(given);
    count_ int;
    answer bigint[];
    is_left boolean;
BEGIN
    FOR _ IN 1..10 LOOP
        WITH ended AS (
            DELETE FROM jobs j
            USING unnest(seqs, tokens_, results) AS u(seq, token, result)
            WHERE j.ns = ns_ AND j.seq = ANY (seqs) AND j.seq = u.seq AND j.token = u.token
              AND j.state + 0 < 2 AND j.flow = 0
            RETURNING j.*, u.result
        )
        INSERT INTO done (
            seq, due_at, expires_at, token, leased_at, finished_at, ns, queue, attempt, crashes,
            releases, version, rank, cancel, noted, worker, result
        )
        SELECT e.seq, e.due_at, e.expires_at, e.token, e.leased_at, now_, e.ns, e.queue, e.attempt,
               nullif(e.crashes, 0), nullif(e.releases, 0), e.version + 1,
               nullif(e.rank, 0::smallint), nullif(e.cancel, false), nullif(e.noted, false),
               e.worker, e.result
        FROM ended e;
        GET DIAGNOSTICS count_ = ROW_COUNT;
        IF count_ = cardinality(seqs) THEN
            RETURN NULL;
        END IF;
        SELECT array_agg(x.seq ORDER BY x.seq NULLS FIRST), bool_or(x.is_left)
        INTO answer, is_left
        FROM unnest(seqs, tokens_) AS u(seq, token)
        CROSS JOIN LATERAL (
            SELECT NULL::bigint AS seq, c.flow = 0 AS is_left FROM jobs c
            WHERE c.ns = ns_ AND c.seq = u.seq AND c.token = u.token AND c.state + 0 < 2
            UNION ALL
            SELECT d.seq, false FROM done_jobs d
            WHERE d.ns = ns_ AND d.seq = u.seq AND d.token = u.token
        ) x;
        IF is_left IS NOT TRUE THEN
            RETURN coalesce(answer, '{}');
        END IF;
        -- The next round must not wait, because rows behind the remaining ones are already locked.
        BEGIN
            PERFORM FROM unnest(seqs, tokens_) AS u(seq, token)
            CROSS JOIN LATERAL (
                SELECT FROM jobs c
                WHERE c.ns = ns_ AND c.seq = u.seq AND c.token = u.token AND c.state + 0 < 2
                  AND c.flow = 0
                FOR NO KEY UPDATE NOWAIT
            ) x;
        EXCEPTION WHEN lock_not_available THEN
            EXIT;
        END;
    END LOOP;
    RAISE serialization_failure USING MESSAGE = 'other calls are changing the same jobs';
END $$;

-- Completes jobs that are not both in a group and in a lane, without the flow lock: what they free
-- is counted by the next call that holds it. `done` is NULL if all are done.
CREATE FUNCTION complete_light_jobs(
    ns_ int, given bigint, names text[], grouped boolean, seqs bigint[], tokens_ bigint[],
    results bytea[],
    OUT done_ bigint[], OUT endings_ bigint[], OUT had_flow boolean, OUT is_left boolean
) LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off SET lock_timeout = '50ms' AS $$
DECLARE
    now_ bigint;
    free int[] := '{}';
    count_ int;
    lanes_ int[];
    queues_ int[];
    tenants_ text[];
    leased_ats bigint[];
    grp_queues int[];
    grps text[];
    parents bigint[];
BEGIN
    IF grouped THEN
        free := share_flow(ns_, names);
    END IF;
    now_ := now_ms(given);
    WITH ended AS (
        DELETE FROM jobs j
        USING unnest(seqs, tokens_, results) AS u(seq, token, result)
        CROSS JOIN LATERAL (
            SELECT c.ctid FROM jobs c
            WHERE c.ns = ns_ AND c.seq = u.seq AND c.token = u.token AND c.state + 0 = 1
              AND (c.grp IS NULL OR (c.lane IS NULL AND c.queue = ANY (free)))
            OFFSET 0
        ) x
        WHERE j.ctid = x.ctid AND j.token = u.token AND j.state + 0 = 1
        RETURNING j.*, u.result
    ), kept_ AS (
        INSERT INTO done (
            seq, due_at, expires_at, token, leased_at, finished_at, ns, queue, attempt, crashes,
            releases, version, rank, cancel, noted, worker, result
        )
        SELECT e.seq, e.due_at, e.expires_at, e.token, e.leased_at, now_, e.ns, e.queue, e.attempt,
               nullif(e.crashes, 0), nullif(e.releases, 0), e.version + 1,
               nullif(e.rank, 0::smallint), nullif(e.cancel, false), nullif(e.noted, false),
               e.worker, e.result
        FROM ended e
    )
    SELECT count(*), bool_or(e.flow <> 0), array_agg(e.lane) FILTER (WHERE e.flow & 33 <> 0),
           array_agg(e.queue) FILTER (WHERE e.flow & 33 <> 0),
           array_agg(e.tenant) FILTER (WHERE e.flow & 33 <> 0),
           array_agg(e.leased_at) FILTER (WHERE e.flow & 33 <> 0),
           array_agg(e.queue) FILTER (WHERE e.grp IS NOT NULL),
           array_agg(e.grp) FILTER (WHERE e.grp IS NOT NULL),
           array_agg(e.seq) FILTER (WHERE e.flow & 8 <> 0)
    INTO count_, had_flow, lanes_, queues_, tenants_, leased_ats, grp_queues, grps, parents
    FROM ended e;
    IF queues_ IS NOT NULL THEN
        PERFORM vacate(now_, lanes_, queues_, tenants_, leased_ats);
    END IF;
    is_left := grps IS NOT NULL;
    WHILE is_left LOOP
        -- A job that just became a parent is skipped, and found at its new version next time.
        WITH next_ AS MATERIALIZED (
            SELECT x.ctid AS place FROM unnest(grp_queues, grps) AS u(queue, grp)
            CROSS JOIN LATERAL (
                SELECT y.ctid, y.flow FROM jobs y
                WHERE y.queue = u.queue AND y.grp = u.grp AND y.state = 0 ORDER BY y.seq LIMIT 1
            ) x
            WHERE (x.flow & 16) <> 0 AND NOT EXISTS (
                SELECT FROM jobs y WHERE y.queue = u.queue AND y.grp = u.grp AND y.state = 1
            )
        ), exposed AS (
            UPDATE jobs j SET flow = j.flow & ~16, holds = j.holds - 1
            FROM next_ n WHERE j.ctid = n.place RETURNING j.seq
        )
        SELECT count(*) < (SELECT count(*) FROM next_) INTO is_left FROM exposed;
    END LOOP;
    IF parents IS NOT NULL THEN
        WITH told AS (
            INSERT INTO endings (ns, state, parent)
            SELECT ns_, 2, b.id FROM unnest(parents) WITH ORDINALITY AS u(seq, o)
            CROSS JOIN LATERAL (
                SELECT x.id FROM bodies x WHERE x.ns = ns_ AND x.seq = u.seq OFFSET 0
            ) b
            ORDER BY u.o
            RETURNING number
        )
        SELECT array_agg(t.number ORDER BY t.number) INTO endings_ FROM told t;
    END IF;
    IF queues_ IS NOT NULL OR grps IS NOT NULL THEN
        PERFORM wake_leases(ns_);
    END IF;
    is_left := false;
    IF count_ < cardinality(seqs) THEN
        SELECT array_agg(x.seq) FILTER (WHERE x.seq IS NOT NULL),
               coalesce(bool_or(x.seq IS NULL), false)
        INTO done_, is_left
        FROM unnest(seqs, tokens_) AS u(seq, token)
        CROSS JOIN LATERAL (
            SELECT NULL::bigint AS seq FROM jobs c
            WHERE c.ns = ns_ AND c.seq = u.seq AND c.token = u.token AND c.state + 0 < 2
            UNION ALL
            SELECT d.seq FROM done_jobs d
            WHERE d.ns = ns_ AND d.seq = u.seq AND d.token = u.token
        ) x;
        done_ := coalesce(done_, '{}');
    END IF;
END $$;

-- Completes jobs under the flow locks of the queues named, or of those that they are in. `done_` is
-- NULL if all are done, and holds a NULL if a job has left these queues.
CREATE FUNCTION complete_flow_jobs(
    ns_ int, given bigint, names text[], seqs bigint[], tokens_ bigint[], results bytea[],
    OUT done_ bigint[], OUT endings_ bigint[], OUT had_flow boolean
) LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off AS $$
DECLARE
    now_ bigint;
    queues_ int[];
    was flowing[];
    places tid[];
    answers bytea[];
BEGIN
    IF names IS NULL THEN
        queues_ := ARRAY(
            SELECT DISTINCT x.queue FROM unnest(seqs) AS u(seq)
            CROSS JOIN LATERAL (
                SELECT c.queue FROM jobs c WHERE c.ns = ns_ AND c.seq = u.seq OFFSET 0
            ) x
        );
    ELSE
        queues_ := ARRAY(
            SELECT q.number FROM queues q WHERE q.ns = ns_ AND q.name = ANY (names)
        );
    END IF;
    PERFORM lock_flow(queues_);
    SELECT array_agg(x.tid_), array_agg(results[u.o]),
           array_agg(ROW(x.seq, x.queue, x.lane, x.state, x.rank, x.flow, x.leased_at,
                         CASE WHEN x.flow & 8 <> 0 THEN (
                             SELECT b.id FROM bodies b WHERE b.ns = ns_ AND b.seq = x.seq
                         ) END,
                         x.tenant, x.grp)::flowing)
    INTO places, answers, was
    FROM unnest(seqs, tokens_) WITH ORDINALITY AS u(seq, token, o)
    CROSS JOIN LATERAL (
        SELECT c.ctid AS tid_, c.* FROM jobs c
        WHERE c.ns = ns_ AND c.seq = u.seq AND c.token = u.token AND c.state + 0 < 2
        FOR NO KEY UPDATE
    ) x;
    now_ := now_ms(given);
    IF places IS NOT NULL THEN
        IF EXISTS (SELECT FROM unnest(was) AS w WHERE w.queue <> ALL (queues_)) THEN
            done_ := ARRAY[NULL];
            RETURN;
        END IF;
        WITH ended AS (
            DELETE FROM jobs j USING unnest(places, answers) AS u(place, result)
            WHERE j.ctid = u.place RETURNING j.*, u.result
        )
        INSERT INTO done (
            seq, due_at, expires_at, token, leased_at, finished_at, ns, queue, attempt, crashes,
            releases, version, rank, cancel, noted, worker, result
        )
        SELECT e.seq, e.due_at, e.expires_at, e.token, e.leased_at, now_, e.ns, e.queue, e.attempt,
               nullif(e.crashes, 0), nullif(e.releases, 0), e.version + 1,
               nullif(e.rank, 0::smallint), nullif(e.cancel, false), nullif(e.noted, false),
               e.worker, e.result
        FROM ended e;
        had_flow := EXISTS (SELECT FROM unnest(was) AS w WHERE w.flow <> 0);
        endings_ := reflow(ns_, now_, was, '{}', 2::smallint);
        PERFORM wake_leases(ns_);
    END IF;
    IF coalesce(cardinality(places), 0) < cardinality(seqs) THEN
        done_ := ARRAY(
            SELECT d.seq FROM unnest(seqs, tokens_) AS u(seq, token)
            CROSS JOIN LATERAL (
                SELECT x.seq FROM done_jobs x
                WHERE x.ns = ns_ AND x.seq = u.seq AND x.token = u.token OFFSET 0
            ) d
        );
    END IF;
END $$;

-- Takes done jobs that are put back out of `done`: they get a row in `jobs`, as they were.
CREATE FUNCTION put_back(ns_ int, seqs bigint[]) RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off AS $$
DECLARE
    left_ bigint[] := ARRAY(
        SELECT w.seq FROM unnest(seqs) AS w(seq)
        WHERE (SELECT j.seq FROM jobs j WHERE j.ns = ns_ AND j.seq = w.seq) IS NULL
    );
BEGIN
    IF cardinality(left_) = 0 THEN
        RETURN;
    END IF;
    INSERT INTO jobs (
        seq, place, due_at, expires_at, token, leased_at, finished_at, ns, queue, attempt, crashes,
        releases, version, rank, state, flow, cancel, noted, task, tenant, grp, worker
    )
    SELECT j.seq, j.place, j.due_at, j.expires_at, j.token, j.leased_at, j.finished_at, j.ns,
           j.queue, j.attempt, j.crashes, j.releases, j.version, j.rank, j.state,
           EXISTS (SELECT FROM edges e WHERE e.child = j.seq)::int * 4
           + EXISTS (SELECT FROM edges e WHERE e.parent = j.id AND e.ns = ns_)::int * 8,
           j.cancel, j.noted, j.task, j.tenant, j.grp, j.worker
    FROM unnest(left_) AS w(seq)
    CROSS JOIN LATERAL (
        SELECT * FROM all_jobs x WHERE x.ns = ns_ AND x.seq = w.seq OFFSET 0
    ) j;
    DELETE FROM done d WHERE d.ns = ns_ AND d.seq = ANY (left_);
    UPDATE bodies b SET state = NULL WHERE b.ns = ns_ AND b.seq = ANY (left_) AND b.state + 0 = 2;
END $$;

-- Writes changed jobs whose rows are locked, each on the version that was read. `locked` is true if
-- the flow locks are held. NULL means that a job has changed, or turned out to have flow control.
CREATE FUNCTION rewrite_jobs(
    ns_ int, now_ bigint, locked boolean, seqs bigint[], versions_before int[],
    queue_numbers int[], states smallint[], ranks smallint[], dues bigint[], places bigint[],
    expiries bigint[], versions int[], attempts int[], crashes_ int[], releases_ int[],
    tokens_ bigint[], deadlines bigint[], finishes bigint[], leases bigint[], cancels boolean[],
    noteds boolean[], tasks text[], tenants_ text[], grps text[], reasons text[], results bytea[],
    fingerprints text[], lanes_ int[]
) RETURNS bigint[] LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off AS $$
DECLARE
    count_ int;
    was flowing[];
    now_is flowing[];
    endings_ bigint[] := '{}';
BEGIN
    PERFORM put_back(ns_, seqs);
    IF locked THEN
        was := ARRAY(
            SELECT ROW(c.seq, c.queue, c.lane, c.state, c.rank, c.flow, c.leased_at,
                       CASE WHEN c.flow & 8 <> 0 THEN (
                           SELECT b.id FROM bodies b WHERE b.ns = ns_ AND b.seq = c.seq
                       ) END,
                       c.tenant, c.grp)::flowing
            FROM unnest(seqs) WITH ORDINALITY AS w(seq, o)
            CROSS JOIN LATERAL (SELECT * FROM jobs x WHERE x.ns = ns_ AND x.seq = w.seq OFFSET 0) c
            ORDER BY w.o
        );
    END IF;
    UPDATE jobs j SET
        queue = u.queue, state = u.state, rank = u.rank, due_at = u.due_at,
        place = coalesce(u.place, j.place),
        expires_at = u.expires_at, version = u.version, attempt = u.attempt, crashes = u.crashes,
        releases = u.releases, token = u.token, deadline_at = u.deadline_at,
        finished_at = u.finished_at, lease_ms = u.lease_ms, cancel = u.cancel, noted = u.noted,
        task = u.task, tenant = u.tenant, grp = u.grp, reason = u.reason,
        fingerprint = u.fingerprint,
        lane = CASE u.state WHEN 0 THEN u.lane WHEN 1 THEN j.lane END,
        flow = CASE u.state
            WHEN 0 THEN (j.flow & 12) | (u.lane IS NOT NULL)::int | (u.grp IS NOT NULL)::int * 18
            WHEN 1 THEN j.flow
            ELSE (j.flow & 12) | (u.grp IS NOT NULL)::int * 2
        END,
        holds = CASE WHEN u.state <> 0 THEN 0 ELSE (u.grp IS NOT NULL)::int
            + CASE WHEN (j.flow & 4) = 0 THEN 0 ELSE (
                SELECT count(*) FROM edges e WHERE e.child = j.seq
            ) END
        END
    FROM unnest(seqs, versions_before, queue_numbers, states, ranks, dues, places, expiries,
                versions, attempts, crashes_, releases_, tokens_, deadlines, finishes, leases,
                cancels, noteds, tasks, tenants_, grps, reasons, fingerprints, lanes_)
         AS u(seq, before, queue, state, rank, due_at, place, expires_at, version, attempt, crashes,
              releases, token, deadline_at, finished_at, lease_ms, cancel, noted, task, tenant, grp,
              reason, fingerprint, lane)
    CROSS JOIN LATERAL (
        SELECT c.ctid FROM jobs c WHERE c.ns = ns_ AND c.seq = u.seq AND c.version = u.before
          AND (locked OR (c.flow = 0 AND u.lane IS NULL AND u.grp IS NULL))
        OFFSET 0
    ) x
    WHERE j.ctid = x.ctid;
    GET DIAGNOSTICS count_ = ROW_COUNT;
    IF count_ < cardinality(seqs) THEN
        RETURN NULL;
    END IF;
    IF 2 = ANY (states) THEN
        WITH ended AS (
            DELETE FROM jobs j USING unnest(seqs, states, results) AS u(seq, state, result)
            CROSS JOIN LATERAL (
                SELECT c.ctid FROM jobs c WHERE c.ns = ns_ AND c.seq = u.seq OFFSET 0
            ) x
            WHERE u.state = 2 AND j.ctid = x.ctid RETURNING j.*, u.result
        )
        INSERT INTO done (
            seq, due_at, expires_at, token, leased_at, finished_at, ns, queue, attempt, crashes,
            releases, version, rank, cancel, noted, worker, result
        )
        SELECT e.seq, e.due_at, e.expires_at, e.token, e.leased_at, e.finished_at, e.ns, e.queue,
               e.attempt, nullif(e.crashes, 0), nullif(e.releases, 0), e.version,
               nullif(e.rank, 0::smallint), nullif(e.cancel, false), nullif(e.noted, false),
               e.worker, e.result
        FROM ended e;
    END IF;
    IF locked THEN
        now_is := ARRAY(
            SELECT ROW(u.seq, u.queue, u.lane, u.state, u.rank, 0, NULL, NULL, NULL, u.grp)::flowing
            FROM unnest(seqs, queue_numbers, lanes_, states, ranks, grps) WITH ORDINALITY
                 AS u(seq, queue, lane, state, rank, grp, o) ORDER BY u.o
        );
        endings_ := coalesce(reflow(ns_, now_, was, now_is, NULL), '{}');
    END IF;
    PERFORM wake_leases(ns_);
    RETURN endings_;
END $$;

-- Writes changed bodies, of jobs that are rewritten in the same transaction. Without a payload the
-- present one stays.
CREATE FUNCTION rewrite_bodies(
    ns_ int, seqs bigint[], tasks text[], keys_ text[], tenants_ text[], grps text[],
    origins text[], extras bytea[], payloads bytea[]
) RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off AS $$
BEGIN
    UPDATE bodies b SET
        task = u.task, key = u.key, tenant = u.tenant, grp = u.grp, origin = u.origin,
        extra = u.extra, payload = coalesce(u.payload, b.payload)
    FROM unnest(seqs, tasks, keys_, tenants_, grps, origins, extras, payloads)
         AS u(seq, task, key, tenant, grp, origin, extra, payload)
    CROSS JOIN LATERAL (
        SELECT c.ctid FROM bodies c WHERE c.ns = ns_ AND c.seq = u.seq OFFSET 0
    ) x
    WHERE b.ctid = x.ctid;
END $$;

CREATE OR REPLACE FUNCTION erase_jobs(ns_ int, now_ bigint, seqs bigint[]) RETURNS bigint[]
LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off AS $$
DECLARE
    was flowing[] := ARRAY(
        SELECT ROW(c.seq, c.queue, CASE WHEN q.name IS NOT NULL OR c.state = 1 THEN c.lane END,
                   c.state, c.rank, c.flow, c.leased_at,
                   CASE WHEN c.flow & 8 <> 0 THEN (
                       SELECT b.id FROM bodies b WHERE b.ns = ns_ AND b.seq = c.seq
                   ) END,
                   c.tenant, CASE WHEN q.name IS NOT NULL THEN c.grp END)::flowing
        FROM unnest(seqs) AS w(seq)
        CROSS JOIN LATERAL (SELECT * FROM jobs x WHERE x.ns = ns_ AND x.seq = w.seq OFFSET 0) c
        LEFT JOIN LATERAL (SELECT x.name FROM queues x WHERE x.number = c.queue OFFSET 0) q ON true
        WHERE c.flow <> 0
    );
BEGIN
    DELETE FROM notes WHERE job = ANY (seqs);
    DELETE FROM events WHERE job = ANY (seqs);
    IF EXISTS (SELECT FROM edges) THEN
        DELETE FROM edges e WHERE e.child = ANY (seqs);
        INSERT INTO awaited (ns, parent)
        SELECT ns_, b.id FROM unnest(seqs) AS w(seq)
        CROSS JOIN LATERAL (
            SELECT x.id FROM bodies x WHERE x.ns = ns_ AND x.seq = w.seq OFFSET 0
        ) b
        WHERE EXISTS (SELECT FROM edges e WHERE e.parent = b.id AND e.ns = ns_)
        ORDER BY b.id COLLATE "C"
        ON CONFLICT DO NOTHING;
    END IF;
    DELETE FROM jobs WHERE ctid = ANY (ARRAY(
        SELECT x.ctid FROM unnest(seqs) AS w(seq)
        CROSS JOIN LATERAL (SELECT c.ctid FROM jobs c WHERE c.ns = ns_ AND c.seq = w.seq OFFSET 0) x
    ));
    DELETE FROM done WHERE ctid = ANY (ARRAY(
        SELECT x.ctid FROM unnest(seqs) AS w(seq)
        CROSS JOIN LATERAL (SELECT c.ctid FROM done c WHERE c.ns = ns_ AND c.seq = w.seq OFFSET 0) x
    ));
    DELETE FROM bodies WHERE ctid = ANY (ARRAY(
        SELECT x.ctid FROM unnest(seqs) AS w(seq)
        CROSS JOIN LATERAL (
            SELECT c.ctid FROM bodies c WHERE c.ns = ns_ AND c.seq = w.seq OFFSET 0
        ) x
    ));
    IF cardinality(was) = 0 THEN
        RETURN '{}';
    END IF;
    RETURN coalesce(reflow(ns_, now_, was, '{}', NULL), '{}');
END $$;

CREATE OR REPLACE FUNCTION purge_queue(
    ns_ int, queue_ int, most int, OUT count_ int, OUT endings_ bigint[]
) LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    seqs bigint[];
BEGIN
    PERFORM lock_flow(ARRAY[queue_]);
    seqs := ARRAY(SELECT j.seq FROM jobs j
                  WHERE j.queue = queue_ AND j.state = 0 AND j.holds = 0
                  LIMIT most FOR UPDATE SKIP LOCKED)
         || ARRAY(SELECT j.seq FROM jobs j WHERE j.queue = queue_ AND j.state = 0 AND j.holds <> 0
                  LIMIT most FOR UPDATE SKIP LOCKED)
         || ARRAY(SELECT j.seq FROM jobs j WHERE j.queue = queue_ AND j.state >= 3
                  LIMIT most FOR UPDATE SKIP LOCKED)
         || ARRAY(SELECT j.seq FROM jobs j WHERE j.ns = ns_ AND j.state = 1 AND j.queue = queue_
                  LIMIT most FOR UPDATE SKIP LOCKED)
         || ARRAY(SELECT d.seq FROM done d WHERE d.queue = queue_
                  LIMIT most FOR UPDATE SKIP LOCKED)
         || ARRAY(SELECT b.seq FROM bodies b WHERE b.queue = queue_ AND b.state >= 2 AND b.state = 2
                  LIMIT most FOR UPDATE SKIP LOCKED);
    count_ := cardinality(seqs);
    -- Children are notified of the ends in the order of arrival.
    endings_ := erase_jobs(ns_, now_ms(NULL), ARRAY(
        SELECT w.seq FROM unnest(seqs) AS w(seq) ORDER BY w.seq
    ));
    DELETE FROM keys k WHERE k.ctid = ANY (ARRAY(
        SELECT x.ctid FROM keys x WHERE x.queue = queue_ LIMIT most FOR UPDATE SKIP LOCKED
    ));
    IF count_ = 0 THEN
        DELETE FROM heads WHERE queue = queue_;
        DELETE FROM strays WHERE queue = queue_;
        DELETE FROM lanes l WHERE l.queue = queue_
          AND NOT EXISTS (
              SELECT FROM jobs j WHERE j.ns = ns_ AND j.state = 1 AND j.lane = l.number
          );
        DELETE FROM parks WHERE queue = queue_;
        DELETE FROM tenants WHERE queue = queue_;
        DELETE FROM bounds WHERE queue = queue_;
        DELETE FROM weights WHERE queue = queue_;
    END IF;
END $$;

DROP FUNCTION grant_dead;
-- Writes the leases of dead letters whose rows are locked.
CREATE FUNCTION grant_dead(
    ns_ int, now_ bigint, worker_ text, span bigint, places tid[]
) RETURNS SETOF held LANGUAGE plpgsql AS $$
BEGIN
    WITH leased AS (
        UPDATE jobs j SET
            state = 5, version = j.version + 1, worker = worker_,
            token = nextval('tokens') << 16 | floor(random() * 65536)::bigint,
            leased_at = now_, deadline_at = now_ + coalesce(span, j.lease_ms, q.lease_ms)
        FROM queues q
        WHERE q.number = j.queue AND j.ctid = ANY (places)
        RETURNING j.ctid AS place
    )
    SELECT array_agg(l.place) INTO places FROM leased l;
    RETURN QUERY SELECT * FROM leased_rows(ns_, places);
END $$;

CREATE OR REPLACE FUNCTION lease_dead(
    ns_ int, given bigint, names text[], ids text[], most int, worker_ text, span bigint,
    tasks text[]
) RETURNS SETOF held LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off AS $$
DECLARE
    now_ bigint := now_ms(given);
    need int := most;
    line record;
    count_ int;
BEGIN
    FOR line IN
        SELECT q.number FROM unnest(names) WITH ORDINALITY AS w(name, o)
        JOIN queues q ON q.ns = ns_ AND q.name = w.name
        WHERE NOT q.paused
        ORDER BY w.o
    LOOP
        RETURN QUERY SELECT * FROM grant_dead(ns_, now_, worker_, span, ARRAY(
            SELECT c.ctid FROM jobs c
            WHERE c.queue = line.number AND c.state = 3 AND c.due_at <= now_
              AND (tasks IS NULL OR c.task = ANY (tasks))
            ORDER BY c.due_at, c.seq LIMIT need FOR NO KEY UPDATE SKIP LOCKED
        ));
        GET DIAGNOSTICS count_ = ROW_COUNT;
        need := need - count_;
        IF need <= 0 THEN
            RETURN;
        END IF;
    END LOOP;
    IF cardinality(ids) > 0 THEN
        RETURN QUERY SELECT * FROM grant_dead(ns_, now_, worker_, span, ARRAY(
            SELECT x.ctid FROM unnest(seqs_of(ns_, ids)) WITH ORDINALITY AS w(seq, o)
            CROSS JOIN LATERAL (
                SELECT c.ctid FROM jobs c
                WHERE c.ns = ns_ AND c.seq = w.seq AND c.state + 0 = 3 AND c.due_at <= now_
                  AND (tasks IS NULL OR c.task = ANY (tasks))
                  AND EXISTS (
                    SELECT FROM queues p
                    WHERE p.number = c.queue AND p.name IS NOT NULL AND NOT p.paused
                  )
                FOR NO KEY UPDATE SKIP LOCKED
            ) x
            LIMIT most
        ));
    END IF;
END $$;

CREATE OR REPLACE FUNCTION next_dead(ns_ int, since bigint, names text[], ids text[])
RETURNS bigint LANGUAGE sql
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off AS $$
    SELECT least(
        (
            SELECT min(d.due_at) FROM unnest(names) AS w(name)
            JOIN queues q ON q.ns = ns_ AND q.name = w.name AND NOT q.paused
            CROSS JOIN LATERAL (
                SELECT j.due_at FROM jobs j
                WHERE j.queue = q.number AND j.state = 3 AND j.due_at > since
                ORDER BY j.due_at LIMIT 1
            ) d
        ),
        (
            SELECT min(j.due_at) FROM jobs j
            WHERE j.ns = ns_ AND j.seq = ANY (seqs_of(ns_, ids)) AND j.state + 0 = 3
              AND j.due_at > since
        )
    )
$$;

CREATE OR REPLACE FUNCTION lease_lanes(
    ns_ int, given bigint, names text[], most int, worker_ text, span bigint, tasks text[]
) RETURNS SETOF held LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off AS $$
DECLARE
    numbers int[] := ARRAY(
        SELECT DISTINCT q.number FROM queues q
        WHERE q.ns = ns_ AND q.name = ANY (names) AND q.laned AND NOT q.paused
    );
    now_ bigint;
    now_us bigint;
    need int := most;
    line queues;
    count_ int;
    taken tid[];
    sign held;
BEGIN
    PERFORM lock_flow(numbers);
    now_ := now_ms(given);
    now_us := micros(given);
    FOR line IN
        SELECT q.*
        FROM unnest(names) WITH ORDINALITY AS w(name, o)
        JOIN queues q ON q.ns = ns_ AND q.name = w.name
        WHERE NOT q.paused
        ORDER BY w.o
    LOOP
        EXIT WHEN need <= 0;
        IF NOT line.laned THEN
            RETURN QUERY
            SELECT l.* FROM lease_jobs(ns_, given, ARRAY[line.name], need, worker_, span, tasks) l
            ORDER BY l.rank, l.due_at, l.place;
            GET DIAGNOSTICS count_ = ROW_COUNT;
            need := need - count_;
            CONTINUE;
        END IF;
        IF line.number <> ALL (numbers) THEN
            RAISE serialization_failure USING MESSAGE = 'a queue came to have lanes meanwhile';
        END IF;
        IF EXISTS (SELECT FROM flows f WHERE f.queue = line.number AND f.sorting) THEN
            sign.seq := line.number;
            RETURN NEXT sign;
            RETURN;
        END IF;
        PERFORM FROM jobs j
        WHERE j.queue = line.number AND j.state = 0 AND j.holds = 0 AND j.expires_at <= now_
        ORDER BY j.expires_at LIMIT 1;
        IF FOUND AND set_aside(line.number, now_) THEN
            RETURN NEXT NULL::held;
            RETURN;
        END IF;
        IF line.aging_ms IS NOT NULL OR line.group_batch > 1 THEN
            taken := '{}';
            IF line.fairness = 0 AND line.group_batch = 1 AND tasks IS NULL THEN
                taken := lease_aged(line, now_, now_us, need, worker_, span);
            END IF;
            IF cardinality(taken) < need THEN
                taken := taken || lease_one_by_one(line, now_, now_us, need - cardinality(taken),
                                                   most, worker_, span, tasks);
            END IF;
        ELSIF line.fairness = 1 THEN
            taken := lease_in_turns(line, now_, now_us, need, most, worker_, span, tasks);
        ELSE
            taken := lease_ordered(line, now_, now_us, need, worker_, span, tasks);
        END IF;
        IF taken IS NULL THEN
            IF need = most THEN
                RETURN NEXT NULL::held;
            END IF;
            RETURN;
        END IF;
        RETURN QUERY SELECT * FROM leased_rows(ns_, taken);
        need := need - cardinality(taken);
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION lease_lanes_by_id(
    ns_ int, given bigint, ids text[], most int, worker_ text, span bigint, tasks text[]
) RETURNS SETOF held LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    seqs bigint[] := seqs_of(ns_, ids);
    numbers int[] := ARRAY(
        SELECT DISTINCT x.queue FROM unnest(seqs) AS w(seq)
        CROSS JOIN LATERAL (
            SELECT c.queue FROM jobs c WHERE c.ns = ns_ AND c.seq = w.seq OFFSET 0
        ) x
    );
    now_ bigint;
    now_us bigint;
    need int := most;
    seq_ bigint;
    job record;
    line queues;
    slots_ int[];
    sign held;
BEGIN
    PERFORM lock_flow(numbers);
    now_ := now_ms(given);
    now_us := micros(given);
    SELECT f.queue INTO sign.seq FROM flows f WHERE f.queue = ANY (numbers) AND f.sorting LIMIT 1;
    IF FOUND THEN
        RETURN NEXT sign;
        RETURN;
    END IF;
    FOREACH seq_ IN ARRAY seqs LOOP
        EXIT WHEN need <= 0;
        SELECT c.ctid AS place, c.queue, c.lane, c.rank INTO job FROM jobs c
        WHERE c.ns = ns_ AND c.seq = seq_ AND c.state + 0 = 0 AND c.holds = 0
          AND c.due_at <= now_ AND (c.expires_at IS NULL OR c.expires_at > now_)
          AND (tasks IS NULL OR c.task = ANY (tasks))
        FOR NO KEY UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        SELECT q.* INTO line FROM queues q
        WHERE q.number = job.queue AND q.name IS NOT NULL AND NOT q.paused;
        CONTINUE WHEN NOT FOUND OR job.queue <> ALL (numbers);
        slots_ := coalesce((SELECT l.slots FROM lanes l WHERE l.number = job.lane), '{}');
        CONTINUE WHEN room(line.number, slots_, now_us) <= 0;
        job.place := (grant_lease(line, now_, ARRAY[job.place], worker_, span))[1];
        RETURN QUERY SELECT * FROM leased_rows(ns_, ARRAY[job.place]);
        need := need - 1;
        PERFORM occupy(line.number, now_us, slots_, array_fill(1, ARRAY[cardinality(slots_)]))
        WHERE cardinality(slots_) > 0;
        PERFORM refresh(now_, ARRAY[job.lane], ARRAY[job.rank]);
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION wait_for_jobs(
    ns_ int, given bigint, names text[], ids text[], listens boolean, seen_at bigint,
    OUT now_ bigint, OUT next_ms bigint, OUT fresh boolean
) LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    real_now bigint := now_ms(NULL);
    now_us bigint := micros(given);
    since bigint;
    until_ bigint;
    line record;
    level smallint;
    due bigint;
    soonest bigint;
BEGIN
    now_ := now_us / 1000;
    -- A clock may be set back.
    since := least(seen_at, now_);
    SELECT w.until_at INTO until_ FROM waiters w WHERE w.ns = ns_;
    fresh := listens AND coalesce(until_ <= real_now, true);
    IF listens AND coalesce(until_ < real_now + 2500, true) THEN
        INSERT INTO waiters VALUES (ns_, real_now + 5000)
        ON CONFLICT (ns) DO UPDATE SET until_at = excluded.until_at;
    END IF;
    FOR line IN
        SELECT q.number, q.laned FROM queues q
        WHERE q.ns = ns_ AND q.name = ANY (names) AND NOT q.paused
    LOOP
        level := -32768;
        LOOP
            SELECT j.rank INTO level FROM jobs j
            WHERE j.queue = line.number AND j.state = 0 AND j.holds = 0 AND j.rank > level
            ORDER BY j.rank LIMIT 1;
            EXIT WHEN NOT FOUND;
            SELECT j.due_at INTO due FROM jobs j
            WHERE j.queue = line.number AND j.state = 0 AND j.holds = 0 AND j.rank = level
              AND j.due_at > since
            ORDER BY j.due_at LIMIT 1;
            soonest := least(soonest, due);
        END LOOP;
        IF line.laned THEN
            soonest := least(soonest, next_start(line.number, now_, now_us, since * 1000));
        END IF;
    END LOOP;
    IF cardinality(ids) > 0 THEN
        SELECT min(j.due_at) INTO due FROM jobs j
        WHERE j.ns = ns_ AND j.seq = ANY (seqs_of(ns_, ids)) AND j.state + 0 = 0
          AND j.due_at > since;
        soonest := least(soonest, due);
    END IF;
    next_ms := CASE WHEN soonest IS NOT NULL THEN greatest(0, soonest - now_) END;
END $$;

CREATE OR REPLACE FUNCTION slots_shown(
    ns_ int, names text[], keys_ text[], most int
) RETURNS TABLE (used_ int, free_us_ bigint, holders text[]) LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off AS $$
BEGIN
    RETURN QUERY
    WITH shown AS MATERIALIZED (
        SELECT u.o, s.number, s.used - coalesce(f.count_, 0) AS used, s.free_us
        FROM unnest(names, keys_) WITH ORDINALITY AS u(name, key, o)
        LEFT JOIN slots s ON s.ns = ns_ AND s.name = u.name AND s.key = u.key
        LEFT JOIN freed_slots f ON f.slot = s.number
    ), held_ AS MATERIALIZED (
        SELECT x.slot, j.seq,
               row_number() OVER (PARTITION BY x.slot ORDER BY j.leased_at, j.seq) AS o
        FROM jobs j
        CROSS JOIN LATERAL (SELECT l.slots FROM lanes l WHERE l.number = j.lane OFFSET 0) l
        CROSS JOIN LATERAL unnest(l.slots) AS x(slot)
        WHERE j.ns = ns_ AND j.state = 1 AND j.lane IS NOT NULL
          AND x.slot IN (SELECT s.number FROM shown s)
    )
    SELECT coalesce(s.used, 0), coalesce(s.free_us, 0),
           ARRAY(
               SELECT (SELECT b.id FROM bodies b WHERE b.ns = ns_ AND b.seq = h.seq)
               FROM held_ h WHERE h.slot = s.number AND h.o <= most ORDER BY h.o
           )
    FROM shown s ORDER BY s.o;
END $$;

CREATE OR REPLACE FUNCTION waits_shown(
    ns_ int, seq_ bigint
) RETURNS TABLE (parents text[], head text) LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off AS $$
DECLARE
    job jobs;
    first_ bigint;
BEGIN
    SELECT j.* INTO job FROM jobs j WHERE j.ns = ns_ AND j.seq = seq_;
    parents := ARRAY(SELECT e.parent FROM edges e WHERE e.child = seq_);
    IF job.grp IS NOT NULL THEN
        SELECT j.seq INTO first_ FROM jobs j
        WHERE j.queue = job.queue AND j.grp = job.grp AND j.state < 2
        ORDER BY j.state DESC, j.seq LIMIT 1;
        IF first_ <> seq_ THEN
            SELECT b.id INTO head FROM bodies b WHERE b.ns = ns_ AND b.seq = first_;
        END IF;
    END IF;
    RETURN NEXT;
END $$;

CREATE OR REPLACE FUNCTION counts(
    ns_ int, given bigint, most int, names_ text[]
) RETURNS TABLE (
    number_ int, settings_ bytea, ready int, delayed int, blocked int, leased int, overdue int,
    done int, dead int, cancelled int, oldest_at bigint
) LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    now_ bigint := now_ms(given);
    level smallint;
    some_ int;
    first_due bigint;
BEGIN
    FOR number_, settings_ IN
        SELECT q.number, q.settings FROM queues q WHERE q.ns = ns_ AND q.name IS NOT NULL
          AND (names_ IS NULL OR q.name = ANY (names_))
        ORDER BY q.name
    LOOP
        ready := 0;
        delayed := 0;
        oldest_at := NULL;
        level := -32768;
        LOOP
            SELECT j.rank INTO level FROM jobs j
            WHERE j.queue = number_ AND j.state = 0 AND j.holds = 0 AND j.rank > level
            ORDER BY j.rank LIMIT 1;
            EXIT WHEN NOT FOUND;
            SELECT count(*), min(w.due_at) INTO some_, first_due FROM (
                SELECT j.due_at, j.expires_at FROM jobs j
                WHERE j.queue = number_ AND j.state = 0 AND j.holds = 0 AND j.rank = level
                  AND j.due_at <= now_
                ORDER BY j.due_at LIMIT most + 1
            ) w WHERE w.expires_at IS NULL OR w.expires_at > now_;
            ready := ready + some_;
            oldest_at := least(oldest_at, first_due);
            SELECT count(*) INTO some_ FROM (
                SELECT FROM jobs j
                WHERE j.queue = number_ AND j.state = 0 AND j.holds = 0 AND j.rank = level
                  AND j.due_at > now_
                LIMIT most + 1
            ) w;
            delayed := delayed + some_;
        END LOOP;
        SELECT count(*) INTO some_ FROM (
            SELECT FROM jobs j
            WHERE j.queue = number_ AND j.state = 0 AND j.holds <> 0 AND j.due_at > now_
              AND j.holds = 1000000
            LIMIT most + 1
        ) w;
        delayed := delayed + some_;
        SELECT count(*) INTO blocked FROM (
            SELECT FROM jobs j
            WHERE j.queue = number_ AND j.state = 0 AND j.holds <> 0 AND j.holds <> 1000000
            LIMIT most + 1
        ) w;
        SELECT count(*) INTO done FROM (
            SELECT FROM done_jobs j WHERE j.queue = number_
            LIMIT most + 1
        ) w;
        SELECT count(*) INTO dead FROM (
            SELECT FROM jobs j WHERE j.queue = number_ AND j.state >= 3 AND j.state = 3
            LIMIT most + 1
        ) w;
        SELECT count(*) INTO cancelled FROM (
            SELECT FROM jobs j WHERE j.queue = number_ AND j.state >= 3 AND j.state = 4
            LIMIT most + 1
        ) w;
        SELECT count(*), count(*) FILTER (WHERE w.deadline_at <= now_) INTO leased, overdue FROM (
            SELECT j.deadline_at FROM jobs j
            WHERE j.ns = ns_ AND j.state IN (1, 5) AND j.queue = number_
            LIMIT most + 1
        ) w;
        RETURN NEXT;
    END LOOP;
END $$;

-- A job that was done meanwhile has no lane and no rank any more, but keeps its position.
CREATE OR REPLACE FUNCTION sort_into_lanes(
    ns_ int, given bigint, seqs bigint[], lanes_ int[]
) RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off AS $$
DECLARE
    before_ int[];
    ranks smallint[];
BEGIN
    SELECT array_agg(j.lane ORDER BY w.o), array_agg(j.rank ORDER BY w.o) INTO before_, ranks
    FROM unnest(seqs) WITH ORDINALITY AS w(seq, o)
    LEFT JOIN LATERAL (
        SELECT * FROM jobs x WHERE x.ns = ns_ AND x.seq = w.seq OFFSET 0
    ) j ON true;
    UPDATE jobs j SET lane = u.lane, flow = (j.flow & ~1) | (u.lane IS NOT NULL)::int
    FROM unnest(seqs, lanes_) AS u(seq, lane)
    CROSS JOIN LATERAL (
        SELECT x.ctid FROM jobs x WHERE x.ns = ns_ AND x.seq = u.seq AND x.state = 0 OFFSET 0
    ) x
    WHERE j.ctid = x.ctid;
    PERFORM refresh(now_ms(given), before_ || lanes_, ranks || ranks);
END $$;

-- Locks and returns the next jobs of a queue that is being sorted into its lanes, and moves its
-- cursor behind them. After the last ones the sorting is over.
CREATE OR REPLACE FUNCTION to_sort(
    ns_ int, queue_ int, most int, whole boolean
) RETURNS SETOF kept LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off AS $$
DECLARE
    cursor_ flows;
    seqs bigint[] := '{}';
    ranks smallint[];
    dues bigint[];
    places bigint[];
    count_ int;
BEGIN
    SELECT f.* INTO cursor_ FROM flows f WHERE f.queue = queue_ AND f.sorting;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF cursor_.is_aside THEN
        SELECT array_agg(w.seq), array_agg(w.rank), array_agg(w.due_at), array_agg(w.place)
        INTO seqs, ranks, dues, places FROM (
            SELECT j.seq, j.rank, j.due_at, j.place FROM jobs j
            WHERE j.queue = queue_ AND j.state = 0 AND j.holds <> 0
              AND (j.due_at, j.place) > (cursor_.due_at, cursor_.place)
            ORDER BY j.due_at, j.place LIMIT most
        ) w;
        IF seqs IS NULL THEN
            cursor_.is_aside := false;
            cursor_.due_at := -1;
            cursor_.place := -1;
        END IF;
    END IF;
    IF NOT cursor_.is_aside THEN
        SELECT array_agg(w.seq), array_agg(w.rank), array_agg(w.due_at), array_agg(w.place)
        INTO seqs, ranks, dues, places FROM (
            SELECT j.seq, j.rank, j.due_at, j.place FROM jobs j
            WHERE j.queue = queue_ AND j.state = 0 AND j.holds = 0
              AND (j.rank, j.due_at, j.place) > (cursor_.rank, cursor_.due_at, cursor_.place)
            ORDER BY j.rank, j.due_at, j.place LIMIT most
        ) w;
    END IF;
    seqs := coalesce(seqs, '{}');
    count_ := cardinality(seqs);
    -- One of them may be done meanwhile, so their positions are not read again.
    IF count_ > 0 THEN
        UPDATE flows f SET is_aside = cursor_.is_aside, due_at = dues[count_],
            place = places[count_],
            rank = CASE WHEN cursor_.is_aside THEN f.rank ELSE ranks[count_] END
        WHERE f.queue = queue_;
    END IF;
    IF NOT cursor_.is_aside AND cardinality(seqs) < most THEN
        WITH found_ AS (
            DELETE FROM strays s WHERE s.ctid = ANY (ARRAY(
                SELECT x.ctid FROM strays x CROSS JOIN LATERAL (
                    SELECT FROM jobs y
                    WHERE y.ns = ns_ AND y.seq = x.seq AND y.queue = queue_ AND y.state = 0 OFFSET 0
                ) j
                WHERE x.queue = queue_ LIMIT most
            ))
            RETURNING s.seq
        )
        SELECT seqs || coalesce(array_agg(f.seq), '{}'), count(*) INTO seqs, count_ FROM found_ f;
        -- These are the last: jobs that keep arriving or being released do not prolong the sorting.
        IF count_ < most THEN
            DELETE FROM strays s WHERE s.queue = queue_;
            UPDATE flows f SET sorting = false WHERE f.queue = queue_;
            UPDATE queues q SET laned = cursor_.wanted WHERE q.number = queue_;
        END IF;
    END IF;
    RETURN QUERY SELECT h.* FROM hold(ns_, ARRAY(
        SELECT DISTINCT w.seq FROM unnest(seqs) AS w(seq) ORDER BY w.seq
    ), whole) h;
END $$;
