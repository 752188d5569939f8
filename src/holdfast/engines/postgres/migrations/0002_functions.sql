-- Each function pins its search path and its plans: the statistics of a table that was empty a
-- minute ago, or the sixth execution of a statement, must not turn an index probe into a scan.
-- Lists of jobs are therefore looked up one by one, by a LATERAL that cannot be reordered; this
-- also fixes the order in which their rows are locked, which is always that of seq. Rows locked by
-- one statement are changed by the next, whose snapshot sees them as they were locked. An id is
-- looked up with `ns + 0` and `state + 0`: then only the index of the ids can be used.

-- The instant that a test passes, or the server's own.
CREATE FUNCTION now_ms(given bigint) RETURNS bigint LANGUAGE sql AS $$
    SELECT coalesce(given, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint)
$$;

-- Notifies waiting calls, if there are any. The channel is made of the schema and the namespace.
CREATE FUNCTION wake(ns_ int) RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT AS $$
BEGIN
    IF EXISTS (SELECT FROM waiters WHERE ns = ns_ AND until_at > now_ms(NULL)) THEN
        PERFORM pg_notify(left(current_schema(), 40) || '_' || ns_, '');
    END IF;
END $$;

-- Adds admitted jobs; returns the ids that were already known. With seqs, none was known a moment
-- ago: if one is, admission must be decided again, and everything is rolled back. An empty array
-- stands for a column of defaults; refs are positions in queue_numbers. Known ids are rare: looking
-- for them only after an insert failed makes all other calls faster.
CREATE FUNCTION put(
    ns_ int, at bigint, queue_numbers int[], refs int[], seqs bigint[], ids text[], tasks text[],
    payloads bytea[], ranks smallint[], delays bigint[], expiries bigint[], keys_ text[],
    tenants text[], grps text[], leases bigint[], extras bytea[]
) RETURNS text[] LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off AS $$
DECLARE
    known_ text[] := '{}';
BEGIN
    BEGIN
        INSERT INTO jobs (seq, place, due_at, created_at, expires_at, lease_ms, ns, queue, rank,
                          id, task, key, tenant, grp, extra, payload)
        SELECT n.seq, n.seq, at + coalesce(n.delay, 0), at, at + n.expiry, n.lease_ms, ns_,
               queue_numbers[coalesce(n.ref, 1)], coalesce(n.rank, 0),
               n.id, n.task, n.key, n.tenant, n.grp, n.extra, n.payload
        FROM (
            SELECT coalesce(u.given, nextval('numbers')) AS seq, u.*
            FROM unnest(refs, seqs, ids, tasks, payloads, ranks, delays, expiries, keys_, tenants,
                        grps, leases, extras)
                 AS u(ref, given, id, task, payload, rank, delay, expiry, key, tenant, grp,
                      lease_ms, extra)
        ) n;
    EXCEPTION WHEN unique_violation THEN
        PERFORM free_ids(ns_, ids);
        WITH fresh AS (
            INSERT INTO jobs (seq, place, due_at, created_at, expires_at, lease_ms, ns, queue,
                              rank, id, task, key, tenant, grp, extra, payload)
            SELECT n.seq, n.seq, at + coalesce(n.delay, 0), at, at + n.expiry, n.lease_ms, ns_,
                   queue_numbers[coalesce(n.ref, 1)], coalesce(n.rank, 0),
                   n.id, n.task, n.key, n.tenant, n.grp, n.extra, n.payload
            FROM (
                SELECT coalesce(u.given, nextval('numbers')) AS seq, u.*
                FROM unnest(refs, seqs, ids, tasks, payloads, ranks, delays, expiries, keys_,
                            tenants, grps, leases, extras)
                     AS u(ref, given, id, task, payload, rank, delay, expiry, key, tenant, grp,
                          lease_ms, extra)
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
    PERFORM wake(ns_);
    RETURN known_;
END $$;

-- Adds jobs without keys if every queue accepts them without a further check; NULL otherwise.
CREATE FUNCTION put_plain(
    ns_ int, given bigint, names text[], bytes_max int, refs int[], ids text[], tasks text[],
    payloads bytea[], ranks smallint[], delays bigint[], expiries bigint[], tenants text[],
    grps text[], leases bigint[], extras bytea[]
) RETURNS text[] LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off AS $$
DECLARE
    queue_numbers int[] := ARRAY(
        SELECT q.number
        FROM unnest(names) WITH ORDINALITY AS w(name, o)
        JOIN queues q ON q.ns = ns_ AND q.name = w.name
        WHERE q.plain AND q.payload_max >= bytes_max
        ORDER BY w.o
    );
BEGIN
    IF cardinality(queue_numbers) < cardinality(names) THEN
        RETURN NULL;
    END IF;
    RETURN put(ns_, now_ms(given), queue_numbers, refs, '{}', ids, tasks, payloads, ranks, delays,
               expiries, '{}', tenants, grps, leases, extras);
END $$;

-- Holds expired jobs, so that only the reaper finds them; true if there may be more.
CREATE FUNCTION set_aside(queue_ int, now_ bigint) RETURNS boolean LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    count_ int;
BEGIN
    FOR _ IN 1..5 LOOP
        UPDATE jobs j SET holds = 1
        WHERE j.ctid = ANY (ARRAY(
            SELECT c.ctid FROM jobs c
            WHERE c.queue = queue_ AND c.state = 0 AND c.holds = 0 AND c.expires_at <= now_
            ORDER BY c.expires_at LIMIT 1000 FOR NO KEY UPDATE SKIP LOCKED
        ));
        GET DIAGNOSTICS count_ = ROW_COUNT;
        IF count_ < 1000 THEN
            RETURN false;
        END IF;
    END LOOP;
    RETURN true;
END $$;

-- The columns of a lease.
CREATE TYPE held AS (
    id text, seq bigint, place bigint, queue text, task text, payload bytea, extra bytea,
    rank smallint, version int, attempt int, crashes int, releases int, created_at bigint,
    due_at bigint, expires_at bigint, leased_at bigint, deadline_at bigint, token bigint,
    worker text, cancel boolean, reason text, key text, tenant text, grp text, origin text,
    progress float8, checkpoint bytea
);

-- Leases due jobs of the named queues, in their order. Priorities are walked by index probes, so
-- that any number of jobs that are not due costs nothing. A single row without an id means that
-- expired jobs were held and more may be in the way: call again.
CREATE FUNCTION lease(
    ns_ int, given bigint, names text[], most int, worker_ text, span bigint, tasks text[]
) RETURNS SETOF held LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    now_ bigint := now_ms(given);
    need int := most;
    line record;
    level smallint;
    first_due bigint;
    count_ int;
BEGIN
    FOR line IN
        SELECT q.number, q.name, q.lease_ms
        FROM unnest(names) WITH ORDINALITY AS w(name, o)
        JOIN queues q ON q.ns = ns_ AND q.name = w.name
        WHERE NOT q.paused
        ORDER BY w.o
    LOOP
        PERFORM FROM jobs j
        WHERE j.queue = line.number AND j.state = 0 AND j.holds = 0 AND j.expires_at <= now_
        ORDER BY j.expires_at LIMIT 1;
        IF FOUND AND set_aside(line.number, now_) THEN
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
            UPDATE jobs j SET
                state = 1, attempt = j.attempt + 1, version = j.version + 1, worker = worker_,
                token = nextval('tokens') << 16 | floor(random() * 65536)::bigint,
                leased_at = now_, deadline_at = now_ + coalesce(span, j.lease_ms, line.lease_ms)
            WHERE j.ctid = ANY (ARRAY(
                SELECT c.ctid FROM jobs c
                WHERE c.queue = line.number AND c.state = 0 AND c.holds = 0 AND c.rank = level
                  AND c.due_at BETWEEN first_due AND now_
                  AND (c.expires_at IS NULL OR c.expires_at > now_)
                  AND (tasks IS NULL OR c.task = ANY (tasks))
                ORDER BY c.due_at, c.place LIMIT need FOR NO KEY UPDATE SKIP LOCKED
            ))
            RETURNING
                j.id, j.seq, j.place, line.name, j.task, j.payload, j.extra, j.rank, j.version,
                j.attempt, j.crashes, j.releases, j.created_at, j.due_at, j.expires_at,
                j.leased_at, j.deadline_at, j.token, j.worker, j.cancel, j.reason, j.key,
                j.tenant, j.grp, j.origin,
                CASE WHEN j.noted THEN (SELECT n.progress FROM notes n WHERE n.job = j.seq) END,
                CASE WHEN j.noted THEN (SELECT n.checkpoint FROM notes n WHERE n.job = j.seq) END;
            GET DIAGNOSTICS count_ = ROW_COUNT;
            need := need - count_;
            IF need <= 0 THEN
                RETURN;
            END IF;
        END LOOP;
    END LOOP;
END $$;

-- Leases those of the named jobs that are due.
CREATE FUNCTION lease_ids(
    ns_ int, given bigint, ids text[], most int, worker_ text, span bigint, tasks text[]
) RETURNS SETOF held LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    now_ bigint := now_ms(given);
BEGIN
    RETURN QUERY
    UPDATE jobs j SET
        state = 1, attempt = j.attempt + 1, version = j.version + 1, worker = worker_,
        token = nextval('tokens') << 16 | floor(random() * 65536)::bigint,
        leased_at = now_, deadline_at = now_ + coalesce(span, j.lease_ms, q.lease_ms)
    FROM queues q
    WHERE q.number = j.queue AND j.ctid = ANY (ARRAY(
        SELECT x.ctid
        FROM unnest(ids) WITH ORDINALITY AS w(id, o)
        CROSS JOIN LATERAL (
            SELECT c.ctid FROM jobs c
            WHERE c.id = w.id AND c.ns + 0 = ns_ AND c.state + 0 = 0 AND c.holds = 0
              AND c.due_at <= now_
              AND (c.expires_at IS NULL OR c.expires_at > now_)
              AND (tasks IS NULL OR c.task = ANY (tasks))
              AND EXISTS (
                SELECT FROM queues p
                WHERE p.number = c.queue AND p.name IS NOT NULL AND NOT p.paused
              )
            FOR NO KEY UPDATE SKIP LOCKED
        ) x
        LIMIT most
    ))
    RETURNING
        j.id, j.seq, j.place, q.name, j.task, j.payload, j.extra, j.rank, j.version,
        j.attempt, j.crashes, j.releases, j.created_at, j.due_at, j.expires_at, j.leased_at,
        j.deadline_at, j.token, j.worker, j.cancel, j.reason, j.key, j.tenant, j.grp, j.origin,
        CASE WHEN j.noted THEN (SELECT n.progress FROM notes n WHERE n.job = j.seq) END,
        CASE WHEN j.noted THEN (SELECT n.checkpoint FROM notes n WHERE n.job = j.seq) END;
END $$;

-- The time to the next job that waits only for its due time. A caller that listens is registered as
-- waiting; `fresh` means that none was registered before, so that an enqueue may just have been
-- missed.
CREATE FUNCTION linger(
    ns_ int, given bigint, names text[], ids text[], listens boolean,
    OUT next_ms bigint, OUT fresh boolean
) LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    now_ bigint := now_ms(given);
    real_now bigint := now_ms(NULL);
    until_ bigint;
    queue_ int;
    level smallint;
    due bigint;
    soonest bigint;
BEGIN
    SELECT w.until_at INTO until_ FROM waiters w WHERE w.ns = ns_;
    fresh := listens AND coalesce(until_ <= real_now, true);
    IF listens AND coalesce(until_ < real_now + 2500, true) THEN
        INSERT INTO waiters VALUES (ns_, real_now + 5000)
        ON CONFLICT (ns) DO UPDATE SET until_at = excluded.until_at;
    END IF;
    FOR queue_ IN
        SELECT q.number FROM queues q WHERE q.ns = ns_ AND q.name = ANY (names) AND NOT q.paused
    LOOP
        level := -32768;
        LOOP
            SELECT j.rank INTO level FROM jobs j
            WHERE j.queue = queue_ AND j.state = 0 AND j.holds = 0 AND j.rank > level
            ORDER BY j.rank LIMIT 1;
            EXIT WHEN NOT FOUND;
            SELECT j.due_at INTO due FROM jobs j
            WHERE j.queue = queue_ AND j.state = 0 AND j.holds = 0 AND j.rank = level
              AND j.due_at > now_
            ORDER BY j.due_at LIMIT 1;
            soonest := least(soonest, due);
        END LOOP;
    END LOOP;
    IF cardinality(ids) > 0 THEN
        SELECT min(j.due_at) INTO due FROM jobs j
        WHERE j.id = ANY (ids) AND j.ns + 0 = ns_ AND j.state + 0 = 0 AND j.due_at > now_;
        soonest := least(soonest, due);
    END IF;
    next_ms := soonest - now_;
END $$;

-- Extends the deadlines of valid leases, and stores their notes. Whether a lease is valid is
-- checked once its row is locked: it may expire while its renewal waits for another call.
CREATE FUNCTION renew(
    ns_ int, given bigint, ids text[], tokens_ bigint[], spans bigint[],
    progresses float8[], checkpoints bytea[], outputs bytea[]
) RETURNS SETOF held LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    now_ bigint;
    places tid[];
    seqs bigint[];
    deadlines bigint[];
    winners int[];
BEGIN
    SELECT array_agg(x.ctid), array_agg(x.seq), array_agg(x.deadline_at), array_agg(w.o::int)
    INTO places, seqs, deadlines, winners
    FROM unnest(ids, tokens_) WITH ORDINALITY AS w(id, token, o)
    CROSS JOIN LATERAL (
        SELECT c.ctid, c.seq, c.deadline_at FROM jobs c
        WHERE c.id = w.id AND c.ns + 0 = ns_ AND c.token = w.token AND c.state + 0 = 1
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
    RETURN QUERY
    UPDATE jobs j SET
        deadline_at = now_ + spans[u.o],
        noted = j.noted OR (cardinality(progresses) > 0
            AND NOT (progresses[u.o] IS NULL AND checkpoints[u.o] IS NULL AND outputs[u.o] IS NULL))
    FROM unnest(places, winners) AS u(place, o), queues q
    WHERE j.ctid = u.place AND q.number = j.queue AND q.name IS NOT NULL
    RETURNING
        j.id, j.seq, j.place, q.name, j.task, j.payload, j.extra, j.rank, j.version,
        j.attempt, j.crashes, j.releases, j.created_at, j.due_at, j.expires_at, j.leased_at,
        j.deadline_at, j.token, j.worker, j.cancel, j.reason, j.key, j.tenant, j.grp, j.origin,
        CASE WHEN j.noted THEN (SELECT n.progress FROM notes n WHERE n.job = j.seq) END,
        CASE WHEN j.noted THEN (SELECT n.checkpoint FROM notes n WHERE n.job = j.seq) END;
END $$;

-- Completes jobs under their tokens, leased or waiting. Returns the ids of those that are done
-- under their token, now or since an earlier call; NULL if all were completed just now. A row that
-- another call changed since the statement began is skipped, and found by the next round, whose
-- snapshot sees that change. Token and state of `j` are compared as well: older servers do not skip
-- such a row, but write to it if the conditions on `j` still hold.
CREATE FUNCTION complete(
    ns_ int, given bigint, ids text[], tokens_ bigint[], results bytea[]
) RETURNS text[] LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    now_ bigint := now_ms(given);
    count_ int;
BEGIN
    FOR _ IN 1..10 LOOP
        UPDATE jobs j SET
            state = 2, holds = 0, finished_at = now_, deadline_at = NULL,
            version = j.version + 1, result = u.result
        FROM unnest(ids, tokens_, results) AS u(id, token, result)
        CROSS JOIN LATERAL (
            SELECT c.ctid FROM jobs c
            WHERE c.id = u.id AND c.ns + 0 = ns_ AND c.token = u.token AND c.state + 0 < 2
            OFFSET 0
        ) x
        WHERE j.ctid = x.ctid AND j.token = u.token AND j.state + 0 < 2;
        GET DIAGNOSTICS count_ = ROW_COUNT;
        IF count_ = cardinality(ids) THEN
            RETURN NULL;
        END IF;
        PERFORM FROM unnest(ids, tokens_) AS u(id, token)
        CROSS JOIN LATERAL (
            SELECT FROM jobs c
            WHERE c.id = u.id AND c.ns + 0 = ns_ AND c.token = u.token AND c.state + 0 < 2
            OFFSET 0
        ) x;
        IF NOT FOUND THEN
            RETURN ARRAY(
                SELECT u.id FROM unnest(ids, tokens_) AS u(id, token)
                CROSS JOIN LATERAL (
                    SELECT FROM jobs c
                    WHERE c.id = u.id AND c.ns + 0 = ns_ AND c.token = u.token AND c.state + 0 = 2
                    OFFSET 0
                ) x
            );
        END IF;
    END LOOP;
    RAISE serialization_failure USING MESSAGE = 'the jobs are being changed too fast';
END $$;
