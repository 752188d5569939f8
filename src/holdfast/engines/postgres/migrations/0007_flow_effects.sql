-- Effects of a change of a job on its group, its lane, its slots and its children. Functions
-- without settings of their own are called by others that have them.

-- The instant for rates: the one that a test passes, or the server's own.
CREATE FUNCTION micros(given bigint) RETURNS bigint LANGUAGE sql AS $$
    SELECT coalesce(given * 1000, floor(extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
$$;

-- Locks the domains of these queues, always in the same order.
CREATE FUNCTION lock_flow(numbers int[]) RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
    found_ int[] := ARRAY(SELECT DISTINCT f.domain FROM flows f WHERE f.queue = ANY (numbers));
BEGIN
    IF cardinality(found_) < cardinality(numbers) THEN
        INSERT INTO flows (queue, domain)
        SELECT w.number, nextval('domains') FROM (
            SELECT DISTINCT u.number FROM unnest(numbers) AS u(number)
            WHERE NOT EXISTS (SELECT FROM flows f WHERE f.queue = u.number) ORDER BY 1
        ) w
        ON CONFLICT (queue) DO NOTHING;
        found_ := ARRAY(SELECT DISTINCT f.domain FROM flows f WHERE f.queue = ANY (numbers));
    END IF;
    IF NOT numbers <@ lock_domains(found_) THEN
        RAISE serialization_failure USING MESSAGE = 'a queue came to share a limit meanwhile';
    END IF;
END $$;

-- The queues of these domains, which are locked. The lock is not a row: it passes on without a
-- write, and no call has to read it again.
CREATE FUNCTION lock_domains(numbers int[]) RETURNS int[] LANGUAGE plpgsql AS $$
DECLARE
    queues_ int[];
BEGIN
    PERFORM pg_advisory_xact_lock(domain_key(w.domain))
    FROM (SELECT DISTINCT u.domain FROM unnest(numbers) AS u(domain) ORDER BY 1) w;
    queues_ := ARRAY(SELECT f.queue FROM flows f WHERE f.domain = ANY (numbers));
    PERFORM FROM freed f WHERE f.queue = ANY (queues_) LIMIT 1;
    IF FOUND THEN
        PERFORM count_in(queues_);
    END IF;
    RETURN queues_;
END $$;
CREATE FUNCTION domain_key(number int) RETURNS bigint LANGUAGE sql AS $$
    SELECT hashtextextended('holdfast flow ' || current_schema(), number)
$$;

-- Queues by name. They keep or lack lanes until the caller's transaction ends.
CREATE FUNCTION lines(ns_ int, names text[])
RETURNS TABLE (name text, number int, settings bytea, laned boolean) LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(ns_, hashtext(w.name)) FROM unnest(names) AS w(name);
    RETURN QUERY
    SELECT q.name, q.number, q.settings, q.laned FROM queues q
    WHERE q.ns = ns_ AND q.name = ANY (names);
END $$;

-- The columns of a job that flow control needs.
CREATE TYPE flowing AS (
    seq bigint, queue int, lane int, state smallint, rank smallint, flow smallint,
    leased_at bigint, id text, tenant text, grp text
);

-- Applies all effects of the change of jobs from `was` to `now_is`; returns the numbers of the
-- endings of which children must be notified. Without `now_is` all have ended, in the state
-- `ended`.
CREATE FUNCTION reflow(
    ns_ int, now_ bigint, was flowing[], now_is flowing[], ended smallint
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    endings_ bigint[];
    lanes_ int[];
    queues_ int[];
    tenants_ text[];
    leased_ats bigint[];
    grps text[];
    ranks smallint[];
BEGIN
    SELECT array_agg(w.lane), array_agg(w.queue), array_agg(w.tenant), array_agg(w.leased_at)
    INTO lanes_, queues_, tenants_, leased_ats
    FROM unnest(was) WITH ORDINALITY AS w
    WHERE w.state = 1 AND coalesce((now_is[w.ordinality::int]).state, ended, 9) <> 1;
    IF queues_ IS NOT NULL THEN
        PERFORM vacate(now_, lanes_, queues_, tenants_, leased_ats);
    END IF;
    WITH told AS (
        INSERT INTO endings (ns, state, parent)
        SELECT ns_, coalesce((now_is[w.ordinality::int]).state, ended), w.id
        FROM unnest(was) WITH ORDINALITY AS w
        WHERE (w.flow & 8) <> 0 AND w.state < 2
          AND coalesce((now_is[w.ordinality::int]).state, ended, 9) >= 2
        ORDER BY w.ordinality
        RETURNING number
    )
    SELECT array_agg(t.number ORDER BY t.number) INTO endings_ FROM told t;
    SELECT array_agg(g.queue), array_agg(g.grp) INTO queues_, grps FROM (
        SELECT w.queue, w.grp FROM unnest(was) AS w WHERE w.grp IS NOT NULL AND w.state < 2
        UNION
        SELECT n.queue, n.grp FROM unnest(now_is) AS n WHERE n.grp IS NOT NULL AND n.state < 2
    ) g;
    IF queues_ IS NOT NULL THEN
        PERFORM regroup(now_, queues_, grps);
    END IF;
    SELECT array_agg(r.lane), array_agg(r.rank) INTO lanes_, ranks FROM (
        SELECT w.lane, w.rank FROM unnest(was) AS w WHERE w.lane IS NOT NULL AND w.state = 0
        UNION
        SELECT n.lane, n.rank FROM unnest(now_is) AS n WHERE n.lane IS NOT NULL AND n.state = 0
    ) r;
    IF lanes_ IS NOT NULL THEN
        PERFORM refresh(now_, lanes_, ranks);
    END IF;
    RETURN endings_;
END $$;

-- Records the slots that leases held and how long they took.
CREATE FUNCTION vacate(
    now_ bigint, lanes_ int[], queues_ int[], tenants_ text[], leased_ats bigint[]
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    line record;
    own int[];
    counts int[];
    slots_ int[];
    names text[];
    spans bigint[];
BEGIN
    FOR line IN
        SELECT q.number, q.fairness
        FROM (SELECT DISTINCT u.queue FROM unnest(queues_) AS u(queue)) w
        CROSS JOIN LATERAL (SELECT * FROM queues x WHERE x.number = w.queue OFFSET 0) q
    LOOP
        SELECT array_agg(d.lane), array_agg(d.count_) INTO own, counts FROM (
            SELECT u.lane, count(*)::int AS count_ FROM unnest(lanes_, queues_) AS u(lane, queue)
            WHERE u.queue = line.number AND u.lane IS NOT NULL GROUP BY u.lane
        ) d;
        SELECT array_agg(d.slot), array_agg(d.count_) INTO slots_, counts FROM (
            SELECT x.slot, sum(counts[w.o])::int AS count_
            FROM (
                SELECT array_position(own, l.number) AS o, l.slots FROM lanes l
                WHERE l.number = ANY (own)
            ) w
            CROSS JOIN LATERAL unnest(w.slots) AS x(slot)
            GROUP BY x.slot
        ) d;
        names := NULL;
        IF line.fairness <> 0 THEN
            SELECT array_agg(d.tenant), array_agg(d.took_ms) INTO names, spans FROM (
                SELECT coalesce(u.tenant, '') AS tenant,
                       sum(greatest(0, now_ - u.leased_at))::bigint AS took_ms
                FROM unnest(queues_, tenants_, leased_ats) AS u(queue, tenant, leased_at)
                WHERE u.queue = line.number GROUP BY 1
            ) d;
        END IF;
        IF slots_ IS NOT NULL OR names IS NOT NULL THEN
            INSERT INTO freed (at, queue, slots, counts, tenants, took_ms)
            VALUES (now_, line.number, slots_, counts, names, spans);
        END IF;
    END LOOP;
END $$;

-- Applies what ended leases of these queues freed; these are all queues of their domains.
CREATE FUNCTION count_in(queues_ int[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    all_ freed[];
    one freed;
    slots_ int[];
    counts int[];
BEGIN
    WITH gone AS (DELETE FROM freed f WHERE f.queue = ANY (queues_) RETURNING f AS row_)
    SELECT array_agg(g.row_ ORDER BY (g.row_).number) INTO all_ FROM gone g;
    SELECT array_agg(w.slot), array_agg(w.count_) INTO slots_, counts FROM (
        SELECT x.slot, sum(x.count_)::int AS count_
        FROM unnest(all_) AS f CROSS JOIN LATERAL unnest(f.slots, f.counts) AS x(slot, count_)
        GROUP BY x.slot
    ) w;
    IF slots_ IS NOT NULL THEN
        UPDATE slots s SET used = s.used - counts[array_position(slots_, s.number)]
        WHERE s.number = ANY (slots_);
        PERFORM FROM parks p WHERE p.queue = ANY (queues_) LIMIT 1;
        IF FOUND THEN
            UPDATE parks p SET wake_us = 0
            WHERE p.queue = ANY (queues_) AND p.slot = ANY (slots_)
              AND p.wake_us IS DISTINCT FROM 0;
        END IF;
    END IF;
    FOREACH one IN ARRAY all_ LOOP
        CONTINUE WHEN one.tenants IS NULL;
        INSERT INTO tenants AS t (queue, tenant, busy_ms, busy_at)
        SELECT one.queue, u.tenant, u.took_ms, one.at
        FROM unnest(one.tenants, one.took_ms) AS u(tenant, took_ms)
        WHERE EXISTS (SELECT FROM queues q WHERE q.number = one.queue AND q.name IS NOT NULL)
        ON CONFLICT (queue, tenant) DO UPDATE SET
            busy_ms = decayed(t.busy_ms, one.at - t.busy_at) + excluded.busy_ms,
            busy_at = one.at;
    END LOOP;
END $$;

-- Exposes the first waiting job of each of these groups, if none is leased, and no other.
CREATE FUNCTION regroup(now_ bigint, queues_ int[], grps text[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    back tid[];
    forth tid[];
    lanes_ int[];
    ranks smallint[];
    more_lanes int[];
    more_ranks smallint[];
    homes int[];
    more_homes int[];
    seqs bigint[];
    more_seqs bigint[];
BEGIN
    SELECT array_agg(s.shown) FILTER (WHERE s.shown IS NOT NULL),
           array_agg(s.best) FILTER (WHERE s.best IS NOT NULL)
    INTO back, forth
    FROM (
        SELECT CASE WHEN NOT EXISTS (
                   SELECT FROM jobs j WHERE j.queue = p.queue AND j.grp = p.grp AND j.state = 1
               ) THEN (
                   SELECT j.ctid FROM jobs j
                   WHERE j.queue = p.queue AND j.grp = p.grp AND j.state = 0
                   ORDER BY j.seq LIMIT 1
               ) END AS best,
               (SELECT j.ctid FROM jobs j
                WHERE j.queue = p.queue AND j.grp = p.grp AND j.state = 0 AND (j.flow & 16) = 0
               ) AS shown
        FROM (SELECT DISTINCT u.queue, u.grp FROM unnest(queues_, grps) AS u(queue, grp)
              WHERE u.grp IS NOT NULL) p
        OFFSET 0
    ) s
    WHERE s.shown IS DISTINCT FROM s.best;
    IF back IS NOT NULL THEN
        WITH held_ AS (
            SELECT j.ctid FROM jobs j WHERE j.ctid = ANY (back) AND j.state = 0
            FOR NO KEY UPDATE SKIP LOCKED
        ), set_back AS (
            UPDATE jobs j SET flow = j.flow | 16, holds = j.holds + 1
            WHERE j.ctid = ANY (ARRAY(SELECT h.ctid FROM held_ h))
            RETURNING j.lane, j.rank, j.queue, j.seq
        )
        SELECT array_agg(s.lane), array_agg(s.rank), array_agg(s.queue), array_agg(s.seq)
        INTO lanes_, ranks, homes, seqs FROM set_back s;
        -- Another call is about to lease it: it stays exposed, and the caller must decide again.
        IF coalesce(cardinality(lanes_), 0) < cardinality(back) THEN
            RAISE serialization_failure USING MESSAGE = 'the head of a group is being leased';
        END IF;
    END IF;
    IF forth IS NOT NULL THEN
        WITH exposed AS (
            UPDATE jobs j SET flow = j.flow & ~16, holds = j.holds - 1
            WHERE j.ctid = ANY (forth) RETURNING j.lane, j.rank, j.queue, j.seq
        )
        SELECT array_agg(e.lane), array_agg(e.rank), array_agg(e.queue), array_agg(e.seq)
        INTO more_lanes, more_ranks, more_homes, more_seqs FROM exposed e;
    END IF;
    IF back IS NOT NULL OR forth IS NOT NULL THEN
        PERFORM note_strays(homes || more_homes, seqs || more_seqs);
        PERFORM refresh(now_, lanes_ || more_lanes, ranks || more_ranks);
    END IF;
    -- A job that just became a parent was skipped: it is found at its new version.
    IF coalesce(cardinality(more_seqs), 0) < cardinality(forth) THEN
        PERFORM regroup(now_, queues_, grps);
    END IF;
END $$;

-- Jobs, each with the position of its queue, that moved from one index of waiting jobs to the
-- other: the call that sorts the queue may have passed them.
CREATE FUNCTION note_strays(queues_ int[], seqs bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO strays (queue, seq)
    SELECT u.queue, u.seq FROM unnest(queues_, seqs) AS u(queue, seq)
    CROSS JOIN LATERAL (SELECT f.sorting FROM flows f WHERE f.queue = u.queue OFFSET 0) f
    WHERE f.sorting;
END $$;

-- Writes the first job of each of these lanes at these priorities.
CREATE FUNCTION refresh(now_ bigint, lanes_ int[], ranks smallint[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    WITH best AS MATERIALIZED (
        SELECT p.lane, p.rank, l.queue, l.tenant, x.due_at, x.place
        FROM (
            SELECT DISTINCT u.lane, u.rank FROM unnest(lanes_, ranks) AS u(lane, rank)
            WHERE u.lane IS NOT NULL
        ) p
        CROSS JOIN LATERAL (
            SELECT y.queue, y.tenant FROM lanes y WHERE y.number = p.lane OFFSET 0
        ) l
        LEFT JOIN LATERAL (
            SELECT j.due_at, j.place FROM jobs j
            WHERE j.lane = p.lane AND j.state = 0 AND j.holds = 0 AND j.rank = p.rank
            ORDER BY j.due_at, j.place LIMIT 1
        ) x ON true
    ), gone AS (
        DELETE FROM heads h USING best b
        WHERE b.place IS NULL AND h.lane = b.lane AND h.rank = b.rank
    )
    INSERT INTO heads AS h (lane, rank, queue, parked, turn, due_at, place, tenant)
    SELECT b.lane, b.rank, b.queue, CASE WHEN b.due_at > now_ THEN 0 END,
           CASE WHEN b.tenant IS NULL THEN 0 ELSE coalesce((
               SELECT t.turn FROM queues q JOIN tenants t ON t.queue = q.number
               WHERE q.number = b.queue AND q.fairness = 1 AND t.tenant = b.tenant
           ), 0) END,
           b.due_at, b.place, b.tenant
    FROM best b WHERE b.place IS NOT NULL
    ON CONFLICT (lane, rank) DO UPDATE SET
        parked = excluded.parked, turn = excluded.turn, due_at = excluded.due_at,
        place = excluded.place
    WHERE (h.due_at, h.place) <> (excluded.due_at, excluded.place)
       OR (h.parked IS NULL AND excluded.parked = 0);
END $$;
