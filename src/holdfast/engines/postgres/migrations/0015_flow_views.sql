-- The state of limits, tenants and waiting jobs: read without locks, and bounded.

-- Counters by name and key, and the first of the leases that hold each. A missing counter was never
-- used.
CREATE FUNCTION slots_shown(ns_ int, names text[], keys_ text[], most int)
RETURNS TABLE (used_ int, free_us_ bigint, holders text[]) LANGUAGE plpgsql
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
        SELECT x.slot, j.id,
               row_number() OVER (PARTITION BY x.slot ORDER BY j.leased_at, j.seq) AS o
        FROM jobs j
        CROSS JOIN LATERAL (SELECT l.slots FROM lanes l WHERE l.number = j.lane OFFSET 0) l
        CROSS JOIN LATERAL unnest(l.slots) AS x(slot)
        WHERE j.ns = ns_ AND j.state = 1 AND j.lane IS NOT NULL
          AND x.slot IN (SELECT s.number FROM shown s)
    )
    SELECT coalesce(s.used, 0), coalesce(s.free_us, 0),
           ARRAY(SELECT h.id FROM held_ h WHERE h.slot = s.number AND h.o <= most ORDER BY h.o)
    FROM shown s ORDER BY s.o;
END $$;

-- The counters of a queue's limits: held by any lease, or needed by a waiting job of the queue.
CREATE FUNCTION slots_needed(ns_ int, queue_ int, names text[], scan_max int, most int)
RETURNS TABLE (name_ text, key_ text) LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off AS $$
BEGIN
    RETURN QUERY
    SELECT s.name, s.key FROM slots s
    LEFT JOIN freed_slots f ON f.slot = s.number
    WHERE s.ns = ns_ AND s.name = ANY (names) AND (s.used > coalesce(f.count_, 0) OR s.number IN (
        SELECT x.slot FROM (
            SELECT h.lane FROM heads h WHERE h.queue = queue_ AND EXISTS (
                SELECT FROM jobs j
                WHERE j.lane = h.lane AND j.state = 0 AND j.holds = 0 AND j.rank = h.rank
            )
            UNION
            SELECT a.lane FROM (
                SELECT j.lane FROM jobs j WHERE j.queue = queue_ AND j.state = 0 AND j.holds <> 0
                LIMIT scan_max
            ) a
        ) w
        CROSS JOIN LATERAL (SELECT l.slots FROM lanes l WHERE l.number = w.lane OFFSET 0) l
        CROSS JOIN LATERAL unnest(l.slots) AS x(slot)
    ))
    ORDER BY s.name, s.key LIMIT most;
END $$;

-- The waiting and leased jobs of each tenant of a queue, when the first of its ready jobs was due,
-- and its processing time.
CREATE FUNCTION tenants_shown(ns_ int, queue_ int, now_ bigint, scan_max int)
RETURNS TABLE (
    tenant_ text, waiting bigint, leased_ bigint, oldest_at bigint, busy_ms_ float8, busy_at_ bigint
) LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off AS $$
BEGIN
    RETURN QUERY
    SELECT w.tenant, sum(w.waiting)::bigint, sum(w.leased)::bigint, min(w.oldest_at),
           max(w.busy_ms), max(w.busy_at)
    FROM (
        SELECT coalesce(a.tenant, '') AS tenant, 1 AS waiting, 0 AS leased,
               CASE WHEN a.due_at <= now_ AND (a.expires_at IS NULL OR a.expires_at > now_)
                    THEN a.due_at END AS oldest_at,
               NULL::float8 AS busy_ms, NULL::bigint AS busy_at
        FROM (
            SELECT j.tenant, j.due_at, j.expires_at FROM jobs j
            WHERE j.queue = queue_ AND j.state = 0 AND j.holds = 0 LIMIT scan_max
        ) a
        UNION ALL
        SELECT coalesce(a.tenant, ''), 1, 0, NULL, NULL, NULL FROM (
            SELECT j.tenant FROM jobs j
            WHERE j.queue = queue_ AND j.state = 0 AND j.holds <> 0 LIMIT scan_max
        ) a
        UNION ALL
        SELECT coalesce(j.tenant, ''), 0, 1, NULL, NULL, NULL FROM jobs j
        WHERE j.ns = ns_ AND j.state = 1 AND j.queue = queue_
        UNION ALL
        SELECT t.tenant, 0, 0, NULL, t.busy_ms, t.busy_at FROM tenants t WHERE t.queue = queue_
    ) w
    GROUP BY w.tenant ORDER BY w.tenant COLLATE "C";
END $$;

-- The parents a waiting job still waits for, and the job of its group that goes before it.
CREATE FUNCTION waits_shown(ns_ int, seq_ bigint) RETURNS TABLE (parents text[], head text)
LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off AS $$
DECLARE
    job jobs;
BEGIN
    SELECT j.* INTO job FROM jobs j WHERE j.ns = ns_ AND j.seq = seq_;
    parents := ARRAY(SELECT e.parent FROM edges e WHERE e.child = seq_);
    IF job.grp IS NOT NULL THEN
        SELECT j.id INTO head FROM jobs j
        WHERE j.queue = job.queue AND j.grp = job.grp AND j.state < 2
        ORDER BY j.state DESC, j.seq LIMIT 1;
        IF head = job.id THEN
            head := NULL;
        END IF;
    END IF;
    RETURN NEXT;
END $$;
