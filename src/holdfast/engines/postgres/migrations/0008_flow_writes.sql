-- Adds, writes back and removes jobs, with the effects on their flow.

-- Adds admitted jobs; returns the ids that were already known. With seqs, none was known a moment
-- ago: if one is, admission must be decided again, and everything is rolled back. An empty array
-- stands for a column of defaults; refs are positions in queue_numbers. Known ids are rare: looking
-- for them only after an insert failed makes all other calls faster.
DROP FUNCTION put;
CREATE FUNCTION put(
    ns_ int, at bigint, queue_numbers int[], refs int[], seqs bigint[], ids text[], tasks text[],
    payloads bytea[], ranks smallint[], delays bigint[], expiries bigint[], keys_ text[],
    tenants text[], grps text[], leases bigint[], extras bytea[],
    lanes_ int[], flows_ smallint[], holds_ int[]
) RETURNS text[] LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off AS $$
DECLARE
    known_ text[] := '{}';
BEGIN
    BEGIN
        INSERT INTO jobs (seq, place, due_at, created_at, expires_at, lease_ms, ns, queue, rank,
                          id, task, key, tenant, grp, extra, payload, lane, flow, holds)
        SELECT n.seq, n.seq, at + coalesce(n.delay, 0), at, at + n.expiry, n.lease_ms, ns_,
               queue_numbers[coalesce(n.ref, 1)], coalesce(n.rank, 0),
               n.id, n.task, n.key, n.tenant, n.grp, n.extra, n.payload, n.lane,
               coalesce(n.flow, 0), coalesce(n.holds, 0)
        FROM (
            SELECT coalesce(u.given, nextval('numbers')) AS seq, u.*
            FROM unnest(refs, seqs, ids, tasks, payloads, ranks, delays, expiries, keys_, tenants,
                        grps, leases, extras, lanes_, flows_, holds_)
                 AS u(ref, given, id, task, payload, rank, delay, expiry, key, tenant, grp,
                      lease_ms, extra, lane, flow, holds)
        ) n;
    EXCEPTION WHEN unique_violation THEN
        PERFORM free_ids(ns_, ids);
        WITH fresh AS (
            INSERT INTO jobs (seq, place, due_at, created_at, expires_at, lease_ms, ns, queue,
                              rank, id, task, key, tenant, grp, extra, payload, lane, flow, holds)
            SELECT n.seq, n.seq, at + coalesce(n.delay, 0), at, at + n.expiry, n.lease_ms, ns_,
                   queue_numbers[coalesce(n.ref, 1)], coalesce(n.rank, 0),
                   n.id, n.task, n.key, n.tenant, n.grp, n.extra, n.payload, n.lane,
                   coalesce(n.flow, 0), coalesce(n.holds, 0)
            FROM (
                SELECT coalesce(u.given, nextval('numbers')) AS seq, u.*
                FROM unnest(refs, seqs, ids, tasks, payloads, ranks, delays, expiries, keys_,
                            tenants, grps, leases, extras, lanes_, flows_, holds_)
                     AS u(ref, given, id, task, payload, rank, delay, expiry, key, tenant, grp,
                          lease_ms, extra, lane, flow, holds)
            ) n
            ON CONFLICT (id, ns) DO NOTHING
            RETURNING id
        )
        SELECT coalesce(array_agg(w.id), '{}') INTO known_ FROM unnest(ids) AS w(id)
        WHERE w.id NOT IN (SELECT fresh.id FROM fresh);
        IF cardinality(seqs) > 0 AND cardinality(known_) > 0 THEN
            RAISE serialization_failure USING MESSAGE = 'another call added the same ids';
        END IF;
    END;
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
    PERFORM wake(ns_);
    RETURN known_;
END $$;

-- Children may wait for an id that existed before.
CREATE FUNCTION recognise(ns_ int, ids text[]) RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
BEGIN
    UPDATE jobs j SET flow = j.flow | 8
    FROM awaited a WHERE a.ns = ns_ AND a.parent = ANY (ids) AND j.id = a.parent AND j.ns + 0 = ns_;
    DELETE FROM awaited a WHERE a.ns = ns_ AND a.parent = ANY (ids);
END $$;

-- Adds plain jobs if every queue accepts them without a further check; NULL otherwise.
CREATE OR REPLACE FUNCTION put_plain(
    ns_ int, given bigint, names text[], bytes_max int, refs int[], ids text[], tasks text[],
    payloads bytea[], ranks smallint[], delays bigint[], expiries bigint[], tenants text[],
    grps text[], leases bigint[], extras bytea[]
) RETURNS text[] LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off AS $$
DECLARE
    queue_numbers int[];
BEGIN
    -- No queue gets lanes until this transaction ends.
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
    RETURN put(ns_, now_ms(given), queue_numbers, refs, '{}', ids, tasks, payloads, ranks, delays,
               expiries, '{}', tenants, grps, leases, extras, '{}', '{}', '{}');
END $$;

-- Lanes by their distinguishing fields; missing ones are created. Slots are (ref, limit, key):
-- those of the lane at the position `ref`. The flow lock is held.
CREATE FUNCTION lanes_for(
    ns_ int, queue_numbers int[], keys_ bytea[], tasks text[], tenants_ text[], plains boolean[],
    refs int[], limits text[], slot_keys text[]
) RETURNS int[] LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    answer int[] := ARRAY(
        SELECT (SELECT l.number FROM lanes l WHERE l.queue = u.queue AND l.key = u.key)
        FROM unnest(queue_numbers, keys_) WITH ORDINALITY AS u(queue, key, o) ORDER BY u.o
    );
BEGIN
    IF array_position(answer, NULL) IS NULL THEN
        RETURN answer;
    END IF;
    INSERT INTO slots (ns, name, key)
    SELECT DISTINCT ns_, u.name, u.key FROM unnest(refs, limits, slot_keys) AS u(ref, name, key)
    WHERE answer[u.ref] IS NULL ORDER BY 2, 3
    ON CONFLICT (ns, name, key) DO NOTHING;
    INSERT INTO lanes (queue, key, task, tenant, plain, slots)
    SELECT u.queue, u.key, u.task, u.tenant, u.plain, ARRAY(
        SELECT s.number FROM unnest(refs, limits, slot_keys) WITH ORDINALITY AS w(ref, name, key, o)
        CROSS JOIN LATERAL (
            SELECT x.number FROM slots x WHERE x.ns = ns_ AND x.name = w.name AND x.key = w.key
            OFFSET 0
        ) s
        WHERE w.ref = u.o ORDER BY w.o
    )
    FROM unnest(queue_numbers, keys_, tasks, tenants_, plains) WITH ORDINALITY
         AS u(queue, key, task, tenant, plain, o)
    WHERE answer[u.o] IS NULL ORDER BY u.o
    ON CONFLICT (queue, key) DO NOTHING;
    RETURN ARRAY(
        SELECT (SELECT l.number FROM lanes l WHERE l.queue = u.queue AND l.key = u.key)
        FROM unnest(queue_numbers, keys_) WITH ORDINALITY AS u(queue, key, o) ORDER BY u.o
    );
END $$;

-- The columns for a decision include those that flow control needs.
ALTER TYPE kept ADD ATTRIBUTE fingerprint text, ADD ATTRIBUTE flow smallint;

-- Locks jobs in the order of seq, in which the list must be.
CREATE OR REPLACE FUNCTION hold(ns_ int, seqs bigint[], whole boolean) RETURNS SETOF kept
LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off AS $$
BEGIN
    RETURN QUERY
    SELECT j.id, j.seq, j.place, q.name, j.task, CASE WHEN whole THEN j.payload END,
           j.extra, j.rank, j.version, j.attempt, j.crashes, j.releases, j.created_at, j.due_at,
           j.expires_at, j.leased_at, j.deadline_at, j.token, j.worker, j.cancel, j.reason, j.key,
           j.tenant, j.grp, j.origin, NULL::float8, NULL::bytea, j.state, j.finished_at, j.noted,
           j.fingerprint, j.flow
    FROM unnest(seqs) AS w(seq)
    CROSS JOIN LATERAL (
        SELECT * FROM jobs c WHERE c.ns = ns_ AND c.seq = w.seq FOR UPDATE
    ) j
    JOIN queues q ON q.number = j.queue
    WHERE q.name IS NOT NULL;
END $$;

-- Writes jobs back if they are unchanged since they were read. place or payload NULL keeps it. Jobs
-- that wait in a queue with lanes get a lane. `locked` means that the flow locks are held, as they
-- must be for all jobs that need them. NULL if a job has changed; otherwise the endings of which
-- children must be notified.
DROP FUNCTION rewrite;
CREATE FUNCTION rewrite(
    ns_ int, now_ bigint, locked boolean, seqs bigint[], versions_before int[],
    queue_numbers int[], states smallint[],
    ranks smallint[], dues bigint[], places bigint[], expiries bigint[], versions int[],
    attempts int[], crashes_ int[], releases_ int[], tokens_ bigint[], deadlines bigint[],
    finishes bigint[], leases bigint[], cancels boolean[], noteds boolean[], tasks text[],
    tenants_ text[], grps text[], origins text[], reasons text[], extras bytea[],
    payloads bytea[], results bytea[], fingerprints text[], lanes_ int[], keys_ text[]
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
    IF locked THEN
        was := ARRAY(
            SELECT ROW(c.seq, c.queue, c.lane, c.state, c.rank, c.flow, c.leased_at, c.id,
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
        task = u.task, tenant = u.tenant, grp = u.grp, origin = u.origin, reason = u.reason,
        extra = u.extra, payload = coalesce(u.payload, j.payload), result = u.result,
        fingerprint = u.fingerprint, key = u.key,
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
                cancels, noteds, tasks, tenants_, grps, origins, reasons, extras, payloads, results,
                fingerprints, lanes_, keys_)
         AS u(seq, before, queue, state, rank, due_at, place, expires_at, version, attempt, crashes,
              releases, token, deadline_at, finished_at, lease_ms, cancel, noted, task, tenant, grp,
              origin, reason, extra, payload, result, fingerprint, lane, key)
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
    IF locked THEN
        now_is := ARRAY(
            SELECT ROW(u.seq, u.queue, u.lane, u.state, u.rank, 0, NULL, NULL, NULL, u.grp)::flowing
            FROM unnest(seqs, queue_numbers, lanes_, states, ranks, grps) WITH ORDINALITY
                 AS u(seq, queue, lane, state, rank, grp, o) ORDER BY u.o
        );
        endings_ := coalesce(reflow(ns_, now_, was, now_is, NULL), '{}');
    END IF;
    PERFORM wake(ns_);
    RETURN endings_;
END $$;

-- Removes jobs and all rows that belong to them; returns the endings to notify children of.
CREATE FUNCTION erase(ns_ int, now_ bigint, seqs bigint[]) RETURNS bigint[] LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    was flowing[] := ARRAY(
        SELECT ROW(c.seq, c.queue, c.lane, c.state, c.rank, c.flow, c.leased_at, c.id, c.tenant,
                   c.grp)::flowing
        FROM unnest(seqs) AS w(seq)
        CROSS JOIN LATERAL (SELECT * FROM jobs x WHERE x.ns = ns_ AND x.seq = w.seq OFFSET 0) c
        WHERE c.flow <> 0
    );
BEGIN
    DELETE FROM notes WHERE job = ANY (seqs);
    DELETE FROM events WHERE job = ANY (seqs);
    DELETE FROM jobs WHERE ctid = ANY (ARRAY(
        SELECT x.ctid FROM unnest(seqs) AS w(seq)
        CROSS JOIN LATERAL (SELECT c.ctid FROM jobs c WHERE c.ns = ns_ AND c.seq = w.seq OFFSET 0) x
    ));
    IF cardinality(was) = 0 THEN
        RETURN '{}';
    END IF;
    DELETE FROM edges e USING unnest(was) AS w WHERE e.child = w.seq AND (w.flow & 4) <> 0;
    INSERT INTO awaited (ns, parent)
    SELECT ns_, w.id FROM unnest(was) AS w
    WHERE (w.flow & 8) <> 0
      AND EXISTS (SELECT FROM edges e WHERE e.parent = w.id AND e.ns = ns_)
    ON CONFLICT DO NOTHING;
    RETURN coalesce(reflow(ns_, now_, was, '{}', NULL), '{}');
END $$;

CREATE OR REPLACE FUNCTION remove(ns_ int, seqs bigint[]) RETURNS int LANGUAGE plpgsql
SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM erase(ns_, now_ms(NULL), seqs);
    RETURN cardinality(seqs);
END $$;
