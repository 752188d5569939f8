-- Dead letters that are leased: state 5. They are in no index of waiting jobs, hold no slot and are
-- in no group, as if they were dead; the tables of flow control do not know them.

DROP INDEX jobs_leased;
CREATE INDEX jobs_leased ON jobs (ns, deadline_at, seq) INCLUDE (queue, state)
    WHERE state IN (1, 5);
CREATE INDEX jobs_dead ON jobs (queue, due_at, seq) WHERE state = 3;

-- Until now a job that died in a queue with a dead queue was moved there to wait as a fresh job with
-- its reason: it becomes a dead letter. One that is just leased goes on as an ordinary job. None
-- had a retention: it counts from the migration.
DO $$
DECLARE
    now_ bigint := now_ms(NULL);
    ns_ int;
    was flowing[];
    ended bigint[];
BEGIN
    UPDATE jobs SET reason = NULL WHERE state = 1 AND reason IS NOT NULL;
    FOR ns_ IN SELECT DISTINCT j.ns FROM jobs j WHERE j.state = 0 AND j.reason IS NOT NULL LOOP
        was := ARRAY(
            SELECT ROW(j.seq, j.queue, j.lane, j.state, j.rank, j.flow, j.leased_at, j.id, j.tenant,
                       j.grp)::flowing
            FROM jobs j WHERE j.ns = ns_ AND j.state = 0 AND j.reason IS NOT NULL ORDER BY j.seq
        );
        UPDATE jobs j SET
            state = 3, holds = 0, lane = NULL, token = NULL, version = j.version + 1,
            flow = (j.flow & 12) | (j.grp IS NOT NULL)::int * 2,
            due_at = least(j.due_at, now_), finished_at = now_
        WHERE j.ns = ns_ AND j.state = 0 AND j.reason IS NOT NULL;
        ended := reflow(ns_, now_, was, '{}', 3::smallint);
        -- The next recount notifies their children.
        UPDATE endings SET at = 0 WHERE number = ANY (ended);
    END LOOP;
    UPDATE jobs SET due_at = finished_at WHERE state = 3 AND due_at > finished_at;
END $$;

-- Leases dead letters of the named queues in that order, the longest due first, or those with the
-- given ids. No attempt is counted.
CREATE FUNCTION lease_dead(
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
        RETURN QUERY SELECT * FROM grant_dead(now_, worker_, span, ARRAY(
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
        RETURN QUERY SELECT * FROM grant_dead(now_, worker_, span, ARRAY(
            SELECT x.ctid FROM unnest(ids) WITH ORDINALITY AS w(id, o)
            CROSS JOIN LATERAL (
                SELECT c.ctid FROM jobs c
                WHERE c.id = w.id AND c.ns + 0 = ns_ AND c.state + 0 = 3 AND c.due_at <= now_
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

-- Writes the leases of dead letters whose rows are locked.
CREATE FUNCTION grant_dead(now_ bigint, worker_ text, span bigint, places tid[])
RETURNS SETOF held LANGUAGE sql AS $$
    UPDATE jobs j SET
        state = 5, version = j.version + 1, worker = worker_,
        token = nextval('tokens') << 16 | floor(random() * 65536)::bigint,
        leased_at = now_, deadline_at = now_ + coalesce(span, j.lease_ms, q.lease_ms)
    FROM queues q
    WHERE q.number = j.queue AND j.ctid = ANY (places)
    RETURNING
        j.id, j.seq, j.place, q.name, j.task, j.payload, j.extra, j.rank, j.version,
        j.attempt, j.crashes, j.releases, j.created_at, j.due_at, j.expires_at, j.leased_at,
        j.deadline_at, j.token, j.worker, j.cancel, j.reason, j.key, j.tenant, j.grp, j.origin,
        CASE WHEN j.noted THEN (SELECT n.progress FROM notes n WHERE n.job = j.seq) END,
        CASE WHEN j.noted THEN (SELECT n.checkpoint FROM notes n WHERE n.job = j.seq) END
$$;

-- When the first dead letter of these queues or ids can be leased that could not be at `since`.
CREATE FUNCTION next_dead(ns_ int, since bigint, names text[], ids text[]) RETURNS bigint
LANGUAGE sql
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
            WHERE j.id = ANY (ids) AND j.ns + 0 = ns_ AND j.state + 0 = 3 AND j.due_at > since
        )
    )
$$;

-- Extends the deadlines of valid leases, and stores their notes. Whether a lease is valid is
-- checked once its row is locked: it may expire while its renewal waits for another call.
CREATE OR REPLACE FUNCTION renew_leases(
    ns_ int, given bigint, ids text[], tokens_ bigint[], spans bigint[],
    progresses float8[], checkpoints bytea[], outputs bytea[]
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
    FROM unnest(ids, tokens_) WITH ORDINALITY AS w(id, token, o)
    CROSS JOIN LATERAL (
        SELECT c.ctid, c.seq, c.deadline_at FROM jobs c
        WHERE c.id = w.id AND c.ns + 0 = ns_ AND c.token = w.token AND c.state + 0 IN (1, 5)
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

-- The counts of each queue, up to `most` and by index ranges, and the oldest due time.
CREATE OR REPLACE FUNCTION counts(ns_ int, given bigint, most int)
RETURNS TABLE (
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
            WHERE j.ns = ns_ AND j.state IN (1, 5) AND j.queue = number_
            LIMIT most + 1
        ) w;
        RETURN NEXT;
    END LOOP;
END $$;
