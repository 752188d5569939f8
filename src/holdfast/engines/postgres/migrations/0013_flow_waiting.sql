-- Leasing named jobs, holding expired ones, and when to look again.

-- Leases those of the named jobs that are due; a single row without an id means that some have
-- lanes: call `lease_ids_flow`.
CREATE OR REPLACE FUNCTION lease_ids(
    ns_ int, given bigint, ids text[], most int, worker_ text, span bigint, tasks text[]
) RETURNS SETOF held LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off AS $$
DECLARE
    now_ bigint := now_ms(given);
    sign held;
BEGIN
    PERFORM FROM unnest(ids) AS w(id)
    CROSS JOIN LATERAL (
        SELECT FROM jobs c
        WHERE c.id = w.id AND c.ns + 0 = ns_ AND c.state + 0 = 0 AND c.holds = 0
          AND c.lane IS NOT NULL
        OFFSET 0
    ) x;
    IF FOUND THEN
        sign.seq := -1;
        RETURN NEXT sign;
        RETURN;
    END IF;
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
              AND c.due_at <= now_ AND c.lane IS NULL
              AND (c.expires_at IS NULL OR c.expires_at > now_)
              AND (tasks IS NULL OR c.task = ANY (tasks))
              AND EXISTS (
                SELECT FROM queues p
                WHERE p.number = c.queue AND p.name IS NOT NULL AND NOT p.paused AND NOT p.laned
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

-- The same with the flow locks of their queues, one after the other in the given order.
CREATE FUNCTION lease_ids_flow(
    ns_ int, given bigint, ids text[], most int, worker_ text, span bigint, tasks text[]
) RETURNS SETOF held LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    numbers int[] := ARRAY(
        SELECT DISTINCT x.queue FROM unnest(ids) AS w(id)
        CROSS JOIN LATERAL (
            SELECT c.queue FROM jobs c WHERE c.id = w.id AND c.ns + 0 = ns_ OFFSET 0
        ) x
    );
    now_ bigint;
    now_us bigint;
    need int := most;
    id_ text;
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
    FOREACH id_ IN ARRAY ids LOOP
        EXIT WHEN need <= 0;
        SELECT c.ctid AS place, c.queue, c.lane, c.rank INTO job FROM jobs c
        WHERE c.id = id_ AND c.ns + 0 = ns_ AND c.state + 0 = 0 AND c.holds = 0
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
        RETURN QUERY
        SELECT j.id, j.seq, j.place, line.name, j.task, j.payload, j.extra, j.rank, j.version,
               j.attempt, j.crashes, j.releases, j.created_at, j.due_at, j.expires_at, j.leased_at,
               j.deadline_at, j.token, j.worker, j.cancel, j.reason, j.key, j.tenant, j.grp,
               j.origin,
               CASE WHEN j.noted THEN (SELECT n.progress FROM notes n WHERE n.job = j.seq) END,
               CASE WHEN j.noted THEN (SELECT n.checkpoint FROM notes n WHERE n.job = j.seq) END
        FROM jobs j WHERE j.ctid = job.place;
        need := need - 1;
        PERFORM occupy(line.number, now_us, slots_, array_fill(1, ARRAY[cardinality(slots_)]))
        WHERE cardinality(slots_) > 0;
        PERFORM refresh(now_, ARRAY[job.lane], ARRAY[job.rank]);
    END LOOP;
END $$;

-- Holds expired jobs, so that only the reaper finds them; true if there may be more.
CREATE OR REPLACE FUNCTION set_aside(queue_ int, now_ bigint) RETURNS boolean LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    count_ int;
    lanes_ int[];
    ranks smallint[];
BEGIN
    FOR _ IN 1..5 LOOP
        WITH aside AS (
            UPDATE jobs j SET holds = j.holds + 1000000
            WHERE j.ctid = ANY (ARRAY(
                SELECT c.ctid FROM jobs c
                WHERE c.queue = queue_ AND c.state = 0 AND c.holds = 0 AND c.expires_at <= now_
                ORDER BY c.expires_at LIMIT 1000 FOR NO KEY UPDATE SKIP LOCKED
            ))
            RETURNING j.lane, j.rank
        )
        SELECT count(*), array_agg(a.lane) FILTER (WHERE a.lane IS NOT NULL),
               array_agg(a.rank) FILTER (WHERE a.lane IS NOT NULL)
        INTO count_, lanes_, ranks FROM aside a;
        IF lanes_ IS NOT NULL THEN
            PERFORM refresh(now_, lanes_, ranks);
        END IF;
        IF count_ < 1000 THEN
            RETURN false;
        END IF;
    END LOOP;
    RETURN true;
END $$;

-- The time to the next job that waits only for its due time or for a rate; 0 if there is one that
-- did so at `seen_at`, an instant before the caller looked, and may have been missed. A caller that
-- listens is registered as waiting; `fresh` means that none was registered before, so that an
-- enqueue may just have been missed.
DROP FUNCTION linger;
CREATE FUNCTION linger(
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
        WHERE j.id = ANY (ids) AND j.ns + 0 = ns_ AND j.state + 0 = 0 AND j.due_at > since;
        soonest := least(soonest, due);
    END IF;
    next_ms := CASE WHEN soonest IS NOT NULL THEN greatest(0, soonest - now_) END;
END $$;

-- When the first of the due jobs that waited for a rate at `since_us` may start; checks a bounded
-- number of lanes.
CREATE FUNCTION next_start(queue_ int, now_ bigint, now_us bigint, since_us bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
BEGIN
    RETURN (
        SELECT min(now_ + x.wait_ms) FROM (
            SELECT max(greatest(0, ceil((least(s.free_us - now_us, b.burst * b.apart_us)
                       - (b.burst - 1) * b.apart_us) / 1000.0)))::bigint AS wait_ms,
                   max(s.free_us - since_us - (b.burst - 1) * b.apart_us) AS waited_us
            FROM (
                SELECT h.lane FROM heads h
                WHERE h.queue = queue_ AND h.due_at <= now_ AND EXISTS (
                    SELECT FROM jobs j
                    WHERE j.lane = h.lane AND j.state = 0 AND j.holds = 0 AND j.rank = h.rank
                )
                LIMIT 1000
            ) h
            CROSS JOIN LATERAL (SELECT l.slots FROM lanes l WHERE l.number = h.lane OFFSET 0) l
            CROSS JOIN LATERAL unnest(l.slots) AS w(slot)
            CROSS JOIN LATERAL (SELECT * FROM slots y WHERE y.number = w.slot OFFSET 0) s
            CROSS JOIN LATERAL (
                SELECT * FROM bounds y WHERE y.queue = queue_ AND y.name = s.name OFFSET 0
            ) b
            GROUP BY h.lane
            HAVING bool_and(b.concurrency IS NULL OR s.used < b.concurrency)
        ) x WHERE x.waited_us > 0
    );
END $$;
