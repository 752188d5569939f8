-- Completing jobs, and notifying children of the end of their parents.

-- Completes plain jobs under their tokens, leased or waiting. Returns the ids of those that are
-- done under their token, now or since an earlier call; NULL if all were completed just now. If the
-- first is NULL, others are left to `complete_flow`, which needs their flow locks. A row that
-- another call changed since the statement began is skipped, and found by the next round, whose
-- snapshot sees that change. Token and state of `j` are compared as well: older servers do not skip
-- such a row, but write to it if the conditions on `j` still hold.
CREATE OR REPLACE FUNCTION complete(
    ns_ int, given bigint, ids text[], tokens_ bigint[], results bytea[]
) RETURNS text[] LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off AS $$
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
    END LOOP;
    RAISE serialization_failure USING MESSAGE = 'the jobs are being changed too fast';
END $$;

-- Completes leases that need no exclusive flow lock: those of a lane without a group, and with
-- `grouped` those of a group without a lane, whose next job is exposed. Other calls may end leases
-- of such queues at the same time: no group has more than one. `done` as in `complete`; `is_left`
-- means that some are left to `complete_flow`.
CREATE FUNCTION complete_light(
    ns_ int, given bigint, names text[], grouped boolean, ids text[], tokens_ bigint[],
    results bytea[], OUT done text[], OUT endings_ bigint[], OUT had_flow boolean,
    OUT is_left boolean
) LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off AS $$
DECLARE
    now_ bigint;
    free int[] := '{}';
    count_ int;
    lanes_ int[];
    queues_ int[];
    tenants_ text[];
    leased_ats bigint[];
    grp_queues int[];
    grps text[];
    parents text[];
BEGIN
    IF grouped THEN
        free := share_flow(ns_, names);
    END IF;
    now_ := now_ms(given);
    WITH ended AS (
        UPDATE jobs j SET
            state = 2, holds = 0, finished_at = now_, deadline_at = NULL,
            version = j.version + 1, result = u.result
        FROM unnest(ids, tokens_, results) AS u(id, token, result)
        CROSS JOIN LATERAL (
            SELECT c.ctid, c.lane, c.flow FROM jobs c
            WHERE c.id = u.id AND c.ns + 0 = ns_ AND c.token = u.token AND c.state + 0 = 1
              AND (c.grp IS NULL OR (c.lane IS NULL AND c.queue = ANY (free)))
            OFFSET 0
        ) x
        WHERE j.ctid = x.ctid AND j.token = u.token AND j.state + 0 = 1
        RETURNING j.id, j.queue, x.lane, x.flow, j.tenant, j.leased_at, j.grp
    )
    SELECT count(*), bool_or(e.flow <> 0), array_agg(e.lane) FILTER (WHERE e.flow & 33 <> 0),
           array_agg(e.queue) FILTER (WHERE e.flow & 33 <> 0),
           array_agg(e.tenant) FILTER (WHERE e.flow & 33 <> 0),
           array_agg(e.leased_at) FILTER (WHERE e.flow & 33 <> 0),
           array_agg(e.queue) FILTER (WHERE e.grp IS NOT NULL),
           array_agg(e.grp) FILTER (WHERE e.grp IS NOT NULL),
           array_agg(e.id) FILTER (WHERE e.flow & 8 <> 0)
    INTO count_, had_flow, lanes_, queues_, tenants_, leased_ats, grp_queues, grps, parents
    FROM ended e;
    IF queues_ IS NOT NULL THEN
        PERFORM vacate(now_, lanes_, queues_, tenants_, leased_ats);
    END IF;
    is_left := grps IS NOT NULL;
    WHILE is_left LOOP
        -- A job that just became a parent is skipped, and found at its new version next time.
        WITH next_ AS MATERIALIZED (
            SELECT x.ctid AS place FROM unnest(grp_queues, grps) AS u(queue, grp)
            CROSS JOIN LATERAL (
                SELECT y.ctid, y.flow FROM jobs y
                WHERE y.queue = u.queue AND y.grp = u.grp AND y.state = 0 ORDER BY y.seq LIMIT 1
            ) x
            WHERE (x.flow & 16) <> 0 AND NOT EXISTS (
                SELECT FROM jobs y WHERE y.queue = u.queue AND y.grp = u.grp AND y.state = 1
            )
        ), exposed AS (
            UPDATE jobs j SET flow = j.flow & ~16, holds = j.holds - 1
            FROM next_ n WHERE j.ctid = n.place RETURNING j.seq
        )
        SELECT count(*) < (SELECT count(*) FROM next_) INTO is_left FROM exposed;
    END LOOP;
    IF parents IS NOT NULL THEN
        WITH told AS (
            INSERT INTO endings (ns, state, parent)
            SELECT ns_, 2, u.id FROM unnest(parents) WITH ORDINALITY AS u(id, o) ORDER BY u.o
            RETURNING number
        )
        SELECT array_agg(t.number ORDER BY t.number) INTO endings_ FROM told t;
    END IF;
    IF queues_ IS NOT NULL OR grps IS NOT NULL THEN
        PERFORM wake(ns_);
    END IF;
    is_left := false;
    IF count_ < cardinality(ids) THEN
        SELECT array_agg(x.id) FILTER (WHERE x.state = 2), coalesce(bool_or(x.state < 2), false)
        INTO done, is_left
        FROM unnest(ids, tokens_) AS u(id, token)
        CROSS JOIN LATERAL (
            SELECT c.id, c.state FROM jobs c
            WHERE c.id = u.id AND c.ns + 0 = ns_ AND c.token = u.token AND c.state + 0 <= 2
            OFFSET 0
        ) x;
        done := coalesce(done, '{}');
    END IF;
END $$;

-- The named queues that have no lanes and get none before the transaction ends: their domains are
-- locked in shared mode.
CREATE FUNCTION share_flow(ns_ int, names text[]) RETURNS int[] LANGUAGE plpgsql AS $$
DECLARE
    found_ int[] := ARRAY(
        SELECT DISTINCT f.domain FROM queues q JOIN flows f ON f.queue = q.number
        WHERE q.ns = ns_ AND q.name = ANY (names) AND NOT q.laned ORDER BY 1
    );
BEGIN
    PERFORM pg_advisory_xact_lock_shared(domain_key(w.domain)) FROM unnest(found_) AS w(domain);
    RETURN ARRAY(
        SELECT q.number FROM queues q JOIN flows f ON f.queue = q.number
        WHERE q.ns = ns_ AND q.name = ANY (names) AND NOT q.laned AND f.domain = ANY (found_)
    );
END $$;

-- Completes jobs of every kind, with their flow locks held; also returns the endings to notify
-- children of. The jobs should be in the named queues; without names the queues are looked up.
-- `had_flow`: the locks were needed.
CREATE FUNCTION complete_flow(
    ns_ int, given bigint, names text[], ids text[], tokens_ bigint[], results bytea[],
    OUT done text[], OUT endings_ bigint[], OUT had_flow boolean
) LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off AS $$
DECLARE
    now_ bigint;
    queues_ int[];
    was flowing[];
    places tid[];
    answers bytea[];
BEGIN
    IF names IS NULL THEN
        queues_ := ARRAY(
            SELECT DISTINCT x.queue FROM unnest(ids) AS u(id)
            CROSS JOIN LATERAL (
                SELECT c.queue FROM jobs c WHERE c.id = u.id AND c.ns + 0 = ns_ OFFSET 0
            ) x
        );
    ELSE
        queues_ := ARRAY(
            SELECT q.number FROM queues q WHERE q.ns = ns_ AND q.name = ANY (names)
        );
    END IF;
    PERFORM lock_flow(queues_);
    SELECT array_agg(x.tid_), array_agg(results[u.o]),
           array_agg(ROW(x.seq, x.queue, x.lane, x.state, x.rank, x.flow, x.leased_at, x.id,
                         x.tenant, x.grp)::flowing)
    INTO places, answers, was
    FROM unnest(ids, tokens_) WITH ORDINALITY AS u(id, token, o)
    CROSS JOIN LATERAL (
        SELECT c.ctid AS tid_, c.* FROM jobs c
        WHERE c.id = u.id AND c.ns + 0 = ns_ AND c.token = u.token AND c.state + 0 < 2
        FOR NO KEY UPDATE
    ) x;
    now_ := now_ms(given);
    IF places IS NOT NULL THEN
        IF EXISTS (SELECT FROM unnest(was) AS w WHERE w.queue <> ALL (queues_)) THEN
            done := ARRAY[NULL];
            RETURN;
        END IF;
        UPDATE jobs j SET
            state = 2, holds = 0, finished_at = now_, deadline_at = NULL,
            version = j.version + 1, result = u.result
        FROM unnest(places, answers) AS u(place, result)
        WHERE j.ctid = u.place;
        had_flow := EXISTS (SELECT FROM unnest(was) AS w WHERE w.flow <> 0);
        endings_ := reflow(ns_, now_, was, '{}', 2::smallint);
        PERFORM wake(ns_);
    END IF;
    IF coalesce(cardinality(places), 0) < cardinality(ids) THEN
        done := ARRAY(
            SELECT u.id FROM unnest(ids, tokens_) AS u(id, token)
            CROSS JOIN LATERAL (
                SELECT FROM jobs c
                WHERE c.id = u.id AND c.ns + 0 = ns_ AND c.token = u.token AND c.state + 0 = 2
                OFFSET 0
            ) x
        );
    END IF;
END $$;

-- Notifies children of the ends of their parents, which are given by ascending numbers; at most
-- `most` edges at a time. Returns the children whose condition can never be met, with the parent
-- and its state; `left_` means that there is more to do. Children that need not wait any longer are
-- released.
CREATE FUNCTION release(ns_ int, given bigint, numbers_ bigint[], most int)
RETURNS TABLE (child_ bigint, parent_ text, state_ smallint, left_ boolean) LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off AS $$
DECLARE
    now_ bigint;
    told tid[];
    parents text[];
    states smallint[];
    tids tid[];
    seqs bigint[];
    refs int[];
    queues_ int[];
    homes int[];
    lanes_ int[];
    ranks smallint[];
    lost bigint[];
BEGIN
    SELECT array_agg(e.ctid), array_agg(e.parent), array_agg(e.state) INTO told, parents, states
    FROM (
        SELECT x.ctid, x.parent, x.state FROM endings x
        WHERE x.number BETWEEN numbers_[1] AND numbers_[cardinality(numbers_)]
          AND x.number + 0 = ANY (numbers_) AND x.ns = ns_
        ORDER BY x.number FOR UPDATE SKIP LOCKED
    ) e;
    SELECT array_agg(f.tid_), array_agg(f.child), array_agg(f.o) INTO tids, seqs, refs
    FROM (
        SELECT x.tid_, x.child, w.o::int AS o
        FROM unnest(parents, states) WITH ORDINALITY AS w(parent, state, o)
        CROSS JOIN LATERAL (
            SELECT y.ctid AS tid_, y.child FROM edges y
            WHERE y.parent = w.parent AND y.ns = ns_
              AND CASE w.state WHEN 2 THEN y.on_done ELSE y.on_death END < 2
            ORDER BY y.child LIMIT most
        ) x
        LIMIT most
    ) f;
    left_ := coalesce(cardinality(seqs), 0) >= most;
    IF NOT left_ THEN
        DELETE FROM endings e WHERE e.ctid = ANY (told);
    END IF;
    IF seqs IS NULL THEN
        RETURN;
    END IF;
    SELECT array_agg(DISTINCT j.queue) INTO queues_
    FROM (SELECT DISTINCT u.seq FROM unnest(seqs) AS u(seq)) w
    CROSS JOIN LATERAL (SELECT y.queue FROM jobs y WHERE y.ns = ns_ AND y.seq = w.seq OFFSET 0) j;
    PERFORM lock_flow(queues_);
    -- All are locked first and checked then: a condition here would choose which rows to lock.
    SELECT array_agg(j.queue) INTO homes
    FROM (SELECT DISTINCT u.seq FROM unnest(seqs) AS u(seq) ORDER BY 1) w
    CROSS JOIN LATERAL (
        SELECT y.queue FROM jobs y WHERE y.ns = ns_ AND y.seq = w.seq FOR NO KEY UPDATE
    ) j;
    IF NOT homes <@ queues_ THEN
        RAISE serialization_failure USING MESSAGE = 'a child went to another queue meanwhile';
    END IF;
    now_ := now_ms(given);
    -- Endings that another call handled first are not notified twice.
    WITH closed AS (
        DELETE FROM edges x USING unnest(tids, refs) AS w(tid_, ref)
        WHERE x.ctid = w.tid_ RETURNING x.child, x.on_done, x.on_death, w.ref
    )
    SELECT array_agg(c.child), array_agg(c.ref) FILTER (
               WHERE CASE states[c.ref] WHEN 2 THEN c.on_done ELSE c.on_death END = 1),
           array_agg(c.child) FILTER (
               WHERE CASE states[c.ref] WHEN 2 THEN c.on_done ELSE c.on_death END = 1)
    INTO seqs, refs, lost
    FROM closed c;
    WITH freed AS (
        UPDATE jobs j SET holds = j.holds - n.count_
        FROM (
            SELECT w.seq, count(*)::int AS count_ FROM unnest(seqs) AS w(seq) GROUP BY w.seq
        ) n
        CROSS JOIN LATERAL (
            SELECT y.ctid FROM jobs y WHERE y.ns = ns_ AND y.seq = n.seq AND y.state = 0 OFFSET 0
        ) y
        WHERE j.ctid = y.ctid
        RETURNING j.holds, j.lane, j.rank, j.queue, j.seq
    )
    SELECT array_agg(f.lane), array_agg(f.rank), array_agg(f.queue), array_agg(f.seq)
    INTO lanes_, ranks, queues_, seqs
    FROM freed f WHERE f.holds = 0;
    IF lanes_ IS NOT NULL THEN
        PERFORM note_strays(queues_, seqs);
        PERFORM refresh(now_, lanes_, ranks);
    END IF;
    PERFORM wake(ns_);
    FOR child_, parent_, state_ IN
        SELECT DISTINCT ON (w.seq) w.seq, parents[w.ref], states[w.ref]
        FROM unnest(lost, refs) AS w(seq, ref)
        CROSS JOIN LATERAL (
            SELECT FROM jobs y WHERE y.ns = ns_ AND y.seq = w.seq AND y.state = 0 OFFSET 0
        ) y
        ORDER BY w.seq, w.ref
    LOOP
        RETURN NEXT;
    END LOOP;
    IF left_ THEN
        child_ := NULL;
        RETURN NEXT;
    END IF;
END $$;

-- A lost child no longer waits for any parent.
CREATE FUNCTION close_edges(seqs bigint[]) RETURNS void LANGUAGE sql
SET search_path FROM CURRENT AS $$
    DELETE FROM edges WHERE child = ANY (seqs)
$$;

-- Adds the edges of new jobs, and marks their parents as having children.
CREATE FUNCTION link(
    ns_ int, seqs bigint[], on_dones smallint[], on_deaths smallint[], parents text[]
) RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off AS $$
BEGIN
    INSERT INTO edges (child, ns, on_done, on_death, parent)
    SELECT u.seq, ns_, u.on_done, u.on_death, u.parent
    FROM unnest(seqs, on_dones, on_deaths, parents) AS u(seq, on_done, on_death, parent);
    UPDATE jobs j SET flow = j.flow | 8
    FROM (SELECT DISTINCT u.parent FROM unnest(parents) AS u(parent)) p
    CROSS JOIN LATERAL (
        SELECT c.ctid FROM jobs c WHERE c.id = p.parent AND c.ns + 0 = ns_ AND (c.flow & 8) = 0
        OFFSET 0
    ) x
    WHERE j.ctid = x.ctid;
END $$;

-- Locks jobs that others will wait for, in the order of seq, and returns their states.
CREATE FUNCTION hold_parents(ns_ int, ids text[]) RETURNS TABLE (id_ text, state_ smallint)
LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off AS $$
BEGIN
    RETURN QUERY
    SELECT j.id, j.state
    FROM (
        SELECT DISTINCT x.seq FROM unnest(ids) AS w(id)
        CROSS JOIN LATERAL (
            SELECT c.seq FROM jobs c WHERE c.id = w.id AND c.ns + 0 = ns_ OFFSET 0
        ) x
        ORDER BY x.seq
    ) s
    CROSS JOIN LATERAL (
        SELECT c.id, c.state, c.queue FROM jobs c WHERE c.ns = ns_ AND c.seq = s.seq
        FOR NO KEY UPDATE
    ) j
    CROSS JOIN LATERAL (
        SELECT FROM queues q WHERE q.number = j.queue AND q.name IS NOT NULL OFFSET 0
    ) q;
END $$;
