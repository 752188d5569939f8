-- Compares the stored counters with the jobs. One statement compares, in one snapshot; differences
-- are corrected under the flow lock they belong to. Each function returns how many were corrected,
-- and processes a bounded part from the given position.

-- Slots whose count differs from the number of leases that hold them.
CREATE FUNCTION recount_slots(ns_ int, most int) RETURNS int LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off AS $$
DECLARE
    wrong int[];
    domains_ int[];
    count_ int;
BEGIN
    FOR round_ IN 1..2 LOOP
        wrong := ARRAY(
            SELECT s.number FROM slots s
            LEFT JOIN (
                SELECT x.slot, count(*) AS count_ FROM jobs j
                JOIN lanes l ON l.number = j.lane
                CROSS JOIN LATERAL unnest(l.slots) AS x(slot)
                WHERE j.ns = ns_ AND j.state = 1 AND j.lane IS NOT NULL
                GROUP BY x.slot
            ) h ON h.slot = s.number
            LEFT JOIN freed_slots f ON f.slot = s.number
            WHERE s.ns = ns_ AND s.used <> coalesce(h.count_, 0) + coalesce(f.count_, 0)
              AND (round_ = 1 OR s.number = ANY (wrong))
            LIMIT most
        );
        IF cardinality(wrong) = 0 THEN
            RETURN 0;
        END IF;
        IF round_ = 1 THEN
            domains_ := ARRAY(
                SELECT DISTINCT d.domain FROM slots s
                JOIN limit_domains d ON d.ns = s.ns AND d.name = s.name
                WHERE s.number = ANY (wrong)
            );
            PERFORM lock_domains(domains_);
        END IF;
    END LOOP;
    UPDATE slots s SET used = (
        SELECT count(*) FROM jobs j JOIN lanes l ON l.number = j.lane
        WHERE j.ns = ns_ AND j.state = 1 AND j.lane IS NOT NULL AND s.number = ANY (l.slots)
    ) + coalesce((SELECT f.count_ FROM freed_slots f WHERE f.slot = s.number), 0)
    WHERE s.number = ANY (wrong);
    GET DIAGNOSTICS count_ = ROW_COUNT;
    UPDATE parks SET wake_us = 0 WHERE slot = ANY (wrong);
    PERFORM wake(ns_);
    RETURN count_;
END $$;

-- Heads that are parked at a slot which has room but will never wake them.
CREATE FUNCTION recount_parks(ns_ int, most int) RETURNS int LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off AS $$
DECLARE
    lanes_ int[];
    slots_ int[];
    queues_ int[];
BEGIN
    FOR round_ IN 1..2 LOOP
        SELECT array_agg(w.lane), array_agg(w.parked), array_agg(DISTINCT w.queue)
        INTO lanes_, slots_, queues_
        FROM (
            SELECT h.lane, h.parked, h.queue FROM heads h
            JOIN queues q ON q.number = h.queue AND q.ns = ns_
            LEFT JOIN parks p ON p.queue = h.queue AND p.slot = h.parked
            LEFT JOIN slots s ON s.number = h.parked
            LEFT JOIN bounds b ON b.queue = h.queue AND b.name = s.name
            WHERE h.parked > 0 AND (p.slot IS NULL
                OR (p.wake_us IS NULL AND (b.concurrency IS NULL OR s.used < b.concurrency)))
            LIMIT most
        ) w;
        IF lanes_ IS NULL THEN
            RETURN 0;
        END IF;
        IF round_ = 1 THEN
            PERFORM lock_flow(queues_);
        END IF;
    END LOOP;
    UPDATE heads h SET parked = NULL FROM unnest(lanes_, slots_) AS u(lane, slot)
    WHERE h.lane = u.lane AND h.parked = u.slot;
    PERFORM wake(ns_);
    RETURN cardinality(lanes_);
END $$;

-- Lanes after `after_` whose heads are behind the first of their jobs, or missing. Heads in front
-- of it are only written again. The next position is the last lane checked.
CREATE FUNCTION recount_heads(
    ns_ int, given bigint, after_ int, most int, OUT count_ int, OUT next_ int
) LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off AS $$
DECLARE
    some_ int[];
    differing int[];
    ranks smallint[];
BEGIN
    SELECT array_agg(w.number), max(w.number) INTO some_, next_ FROM (
        SELECT l.number FROM lanes l WHERE l.number > after_ ORDER BY l.number LIMIT most
    ) w;
    count_ := 0;
    IF some_ IS NULL THEN
        RETURN;
    END IF;
    FOR round_ IN 1..2 LOOP
        SELECT array_agg(d.lane), array_agg(d.rank), count(*) FILTER (WHERE d.is_wrong)
        INTO differing, ranks, count_
        FROM (
            SELECT coalesce(h.lane, b.lane) AS lane, coalesce(h.rank, b.rank) AS rank,
                   h.lane IS NULL OR (h.due_at, h.place) > (b.due_at, b.place) AS is_wrong
            FROM (
                SELECT w.lane, j.rank, j.due_at, j.place FROM unnest(some_) AS w(lane)
                CROSS JOIN LATERAL (
                    SELECT DISTINCT ON (x.rank) x.rank, x.due_at, x.place FROM jobs x
                    WHERE x.lane = w.lane AND x.state = 0 AND x.holds = 0
                    ORDER BY x.rank, x.due_at, x.place
                ) j
            ) b
            FULL JOIN (SELECT * FROM heads y WHERE y.lane = ANY (some_)) h
                ON h.lane = b.lane AND h.rank = b.rank
            WHERE (h.due_at, h.place) IS DISTINCT FROM (b.due_at, b.place)
        ) d;
        IF differing IS NULL THEN
            RETURN;
        END IF;
        IF round_ = 1 THEN
            PERFORM lock_flow(ARRAY(
                SELECT DISTINCT l.queue FROM lanes l WHERE l.number = ANY (differing)
            ));
        END IF;
    END LOOP;
    PERFORM refresh(now_ms(given), differing, ranks);
    IF count_ > 0 THEN
        PERFORM wake(ns_);
    END IF;
END $$;

-- Groups after (`queue_`, `grp_`) in which a job other than the first is exposed, or none.
CREATE FUNCTION recount_groups(
    ns_ int, given bigint, queue_ int, grp_ text, most int,
    OUT count_ int, OUT next_queue int, OUT next_grp text
) LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off AS $$
DECLARE
    queues_ int[] := '{}';
    grps text[] := '{}';
    wrong_queues int[];
    wrong_grps text[];
    is_end boolean;
BEGIN
    next_queue := queue_;
    next_grp := grp_;
    count_ := 0;
    FOR _ IN 1..most LOOP
        SELECT j.queue, j.grp INTO queue_, grp_ FROM jobs j
        WHERE j.grp IS NOT NULL AND j.state < 2 AND (j.queue, j.grp) > (next_queue, next_grp)
        ORDER BY j.queue, j.grp LIMIT 1;
        is_end := NOT FOUND;
        EXIT WHEN is_end;
        next_queue := queue_;
        next_grp := grp_;
        IF EXISTS (SELECT FROM queues q WHERE q.number = queue_ AND q.ns = ns_) THEN
            queues_ := queues_ || queue_;
            grps := grps || grp_;
        END IF;
    END LOOP;
    IF is_end THEN
        next_queue := NULL;
    END IF;
    FOR _ IN 1..2 LOOP
        SELECT array_agg(p.queue), array_agg(p.grp) INTO wrong_queues, wrong_grps
        FROM unnest(queues_, grps) AS p(queue, grp)
        WHERE (SELECT min(j.seq) FROM jobs j
               WHERE j.queue = p.queue AND j.grp = p.grp AND j.state = 0 AND (j.flow & 16) = 0)
           IS DISTINCT FROM CASE WHEN NOT EXISTS (
                   SELECT FROM jobs j WHERE j.queue = p.queue AND j.grp = p.grp AND j.state = 1
               ) THEN (
                   SELECT j.seq FROM jobs j
                   WHERE j.queue = p.queue AND j.grp = p.grp AND j.state = 0 ORDER BY j.seq LIMIT 1
               ) END;
        EXIT WHEN wrong_queues IS NULL OR count_ > 0;
        PERFORM lock_flow(wrong_queues);
        count_ := cardinality(wrong_queues);
    END LOOP;
    count_ := coalesce(cardinality(wrong_queues), 0);
    IF count_ > 0 THEN
        PERFORM regroup(now_ms(given), wrong_queues, wrong_grps);
        PERFORM wake(ns_);
    END IF;
END $$;

-- Queues whose first jobs wait outside their lanes, or in lanes that they no longer have: no call
-- leases those, so they come to be first. All jobs are to be sorted again.
CREATE FUNCTION recount_lanes(ns_ int, most int) RETURNS int LANGUAGE plpgsql
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
    UPDATE queues SET laned = true WHERE number = ANY (wrong);
    PERFORM wake(ns_);
    RETURN cardinality(wrong);
END $$;

-- Ends of parents of which the children were not notified: the process that wrote them has died.
CREATE FUNCTION untold(ns_ int, most int) RETURNS SETOF bigint LANGUAGE sql
SET search_path FROM CURRENT AS $$
    SELECT e.number FROM endings e WHERE e.ns = ns_ AND e.at < now_ms(NULL) - 5000
    ORDER BY e.number LIMIT most
$$;

-- Removes unused rows: lanes without jobs, then slots, tenants and heads without a lane.
CREATE FUNCTION prune_flow(ns_ int, given bigint, most int) RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off AS $$
DECLARE
    now_ bigint := now_ms(given);
    now_us bigint := micros(given);
    line record;
    needed int[];
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
        CONTINUE WHEN NOT (
            SELECT pg_try_advisory_xact_lock(domain_key(f.domain)) FROM flows f
            WHERE f.queue = line.number
        );
        PERFORM lock_flow(ARRAY[line.number]);
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
    DELETE FROM awaited a WHERE a.ns = ns_ AND NOT EXISTS (
        SELECT FROM edges e WHERE e.parent = a.parent AND e.ns = ns_
    );
END $$;
