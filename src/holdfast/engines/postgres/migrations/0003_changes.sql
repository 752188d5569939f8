-- Rows for changes that `core` decides: read under row locks, and written back completely.

-- The columns that a decision needs, read under the lock; the payload only on request.
CREATE TYPE kept AS (
    id text, seq bigint, place bigint, queue text, task text, payload bytea, extra bytea,
    rank smallint, version int, attempt int, crashes int, releases int, created_at bigint,
    due_at bigint, expires_at bigint, leased_at bigint, deadline_at bigint, token bigint,
    worker text, cancel boolean, reason text, key text, tenant text, grp text, origin text,
    progress float8, checkpoint bytea, state smallint, finished_at bigint, noted boolean
);

-- Locks jobs in the order of seq, in which the list must be.
CREATE FUNCTION hold(ns_ int, seqs bigint[], whole boolean) RETURNS SETOF kept LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
    RETURN QUERY
    SELECT j.id, j.seq, j.place, q.name, j.task, CASE WHEN whole THEN j.payload END,
           j.extra, j.rank, j.version, j.attempt, j.crashes, j.releases, j.created_at, j.due_at,
           j.expires_at, j.leased_at, j.deadline_at, j.token, j.worker, j.cancel, j.reason, j.key,
           j.tenant, j.grp, j.origin, NULL::float8, NULL::bytea, j.state, j.finished_at, j.noted
    FROM unnest(seqs) AS w(seq)
    CROSS JOIN LATERAL (
        SELECT * FROM jobs c WHERE c.ns = ns_ AND c.seq = w.seq FOR UPDATE
    ) j
    JOIN queues q ON q.number = j.queue
    WHERE q.name IS NOT NULL;
END $$;

CREATE FUNCTION hold_ids(ns_ int, ids text[], whole boolean) RETURNS SETOF kept LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
    RETURN QUERY
    SELECT * FROM hold(ns_, ARRAY(
        SELECT DISTINCT x.seq
        FROM unnest(ids) AS w(id)
        CROSS JOIN LATERAL (
            SELECT c.seq FROM jobs c WHERE c.id = w.id AND c.ns + 0 = ns_ OFFSET 0
        ) x
        ORDER BY x.seq
    ), whole);
END $$;

-- Which of these ids are taken.
CREATE FUNCTION known(ns_ int, ids text[]) RETURNS SETOF text LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
    RETURN QUERY
    SELECT w.id FROM unnest(ids) AS w(id)
    CROSS JOIN LATERAL (
        SELECT FROM jobs c
        WHERE c.id = w.id AND c.ns + 0 = ns_
          AND (SELECT q.name FROM queues q WHERE q.number = c.queue) IS NOT NULL
        OFFSET 0
    ) x;
END $$;

-- Writes jobs back if they are unchanged since they were read. place or payload NULL keeps it.
CREATE FUNCTION rewrite(
    ns_ int, seqs bigint[], versions_before int[], queue_numbers int[], states smallint[],
    ranks smallint[], dues bigint[], places bigint[], expiries bigint[], versions int[],
    attempts int[], crashes_ int[], releases_ int[], tokens_ bigint[], deadlines bigint[],
    finishes bigint[], leases bigint[], cancels boolean[], noteds boolean[], tasks text[],
    tenants text[], grps text[], origins text[], reasons text[], extras bytea[],
    payloads bytea[], results bytea[]
) RETURNS int LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    count_ int;
BEGIN
    UPDATE jobs j SET
        queue = u.queue, state = u.state, rank = u.rank, due_at = u.due_at,
        place = coalesce(u.place, j.place),
        expires_at = u.expires_at, version = u.version, attempt = u.attempt, crashes = u.crashes,
        releases = u.releases, token = u.token, deadline_at = u.deadline_at,
        finished_at = u.finished_at, lease_ms = u.lease_ms, cancel = u.cancel, noted = u.noted,
        task = u.task, tenant = u.tenant, grp = u.grp, origin = u.origin, reason = u.reason,
        extra = u.extra, payload = coalesce(u.payload, j.payload), result = u.result, holds = 0
    FROM unnest(seqs, versions_before, queue_numbers, states, ranks, dues, places, expiries,
                versions, attempts, crashes_, releases_, tokens_, deadlines, finishes, leases,
                cancels, noteds, tasks, tenants, grps, origins, reasons, extras, payloads, results)
         AS u(seq, before, queue, state, rank, due_at, place, expires_at, version, attempt, crashes,
              releases, token, deadline_at, finished_at, lease_ms, cancel, noted, task, tenant, grp,
              origin, reason, extra, payload, result)
    CROSS JOIN LATERAL (
        SELECT c.ctid FROM jobs c WHERE c.ns = ns_ AND c.seq = u.seq AND c.version = u.before
        OFFSET 0
    ) x
    WHERE j.ctid = x.ctid;
    GET DIAGNOSTICS count_ = ROW_COUNT;
    PERFORM wake(ns_);
    RETURN count_;
END $$;

-- Stores the notes of runs; NULL keeps the stored value.
CREATE FUNCTION note(jobs_ bigint[], progresses float8[], checkpoints bytea[], outputs bytea[])
RETURNS void LANGUAGE sql
SET search_path FROM CURRENT AS $$
    INSERT INTO notes (job, progress, checkpoint, output)
    SELECT * FROM unnest(jobs_, progresses, checkpoints, outputs)
    ON CONFLICT (job) DO UPDATE SET
        progress = coalesce(excluded.progress, notes.progress),
        checkpoint = coalesce(excluded.checkpoint, notes.checkpoint),
        output = coalesce(excluded.output, notes.output)
$$;

-- Removes jobs and all rows that belong to them; returns how many there were.
CREATE FUNCTION remove(ns_ int, seqs bigint[]) RETURNS int LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    count_ int;
BEGIN
    DELETE FROM notes WHERE job = ANY (seqs);
    DELETE FROM events WHERE job = ANY (seqs);
    DELETE FROM jobs WHERE ctid = ANY (ARRAY(
        SELECT x.ctid FROM unnest(seqs) AS w(seq)
        CROSS JOIN LATERAL (SELECT c.ctid FROM jobs c WHERE c.ns = ns_ AND c.seq = w.seq OFFSET 0) x
    ));
    GET DIAGNOSTICS count_ = ROW_COUNT;
    RETURN count_;
END $$;

-- Removes those of the named jobs that a dropped queue left behind: no reader sees them, so their
-- ids are free.
CREATE FUNCTION free_ids(ns_ int, ids text[]) RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
    PERFORM remove(ns_, ARRAY(
        SELECT x.seq FROM unnest(ids) AS w(id)
        CROSS JOIN LATERAL (
            SELECT c.seq FROM jobs c
            WHERE c.id = w.id AND c.ns + 0 = ns_
              AND (SELECT q.name FROM queues q WHERE q.number = c.queue) IS NULL
            FOR UPDATE
        ) x
    ));
END $$;

-- Locks once-only keys, always in the same order; returns the holder of each. `fresh` means that
-- there was none: the row is the caller's, to be kept or removed.
CREATE FUNCTION hold_keys(
    ns_ int, queue_numbers int[], keys_ text[], ids text[], untils bigint[]
) RETURNS TABLE (queue_ int, key_ text, id_ text, until_ bigint, fresh boolean) LANGUAGE sql
SET search_path FROM CURRENT AS $$
    INSERT INTO keys AS k (ns, queue, key, id, until_at, look_at)
    SELECT ns_, u.*, u.until_at
    FROM unnest(queue_numbers, keys_, ids, untils) AS u(queue, key, id, until_at)
    ORDER BY u.queue, u.key COLLATE "C"
    ON CONFLICT (queue, key) DO UPDATE SET id = k.id
    RETURNING queue, key, id, until_at, xmax = 0
$$;

-- Writes the current holder of each key; an id of NULL frees the key.
CREATE FUNCTION keep_keys(queue_numbers int[], keys_ text[], ids text[], untils bigint[])
RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
    UPDATE keys k SET id = u.id, until_at = u.until_at, look_at = u.until_at
    FROM unnest(queue_numbers, keys_, ids, untils) AS u(queue, key, id, until_at)
    CROSS JOIN LATERAL (
        SELECT c.ctid FROM keys c WHERE c.queue = u.queue AND c.key = u.key OFFSET 0
    ) x
    WHERE k.ctid = x.ctid AND u.id IS NOT NULL;
    DELETE FROM keys WHERE ctid = ANY (ARRAY(
        SELECT x.ctid FROM unnest(queue_numbers, keys_, ids) AS u(queue, key, id)
        CROSS JOIN LATERAL (
            SELECT c.ctid FROM keys c WHERE c.queue = u.queue AND c.key = u.key OFFSET 0
        ) x
        WHERE u.id IS NULL
    ));
END $$;

-- Frees at most `most` keys whose window is over and whose job is finished. They are locked first:
-- a call that takes such a key for a new job has either not begun or is seen by the DELETE. Keys
-- that are still held are not checked again for a while, so that many of them do not block the
-- others.
CREATE FUNCTION free_keys(ns_ int, now_ bigint, most int) RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    places tid[] := ARRAY(
        SELECT k.ctid FROM keys k WHERE k.ns = ns_ AND k.look_at <= now_
        ORDER BY k.look_at LIMIT most FOR UPDATE SKIP LOCKED
    );
BEGIN
    DELETE FROM keys k
    WHERE k.ctid = ANY (places) AND k.until_at <= now_ AND NOT EXISTS (
        SELECT FROM jobs j WHERE j.id = k.id AND j.ns + 0 = ns_ AND j.state + 0 < 2
    );
    UPDATE keys k SET look_at = now_ + 600000 WHERE k.ctid = ANY (places);
END $$;

-- Writes each record only on the version that was read; always in the same order.
CREATE FUNCTION save(
    ns_ int, kinds text[], keys_ text[], versions bigint[], contents bytea[]
) RETURNS boolean[] LANGUAGE plpgsql
SET search_path FROM CURRENT AS $$
DECLARE
    given record;
    answers boolean[] := array_fill(false, ARRAY[cardinality(kinds)]);
BEGIN
    FOR given IN
        SELECT * FROM unnest(kinds, keys_, versions, contents) WITH ORDINALITY
             AS u(kind, key, version, content, o)
        ORDER BY u.kind COLLATE "C", u.key COLLATE "C", u.o
    LOOP
        IF given.version > 0 AND given.content IS NOT NULL THEN
            UPDATE records r SET version = given.version + 1, value = given.content
            WHERE r.ns = ns_ AND r.kind = given.kind AND r.key = given.key
              AND r.version = given.version;
            answers[given.o] := FOUND;
        ELSIF given.version > 0 THEN
            DELETE FROM records r
            WHERE r.ns = ns_ AND r.kind = given.kind AND r.key = given.key
              AND r.version = given.version;
            answers[given.o] := FOUND;
        ELSIF given.content IS NOT NULL THEN
            INSERT INTO records VALUES (ns_, given.kind, given.key, 1, given.content)
            ON CONFLICT (ns, kind, key) DO NOTHING;
            answers[given.o] := FOUND;
        ELSE
            PERFORM FROM records r
            WHERE r.ns = ns_ AND r.kind = given.kind AND r.key = given.key;
            answers[given.o] := NOT FOUND;
        END IF;
    END LOOP;
    RETURN answers;
END $$;

-- The counts of each queue, up to `most` and by index ranges, and the oldest due time.
CREATE FUNCTION counts(ns_ int, given bigint, most int)
RETURNS TABLE (
    number_ int, settings_ bytea, ready int, delayed int, leased int, overdue int, done int,
    dead int, cancelled int, oldest_at bigint
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
            LIMIT most + 1
        ) w;
        delayed := delayed + some_;
        SELECT count(*) INTO done FROM (
            SELECT FROM jobs j WHERE j.queue = number_ AND j.state >= 2 AND j.state = 2
            LIMIT most + 1
        ) w;
        SELECT count(*) INTO dead FROM (
            SELECT FROM jobs j WHERE j.queue = number_ AND j.state >= 2 AND j.state = 3
            LIMIT most + 1
        ) w;
        SELECT count(*) INTO cancelled FROM (
            SELECT FROM jobs j WHERE j.queue = number_ AND j.state >= 2 AND j.state = 4
            LIMIT most + 1
        ) w;
        SELECT count(*), count(*) FILTER (WHERE w.deadline_at <= now_) INTO leased, overdue FROM (
            SELECT j.deadline_at FROM jobs j
            WHERE j.ns = ns_ AND j.state = 1 AND j.queue = number_
            LIMIT most + 1
        ) w;
        RETURN NEXT;
    END LOOP;
END $$;

-- Removes at most `most` jobs of a dropped queue that no other call holds, and as many keys.
CREATE FUNCTION purge(ns_ int, queue_ int, most int) RETURNS int LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    seqs bigint[];
    count_ int;
BEGIN
    seqs := ARRAY(SELECT j.seq FROM jobs j
                  WHERE j.queue = queue_ AND j.state = 0 AND j.holds = 0
                  LIMIT most FOR UPDATE SKIP LOCKED)
         || ARRAY(SELECT j.seq FROM jobs j WHERE j.queue = queue_ AND j.state = 0 AND j.holds <> 0
                  LIMIT most FOR UPDATE SKIP LOCKED)
         || ARRAY(SELECT j.seq FROM jobs j WHERE j.queue = queue_ AND j.state >= 2
                  LIMIT most FOR UPDATE SKIP LOCKED)
         || ARRAY(SELECT j.seq FROM jobs j WHERE j.ns = ns_ AND j.state = 1 AND j.queue = queue_
                  LIMIT most FOR UPDATE SKIP LOCKED);
    count_ := remove(ns_, seqs);
    DELETE FROM keys k WHERE (k.queue, k.key) IN (
        SELECT x.queue, x.key FROM keys x WHERE x.queue = queue_ LIMIT most
    );
    RETURN count_;
END $$;
