-- Every call takes its locks in one order, so that two calls never wait for each other in a cycle:
--   1. queue names (advisory: shared to use a queue, exclusive to change its lanes);
--   2. domains of flow control (advisory), by number;
--   3. rows of keys, by queue and key;
--   4. rows of jobs, by seq: locked here, written only after 6;
--   5. rows of queues, by number;
--   6. ids of new jobs (the unique index), by id;
--   7. rows of awaited, by parent.
-- Everything else that a call writes belongs to a row or to a domain that it holds. A call that
-- needs a lock out of order does not wait for it: it skips the row, or fails and is repeated.

-- Adds admitted jobs, given in the order of their ids; returns the ids that were already known.
-- `decided` means that none of them was known a moment ago: if one is, the call fails and is
-- repeated. Otherwise NULL means that another call is just removing one of the ids. An empty array
-- stands for a column of defaults; refs are positions in queue_numbers; without seqs the jobs are
-- numbered in the order given. Known ids are rare: looking for them only after an insert failed
-- makes all other calls faster.
CREATE FUNCTION add_jobs(
    ns_ int, at bigint, decided boolean, queue_numbers int[], refs int[], seqs bigint[],
    ids text[], tasks text[], payloads bytea[], ranks smallint[], delays bigint[],
    expiries bigint[], keys_ text[], tenants text[], grps text[], leases bigint[],
    extras bytea[], lanes_ int[], flows_ smallint[], holds_ int[]
) RETURNS text[] LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off AS $$
DECLARE
    known_ text[] := '{}';
    free text[];
BEGIN
    BEGIN
        INSERT INTO jobs (
            seq, place, due_at, created_at, expires_at, lease_ms, ns, queue, rank, id,
            task, key, tenant, grp, extra, payload, lane, flow, holds
        )
        SELECT n.seq, n.seq, at + coalesce(n.delay, 0), at, at + n.expiry, n.lease_ms,
               ns_, queue_numbers[coalesce(n.ref, 1)], coalesce(n.rank, 0), n.id,
               n.task, n.key, n.tenant, n.grp, n.extra, n.payload, n.lane,
               coalesce(n.flow, 0), coalesce(n.holds, 0)
        FROM (
            SELECT coalesce(u.given, nextval('numbers')) AS seq, u.*
            FROM unnest(refs, seqs, ids, tasks, payloads, ranks, delays, expiries,
                        keys_, tenants, grps, leases, extras, lanes_, flows_, holds_)
                 AS u(ref, given, id, task, payload, rank, delay, expiry,
                      key, tenant, grp, lease_ms, extra, lane, flow, holds)
        ) n;
    EXCEPTION WHEN unique_violation THEN
        IF cardinality(seqs) = 0 THEN
            seqs := ARRAY(SELECT nextval('numbers') FROM generate_series(1, cardinality(ids)));
        END IF;
        BEGIN
            known_ := ids;
            LOOP
                WITH fresh AS (
                    INSERT INTO jobs (
                        seq, place, due_at, created_at, expires_at, lease_ms, ns, queue, rank, id,
                        task, key, tenant, grp, extra, payload, lane, flow, holds
                    )
                    SELECT n.seq, n.seq, at + coalesce(n.delay, 0), at, at + n.expiry, n.lease_ms,
                           ns_, queue_numbers[coalesce(n.ref, 1)], coalesce(n.rank, 0), n.id,
                           n.task, n.key, n.tenant, n.grp, n.extra, n.payload, n.lane,
                           coalesce(n.flow, 0), coalesce(n.holds, 0)
                    FROM (
                        SELECT u.given AS seq, u.*
                        FROM unnest(refs, seqs, ids, tasks, payloads, ranks, delays, expiries,
                                    keys_, tenants, grps, leases, extras, lanes_, flows_, holds_)
                             AS u(ref, given, id, task, payload, rank, delay, expiry,
                                  key, tenant, grp, lease_ms, extra, lane, flow, holds)
                        WHERE free IS NULL OR u.id = ANY (free)
                    ) n
                    ON CONFLICT (id, ns) DO NOTHING
                    RETURNING id
                )
                SELECT ARRAY(SELECT unnest(known_) EXCEPT SELECT f.id FROM fresh f) INTO known_;
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

-- Adds plain jobs if every queue takes them without a further check; NULL if one does not. The jobs
-- are given in the order of their ids; `places` are their positions in the caller's order, and
-- empty if that is the same.
CREATE FUNCTION add_plain_jobs(
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
    RETURN add_jobs(ns_, now_ms(given), false, queue_numbers, refs, seqs, ids, tasks, payloads,
                    ranks, delays, expiries, '{}', tenants, grps, leases, extras, '{}', '{}', '{}');
END $$;

-- Removes those of the named jobs that a dropped queue left behind, and returns their ids: no
-- reader can see such a job, so its id is free. Never waits: fails if another call holds one of the
-- rows.
CREATE FUNCTION free_leftovers(ns_ int, ids text[]) RETURNS text[] LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off AS $$
DECLARE
    seqs bigint[];
    free text[];
BEGIN
    SELECT array_agg(x.seq), array_agg(x.id) INTO seqs, free FROM unnest(ids) AS w(id)
    CROSS JOIN LATERAL (
        SELECT c.seq, c.id FROM jobs c
        WHERE c.id = w.id AND c.ns + 0 = ns_
          AND (SELECT q.name FROM queues q WHERE q.number = c.queue) IS NULL
        FOR UPDATE NOWAIT
    ) x;
    IF seqs IS NULL THEN
        RETURN '{}';
    END IF;
    PERFORM erase(ns_, now_ms(NULL), seqs);
    RETURN free;
END $$;

-- Which of these ids belong to a job; `is_left` for one that a dropped queue left behind.
CREATE FUNCTION known_ids(ns_ int, ids text[]) RETURNS TABLE (id_ text, is_left boolean)
LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off AS $$
BEGIN
    RETURN QUERY
    SELECT w.id, x.is_left FROM unnest(ids) AS w(id)
    CROSS JOIN LATERAL (
        SELECT (SELECT q.name FROM queues q WHERE q.number = c.queue) IS NULL AS is_left
        FROM jobs c WHERE c.id = w.id AND c.ns + 0 = ns_ OFFSET 0
    ) x;
END $$;

-- Marks new jobs as parents if children still wait for their ids.
CREATE OR REPLACE FUNCTION recognise(ns_ int, ids text[]) RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
    parents text[] := ARRAY(
        SELECT a.parent FROM awaited a WHERE a.ns = ns_ AND a.parent = ANY (ids)
        ORDER BY a.parent FOR UPDATE
    );
BEGIN
    IF cardinality(parents) > 0 THEN
        UPDATE jobs j SET flow = j.flow | 8 WHERE j.id = ANY (parents) AND j.ns + 0 = ns_;
        DELETE FROM awaited a WHERE a.ns = ns_ AND a.parent = ANY (parents);
    END IF;
END $$;

-- Removes jobs with their notes, events and edges; returns the endings of which children must be
-- notified. Groups and lanes of a dropped queue are left as they are: nothing is leased from it.
CREATE OR REPLACE FUNCTION erase(ns_ int, now_ bigint, seqs bigint[]) RETURNS bigint[]
LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    was flowing[] := ARRAY(
        SELECT ROW(c.seq, c.queue, CASE WHEN q.name IS NOT NULL OR c.state = 1 THEN c.lane END,
                   c.state, c.rank, c.flow, c.leased_at, c.id, c.tenant,
                   CASE WHEN q.name IS NOT NULL THEN c.grp END)::flowing
        FROM unnest(seqs) AS w(seq)
        CROSS JOIN LATERAL (SELECT * FROM jobs x WHERE x.ns = ns_ AND x.seq = w.seq OFFSET 0) c
        LEFT JOIN LATERAL (SELECT x.name FROM queues x WHERE x.number = c.queue OFFSET 0) q ON true
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
    ORDER BY w.id COLLATE "C"
    ON CONFLICT DO NOTHING;
    RETURN coalesce(reflow(ns_, now_, was, '{}', NULL), '{}');
END $$;

-- Completes plain jobs under their tokens, leased or waiting. Returns the ids of those that are
-- done under their token, now or since an earlier call; NULL if all were completed just now. If the
-- first is NULL, others are left to `complete_flow`, which needs their flow locks. A row that
-- another call changed since the statement began is skipped, and found by the next round, whose
-- snapshot sees that change. Token and state of `j` are compared as well: older servers do not skip
-- such a row, but write to it if the conditions on `j` still hold. The rows
-- before one that another call holds are written by then, so this does not wait for long: the call
-- fails and is repeated with `complete_flow`, which locks all rows before it writes one.
CREATE OR REPLACE FUNCTION complete(
    ns_ int, given bigint, ids text[], tokens_ bigint[], results bytea[]
) RETURNS text[] LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off SET lock_timeout = '50ms' AS $$
DECLARE
    now_ bigint := now_ms(given);
    count_ int;
    done text[];
    is_left boolean;
BEGIN
    FOR _ IN 1..10 LOOP
        UPDATE jobs j SET
            state = 2, holds = 0, finished_at = now_, deadline_at = NULL,
            version = j.version + 1, result = u.result
        FROM unnest(ids, tokens_, results) AS u(id, token, result)
        CROSS JOIN LATERAL (
            SELECT c.ctid FROM jobs c
            WHERE c.id = u.id AND c.ns + 0 = ns_ AND c.token = u.token AND c.state + 0 < 2
              AND c.flow = 0
            OFFSET 0
        ) x
        WHERE j.ctid = x.ctid AND j.token = u.token AND j.state + 0 < 2 AND j.flow = 0;
        GET DIAGNOSTICS count_ = ROW_COUNT;
        IF count_ = cardinality(ids) THEN
            RETURN NULL;
        END IF;
        SELECT array_agg(x.id ORDER BY x.id NULLS FIRST), bool_or(x.is_left) INTO done, is_left
        FROM unnest(ids, tokens_) AS u(id, token)
        CROSS JOIN LATERAL (
            SELECT CASE c.state WHEN 2 THEN c.id END AS id, c.state < 2 AND c.flow = 0 AS is_left
            FROM jobs c
            WHERE c.id = u.id AND c.ns + 0 = ns_ AND c.token = u.token AND c.state + 0 <= 2
            OFFSET 0
        ) x;
        IF is_left IS NOT TRUE THEN
            RETURN coalesce(done, '{}');
        END IF;
        -- The next round must not wait, because rows behind the remaining ones are already locked.
        BEGIN
            PERFORM FROM unnest(ids, tokens_) AS u(id, token)
            CROSS JOIN LATERAL (
                SELECT FROM jobs c
                WHERE c.id = u.id AND c.ns + 0 = ns_ AND c.token = u.token AND c.state + 0 < 2
                  AND c.flow = 0
                FOR NO KEY UPDATE NOWAIT
            ) x;
        EXCEPTION WHEN lock_not_available THEN
            EXIT;
        END;
    END LOOP;
    RAISE serialization_failure USING MESSAGE = 'other calls are changing the same jobs';
END $$;

-- The same: it must not wait for long, but for the domains that it shares, which it locks first.
ALTER FUNCTION complete_light SET lock_timeout = '50ms';
ALTER FUNCTION share_flow SET lock_timeout = 0;

-- Leases due jobs of the named queues, in their order. Priorities are walked by index probes, so
-- that any number of jobs that are not due costs nothing. A single row without an id means that
-- expired jobs were held and more may be in the way: call again; with a seq, that the queues it
-- names have lanes: call `lease_flow`.
CREATE OR REPLACE FUNCTION lease(
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
    sign held;
BEGIN
    FOR line IN
        SELECT q.number, q.name, q.lease_ms, bool_or(q.laned) OVER () AS laned
        FROM unnest(names) WITH ORDINALITY AS w(name, o)
        JOIN queues q ON q.ns = ns_ AND q.name = w.name
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

-- Holds expired jobs without a lane, so that only the reaper finds them; true if there may be more.
-- Those with a lane are left to `set_aside`, which needs their flow locks.
CREATE FUNCTION set_plain_aside(queue_ int, now_ bigint) RETURNS boolean LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    count_ int;
BEGIN
    FOR _ IN 1..5 LOOP
        UPDATE jobs j SET holds = j.holds + 1000000
        WHERE j.ctid = ANY (ARRAY(
            SELECT c.ctid FROM jobs c
            WHERE c.queue = queue_ AND c.state = 0 AND c.holds = 0 AND c.expires_at <= now_
              AND c.lane IS NULL
            ORDER BY c.expires_at LIMIT 1000 FOR NO KEY UPDATE SKIP LOCKED
        ));
        GET DIAGNOSTICS count_ = ROW_COUNT;
        IF count_ < 1000 THEN
            RETURN false;
        END IF;
    END LOOP;
    RETURN true;
END $$;

-- Removes at most `most` jobs of a dropped queue that no other call holds, and as many keys; when
-- none are left, its lanes and counters. Also returns the endings of which children must be
-- notified.
CREATE OR REPLACE FUNCTION purge(
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
         || ARRAY(SELECT j.seq FROM jobs j WHERE j.queue = queue_ AND j.state >= 2
                  LIMIT most FOR UPDATE SKIP LOCKED)
         || ARRAY(SELECT j.seq FROM jobs j WHERE j.ns = ns_ AND j.state = 1 AND j.queue = queue_
                  LIMIT most FOR UPDATE SKIP LOCKED);
    count_ := cardinality(seqs);
    -- Children are notified of the ends in the order of arrival.
    endings_ := erase(ns_, now_ms(NULL), ARRAY(
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

-- Writes the flow settings of a queue. With `anew` its waiting jobs are to be sorted, and until
-- they are it counts as a queue with lanes.
CREATE OR REPLACE FUNCTION declare_flow(
    ns_ int, given bigint, number_ int, domain_ int, wanted_ boolean, anew boolean,
    fairness_ smallint, aging bigint, batch int, names text[], concurrencies int[],
    aparts bigint[], bursts int[],
    wides text[], tenants_ text[], weights_ int[]
) RETURNS boolean LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
    sorting_ boolean;
    now_us bigint := micros(given);
BEGIN
    INSERT INTO flows AS f (queue, domain, sorting, wanted)
    VALUES (number_, domain_, anew, wanted_)
    ON CONFLICT (queue) DO UPDATE SET
        domain = excluded.domain, sorting = f.sorting OR anew, wanted = wanted_,
        is_aside = f.is_aside OR anew, rank = CASE WHEN anew THEN -32768 ELSE f.rank END,
        due_at = CASE WHEN anew THEN -1 ELSE f.due_at END,
        place = CASE WHEN anew THEN -1 ELSE f.place END
    RETURNING sorting INTO sorting_;
    UPDATE queues SET laned = wanted_ OR sorting_, fairness = fairness_, aging_ms = aging,
                      group_batch = batch
    WHERE number = number_;
    UPDATE heads h SET turn = CASE WHEN fairness_ <> 1 THEN 0 ELSE coalesce((
        SELECT t.turn FROM tenants t WHERE t.queue = number_ AND t.tenant = h.tenant
    ), 0) END
    WHERE h.queue = number_;
    DELETE FROM bounds WHERE queue = number_;
    INSERT INTO bounds (queue, name, concurrency, apart_us, burst, wide)
    SELECT number_, u.* FROM unnest(names, concurrencies, aparts, bursts, wides) AS u;
    DELETE FROM weights WHERE queue = number_;
    INSERT INTO weights (queue, tenant, weight)
    SELECT number_, u.* FROM unnest(tenants_, weights_) AS u;
    -- The new numbers may allow more starts. A start time set far ahead by an older rate moves
    -- closer.
    UPDATE slots s SET free_us = b.ahead_us + now_us
    FROM (
        SELECT x.name, max(x.burst * x.apart_us) AS ahead_us
        FROM bounds x JOIN queues q ON q.number = x.queue AND q.ns = ns_ AND q.name IS NOT NULL
        WHERE x.name = ANY (names) AND x.apart_us IS NOT NULL
          AND EXISTS (SELECT FROM unnest(names, aparts) AS u(name, apart_us)
                      WHERE u.name = x.name AND u.apart_us IS NOT NULL)
        GROUP BY x.name
    ) b
    WHERE s.ns = ns_ AND s.name = b.name AND s.free_us > b.ahead_us + now_us;
    UPDATE parks p SET wake_us = 0
    WHERE p.queue = number_
       OR p.slot IN (SELECT s.number FROM slots s WHERE s.ns = ns_ AND s.name = ANY (names));
    IF anew THEN
        PERFORM FROM jobs WHERE ns = ns_ AND state = 1 AND queue = number_ AND flow & 33 = 0
        ORDER BY seq FOR NO KEY UPDATE;
        -- Of those leased since then, only the ones that need no waiting.
        UPDATE jobs SET flow = flow | 32 WHERE ctid = ANY (ARRAY(
            SELECT j.ctid FROM jobs j
            WHERE j.ns = ns_ AND j.state = 1 AND j.queue = number_ AND j.flow & 33 = 0
            FOR NO KEY UPDATE SKIP LOCKED
        ));
    END IF;
    RETURN sorting_;
END $$;

-- Queues whose first jobs wait outside their lanes, or in lanes that they no longer have: no call
-- leases those, so they come to be first. All jobs are to be sorted again.
CREATE OR REPLACE FUNCTION recount_lanes(ns_ int, most int) RETURNS int LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off AS $$
DECLARE
    wrong int[];
BEGIN
    FOR round_ IN 1..2 LOOP
        wrong := ARRAY(
            SELECT q.number FROM flows f
            CROSS JOIN LATERAL (SELECT * FROM queues x WHERE x.number = f.queue OFFSET 0) q
            WHERE q.ns = ns_ AND q.name IS NOT NULL AND NOT f.sorting
              AND (round_ = 1 OR q.number = ANY (wrong))
              AND (q.laned OR EXISTS (SELECT FROM lanes l WHERE l.queue = q.number))
              AND EXISTS (
                SELECT FROM (
                    SELECT j.lane FROM jobs j
                    WHERE j.queue = q.number AND j.state = 0 AND j.holds = 0
                    ORDER BY j.rank, j.due_at, j.place LIMIT most
                ) w
                WHERE (w.lane IS NOT NULL) <> q.laned
              )
        );
        IF cardinality(wrong) = 0 THEN
            RETURN 0;
        END IF;
        IF round_ = 1 THEN
            PERFORM lock_flow(wrong);
        END IF;
    END LOOP;
    UPDATE flows SET sorting = true, is_aside = true, rank = -32768, due_at = -1, place = -1
    WHERE queue = ANY (wrong);
    PERFORM FROM queues WHERE number = ANY (wrong) ORDER BY number FOR NO KEY UPDATE;
    UPDATE queues SET laned = true WHERE number = ANY (wrong);
    PERFORM wake(ns_);
    RETURN cardinality(wrong);
END $$;

-- Removes lanes without jobs, then slots, tenants and heads without a lane. Only where no other
-- call holds the flow lock: this one holds several domains, and must not wait for one.
CREATE OR REPLACE FUNCTION prune_flow(ns_ int, given bigint, most int) RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off AS $$
DECLARE
    now_ bigint := now_ms(given);
    now_us bigint := micros(given);
    line record;
    needed int[];
    domain_ int;
BEGIN
    FOR line IN
        SELECT q.number FROM queues q JOIN flows f ON f.queue = q.number
        WHERE q.ns = ns_ AND q.name IS NOT NULL AND (
            EXISTS (SELECT FROM lanes l WHERE l.queue = q.number
                    AND NOT EXISTS (SELECT FROM heads h WHERE h.lane = l.number))
            OR EXISTS (SELECT FROM tenants t
                       WHERE t.queue = q.number AND t.turn <= f.vclock - 100000
                         AND busy_us(t.busy_ms, now_ - t.busy_at) = 0))
        ORDER BY q.number
    LOOP
        SELECT f.domain INTO domain_ FROM flows f WHERE f.queue = line.number;
        CONTINUE WHEN NOT pg_try_advisory_xact_lock(domain_key(domain_))
            OR line.number <> ALL (lock_domains(ARRAY[domain_]));
        needed := ARRAY(
            SELECT j.lane FROM jobs j WHERE j.ns = ns_ AND j.state = 1 AND j.lane IS NOT NULL
            UNION
            SELECT j.lane FROM jobs j WHERE j.queue = line.number AND j.state = 0 AND j.holds <> 0
              AND j.lane IS NOT NULL
        );
        DELETE FROM lanes l WHERE l.number = ANY (ARRAY(
            SELECT x.number FROM lanes x
            WHERE x.queue = line.number AND x.number <> ALL (needed)
              AND NOT EXISTS (SELECT FROM heads h WHERE h.lane = x.number)
            LIMIT most
        ));
        DELETE FROM tenants t USING flows f
        WHERE f.queue = line.number AND t.queue = line.number AND t.turn <= f.vclock - 100000
          AND busy_us(t.busy_ms, now_ - t.busy_at) = 0
          AND NOT EXISTS (
              SELECT FROM lanes l WHERE l.queue = line.number AND l.tenant = t.tenant
          );
        DELETE FROM parks p WHERE p.queue = line.number AND NOT EXISTS (
            SELECT FROM heads h WHERE h.queue = p.queue AND h.parked = p.slot
        );
        -- The domains that share these rows are locked now.
        DELETE FROM slots s USING limit_domains d, flows f
        WHERE f.queue = line.number AND d.domain = f.domain AND s.ns = d.ns AND s.name = d.name
          AND s.ns = ns_ AND s.used = 0 AND s.free_us <= now_us
          AND s.number NOT IN (SELECT unnest(l.slots) FROM lanes l);
    END LOOP;
    -- Entries that no call collected, because their queue is gone or idle.
    PERFORM lock_domains(ARRAY[f.domain]) FROM (
        SELECT DISTINCT y.domain FROM freed x JOIN flows y ON y.queue = x.queue
    ) f
    WHERE pg_try_advisory_xact_lock(domain_key(f.domain));
    DELETE FROM awaited a WHERE a.ctid = ANY (ARRAY(
        SELECT x.ctid FROM awaited x WHERE x.ns = ns_ AND NOT EXISTS (
            SELECT FROM edges e WHERE e.parent = x.parent AND e.ns = ns_
        ) FOR UPDATE SKIP LOCKED
    ));
END $$;
