-- Declaring the flow settings of queues, sorting their waiting jobs, counts, and dropping queues.

-- The domain of a queue with these limits, locked; a new queue has none. Queues that once shared a
-- limit stay together: leases from before a change still hold its slots.
CREATE FUNCTION join_flow(ns_ int, name_ text, limits text[]) RETURNS int LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
    found_ int[];
    target int;
BEGIN
    -- No other call of this namespace joins domains now, and none enqueues into this queue.
    PERFORM pg_advisory_xact_lock(ns_, 0);
    PERFORM pg_advisory_xact_lock(ns_, hashtext(name_));
    -- Wait for a call that is just giving it a domain.
    INSERT INTO flows (queue, domain)
    SELECT q.number, nextval('domains') FROM queues q
    WHERE q.ns = ns_ AND q.name = name_
      AND NOT EXISTS (SELECT FROM flows f WHERE f.queue = q.number)
    ON CONFLICT (queue) DO NOTHING;
    found_ := ARRAY(
        SELECT f.domain FROM queues q JOIN flows f ON f.queue = q.number
        WHERE q.ns = ns_ AND q.name = name_
        UNION
        SELECT d.domain FROM limit_domains d WHERE d.ns = ns_ AND d.name = ANY (limits)
    );
    IF cardinality(found_) = 0 THEN
        target := nextval('domains');
    ELSE
        PERFORM lock_domains(found_);
        target := (SELECT min(w.domain) FROM unnest(found_) AS w(domain));
        UPDATE flows f SET domain = target WHERE f.domain = ANY (found_) AND f.domain <> target;
        UPDATE limit_domains d SET domain = target
        WHERE d.domain = ANY (found_) AND d.domain <> target;
    END IF;
    INSERT INTO limit_domains (ns, name, domain)
    SELECT ns_, w.name, target FROM unnest(limits) AS w(name)
    ON CONFLICT (ns, name) DO NOTHING;
    RETURN target;
END $$;

-- Writes the flow settings of a queue. With `anew` its waiting jobs are to be sorted, and until
-- they are it counts as a queue with lanes.
CREATE FUNCTION declare_flow(
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
        -- Row locks, always in the same order.
        PERFORM FROM jobs WHERE ns = ns_ AND state = 1 AND queue = number_ AND flow & 33 = 0
        ORDER BY seq FOR NO KEY UPDATE;
        UPDATE jobs SET flow = flow | 32
        WHERE ns = ns_ AND state = 1 AND queue = number_ AND flow & 33 = 0;
    END IF;
    RETURN sorting_;
END $$;

-- The next waiting jobs of a queue to be sorted, with the payload if the lane depends on it. First
-- those that wait for more than their time, then the others, finally those that changed between the
-- two in the meantime. Empty when it is done.
CREATE FUNCTION to_sort(ns_ int, queue_ int, most int, whole boolean) RETURNS SETOF kept
LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off AS $$
DECLARE
    cursor_ flows;
    seqs bigint[];
    last_ record;
    count_ int;
BEGIN
    SELECT f.* INTO cursor_ FROM flows f WHERE f.queue = queue_ AND f.sorting;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF cursor_.is_aside THEN
        seqs := ARRAY(
            SELECT j.seq FROM jobs j
            WHERE j.queue = queue_ AND j.state = 0 AND j.holds <> 0
              AND (j.due_at, j.place) > (cursor_.due_at, cursor_.place)
            ORDER BY j.due_at, j.place LIMIT most
        );
        IF cardinality(seqs) = 0 THEN
            cursor_.is_aside := false;
            cursor_.due_at := -1;
            cursor_.place := -1;
        END IF;
    END IF;
    IF NOT cursor_.is_aside THEN
        seqs := ARRAY(
            SELECT j.seq FROM jobs j
            WHERE j.queue = queue_ AND j.state = 0 AND j.holds = 0
              AND (j.rank, j.due_at, j.place) > (cursor_.rank, cursor_.due_at, cursor_.place)
            ORDER BY j.rank, j.due_at, j.place LIMIT most
        );
    END IF;
    IF cardinality(seqs) > 0 THEN
        SELECT j.rank, j.due_at, j.place INTO last_ FROM jobs j
        WHERE j.ns = ns_ AND j.seq = seqs[cardinality(seqs)];
        UPDATE flows f SET is_aside = cursor_.is_aside, due_at = last_.due_at, place = last_.place,
            rank = CASE WHEN cursor_.is_aside THEN f.rank ELSE last_.rank END
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

-- Puts waiting jobs into their lanes, or with NULL removes them from their lanes.
CREATE FUNCTION sort_into(ns_ int, given bigint, seqs bigint[], lanes_ int[]) RETURNS void
LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off AS $$
DECLARE
    before_ int[];
    ranks smallint[];
BEGIN
    SELECT array_agg(j.lane ORDER BY w.o), array_agg(j.rank ORDER BY w.o) INTO before_, ranks
    FROM unnest(seqs) WITH ORDINALITY AS w(seq, o)
    CROSS JOIN LATERAL (SELECT * FROM jobs x WHERE x.ns = ns_ AND x.seq = w.seq OFFSET 0) j;
    UPDATE jobs j SET lane = u.lane, flow = (j.flow & ~1) | (u.lane IS NOT NULL)::int
    FROM unnest(seqs, lanes_) AS u(seq, lane)
    CROSS JOIN LATERAL (
        SELECT x.ctid FROM jobs x WHERE x.ns = ns_ AND x.seq = u.seq AND x.state = 0 OFFSET 0
    ) x
    WHERE j.ctid = x.ctid;
    PERFORM refresh(now_ms(given), before_ || lanes_, ranks || ranks);
END $$;

-- The counts of each queue, up to `most` and by index ranges, and the oldest due time.
DROP FUNCTION counts;
CREATE FUNCTION counts(ns_ int, given bigint, most int)
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
            WHERE j.ns = ns_ AND j.state = 1 AND j.queue = number_
            LIMIT most + 1
        ) w;
        RETURN NEXT;
    END LOOP;
END $$;

-- Removes at most `most` jobs of a dropped queue that no other call holds, and as many keys; when
-- none are left, its counters. Also returns the endings of which children must be notified.
DROP FUNCTION purge;
CREATE FUNCTION purge(
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
    DELETE FROM keys k WHERE (k.queue, k.key) IN (
        SELECT x.queue, x.key FROM keys x WHERE x.queue = queue_ LIMIT most
    );
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
