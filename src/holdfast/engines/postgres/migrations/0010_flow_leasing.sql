-- Leasing from queues with lanes, under their flow locks.

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

-- Leases due jobs of the named queues, in their order and in the order in which they are taken. A
-- row without an id: call again; with a seq, the queue of that number must be sorted first.
CREATE FUNCTION lease_flow(
    ns_ int, given bigint, names text[], most int, worker_ text, span bigint, tasks text[]
) RETURNS SETOF held LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off AS $$
DECLARE
    numbers int[] := ARRAY(
        SELECT DISTINCT q.number FROM queues q
        WHERE q.ns = ns_ AND q.name = ANY (names) AND q.laned AND NOT q.paused
    );
    now_ bigint;
    now_us bigint;
    need int := most;
    line queues;
    count_ int;
    taken tid[];
    sign held;
BEGIN
    PERFORM lock_flow(numbers);
    now_ := now_ms(given);
    now_us := micros(given);
    FOR line IN
        SELECT q.*
        FROM unnest(names) WITH ORDINALITY AS w(name, o)
        JOIN queues q ON q.ns = ns_ AND q.name = w.name
        WHERE NOT q.paused
        ORDER BY w.o
    LOOP
        EXIT WHEN need <= 0;
        IF NOT line.laned THEN
            RETURN QUERY
            SELECT l.* FROM lease(ns_, given, ARRAY[line.name], need, worker_, span, tasks) l
            ORDER BY l.rank, l.due_at, l.place;
            GET DIAGNOSTICS count_ = ROW_COUNT;
            need := need - count_;
            CONTINUE;
        END IF;
        IF line.number <> ALL (numbers) THEN
            RAISE serialization_failure USING MESSAGE = 'a queue came to have lanes meanwhile';
        END IF;
        IF EXISTS (SELECT FROM flows f WHERE f.queue = line.number AND f.sorting) THEN
            sign.seq := line.number;
            RETURN NEXT sign;
            RETURN;
        END IF;
        PERFORM FROM jobs j
        WHERE j.queue = line.number AND j.state = 0 AND j.holds = 0 AND j.expires_at <= now_
        ORDER BY j.expires_at LIMIT 1;
        IF FOUND AND set_aside(line.number, now_) THEN
            RETURN NEXT NULL::held;
            RETURN;
        END IF;
        IF line.aging_ms IS NOT NULL OR line.group_batch > 1 THEN
            taken := '{}';
            IF line.fairness = 0 AND line.group_batch = 1 AND tasks IS NULL THEN
                taken := lease_aged(line, now_, now_us, need, worker_, span);
            END IF;
            IF cardinality(taken) < need THEN
                taken := taken || lease_one_by_one(line, now_, now_us, need - cardinality(taken),
                                                   most, worker_, span, tasks);
            END IF;
        ELSIF line.fairness = 1 THEN
            taken := lease_in_turns(line, now_, now_us, need, most, worker_, span, tasks);
        ELSE
            taken := lease_ordered(line, now_, now_us, need, worker_, span, tasks);
        END IF;
        IF taken IS NULL THEN
            IF need = most THEN
                RETURN NEXT NULL::held;
            END IF;
            RETURN;
        END IF;
        RETURN QUERY
        SELECT j.id, j.seq, j.place, line.name, j.task, j.payload, j.extra, j.rank, j.version,
               j.attempt, j.crashes, j.releases, j.created_at, j.due_at, j.expires_at, j.leased_at,
               j.deadline_at, j.token, j.worker, j.cancel, j.reason, j.key, j.tenant, j.grp,
               j.origin,
               CASE WHEN j.noted THEN (SELECT n.progress FROM notes n WHERE n.job = j.seq) END,
               CASE WHEN j.noted THEN (SELECT n.checkpoint FROM notes n WHERE n.job = j.seq) END
        FROM unnest(taken) AS u(tid_)
        CROSS JOIN LATERAL (SELECT * FROM jobs x WHERE x.ctid = u.tid_ OFFSET 0) j;
        need := need - cardinality(taken);
    END LOOP;
END $$;

-- Leases jobs of one queue one after the other, each the best at its time, and returns their
-- positions. Followers of a group go with its head.
CREATE FUNCTION lease_one_by_one(
    line queues, now_ bigint, now_us bigint, need_ int, most int, worker_ text, span bigint,
    tasks text[]
) RETURNS tid[] LANGUAGE plpgsql AS $$
DECLARE
    answer tid[] := '{}';
    need int := need_;
    quantum int := CASE line.fairness WHEN 1 THEN least(4, 1 + most / 25) ELSE 1 END;
    loud_ text[];
    vclock_ bigint;
    level smallint;
    pick record;
    own record;
    follower record;
    taken int;
    batch_left int;
    places tid[];
BEGIN
    IF line.fairness = 2 THEN
        loud_ := loud(line.ns, line.number, now_);
    END IF;
    SELECT f.vclock INTO vclock_ FROM flows f WHERE f.queue = line.number;
    WHILE need > 0 LOOP
        SELECT h.rank INTO level
        FROM heads h CROSS JOIN LATERAL (SELECT * FROM lanes x WHERE x.number = h.lane OFFSET 0) l
        WHERE h.queue = line.number AND h.due_at <= now_ AND (tasks IS NULL OR l.task = ANY (tasks))
          AND room(line.number, l.slots, now_us) > 0
        ORDER BY CASE WHEN line.aging_ms IS NULL THEN h.rank
                      ELSE h.due_at + h.rank * line.aging_ms END, h.rank LIMIT 1;
        EXIT WHEN NOT FOUND;
        SELECT h.lane, h.due_at, h.place, l.slots, l.tenant, l.plain,
               greatest(vclock_ - 100000, coalesce((
                   SELECT t.turn FROM tenants t WHERE t.queue = line.number AND t.tenant = l.tenant
               ), 0)) AS turn
        INTO pick
        FROM heads h CROSS JOIN LATERAL (SELECT * FROM lanes x WHERE x.number = h.lane OFFSET 0) l
        WHERE h.queue = line.number AND h.due_at <= now_ AND h.rank = level
          AND (tasks IS NULL OR l.task = ANY (tasks)) AND room(line.number, l.slots, now_us) > 0
        ORDER BY CASE line.fairness
            WHEN 1 THEN greatest(vclock_ - 100000, coalesce((
                SELECT t.turn FROM tenants t WHERE t.queue = line.number AND t.tenant = l.tenant
            ), 0))
            WHEN 2 THEN (l.tenant = ANY (loud_))::int
            ELSE 0
        END, h.due_at, h.place LIMIT 1;
        taken := 0;
        PERFORM FROM (
            SELECT j.due_at, j.place FROM jobs j
            WHERE j.lane = pick.lane AND j.state = 0 AND j.holds = 0 AND j.rank = level
            ORDER BY j.due_at, j.place LIMIT 1
        ) f WHERE (f.due_at, f.place) = (pick.due_at, pick.place);
        IF NOT FOUND THEN
            PERFORM refresh(now_, ARRAY[pick.lane], ARRAY[level]);
            CONTINUE;
        END IF;
        FOR own IN
            SELECT j.ctid AS place, j.grp FROM jobs j
            WHERE j.lane = pick.lane AND j.state = 0 AND j.holds = 0 AND j.rank = level
              AND j.due_at <= now_
            ORDER BY j.due_at, j.place LIMIT quantum
        LOOP
            EXIT WHEN need - taken <= 0 OR room(line.number, pick.slots, now_us) <= 0;
            places := ARRAY[own.place];
            IF line.group_batch > 1 AND own.grp IS NOT NULL THEN
                batch_left := least(line.group_batch, need - taken,
                                    room(line.number, pick.slots, now_us)) - 1;
                FOR follower IN
                    SELECT j.ctid AS place, j.due_at, j.expires_at, j.holds, j.task, j.lane
                    FROM jobs j
                    WHERE j.queue = line.number AND j.grp = own.grp AND j.state = 0
                      AND (j.flow & 16) <> 0
                    ORDER BY j.seq LIMIT batch_left
                LOOP
                    EXIT WHEN follower.due_at > now_ OR follower.expires_at <= now_
                        OR follower.holds % 1000000 <> 1
                        OR NOT coalesce(follower.task = ANY (tasks), true)
                        OR NOT (follower.lane = pick.lane OR (pick.plain AND (
                            SELECT l.plain FROM lanes l WHERE l.number = follower.lane)));
                    places := places || follower.place;
                END LOOP;
            END IF;
            answer := answer || grant_lease(line, now_, places, worker_, span);
            taken := taken + cardinality(places);
            PERFORM occupy(line.number, now_us, pick.slots,
                           array_fill(cardinality(places), ARRAY[cardinality(pick.slots)]))
            WHERE cardinality(pick.slots) > 0;
        END LOOP;
        need := need - taken;
        PERFORM refresh(now_, ARRAY[pick.lane], ARRAY[level]);
        IF line.fairness = 1 THEN
            vclock_ := greatest(vclock_, pick.turn);
            PERFORM spend_turn(line.number, pick.tenant, pick.turn, taken);
        END IF;
    END LOOP;
    IF line.fairness = 1 THEN
        UPDATE flows f SET vclock = vclock_ WHERE f.queue = line.number AND f.vclock <> vclock_;
    END IF;
    RETURN answer;
END $$;

-- Leases jobs of one queue that may start, and returns their new row positions in the same order.
CREATE FUNCTION grant_lease(
    line queues, now_ bigint, places tid[], worker_ text, span bigint
) RETURNS tid[] LANGUAGE plpgsql AS $$
DECLARE
    answer tid[];
BEGIN
    WITH granted AS (
        UPDATE jobs j SET
            state = 1, attempt = j.attempt + 1, version = j.version + 1, worker = worker_,
            token = nextval('tokens') << 16 | floor(random() * 65536)::bigint,
            leased_at = now_, deadline_at = now_ + coalesce(span, j.lease_ms, line.lease_ms),
            holds = 0, flow = j.flow & ~16
        FROM unnest(places) WITH ORDINALITY AS u(place, o)
        WHERE j.ctid = u.place AND j.state = 0
          -- A job whose row another call held when the expired ones were held.
          AND (j.expires_at IS NULL OR j.expires_at > now_)
        RETURNING j.ctid AS tid_, u.o
    )
    SELECT array_agg(g.tid_ ORDER BY g.o) INTO answer FROM granted g;
    -- A call that makes a job a parent holds no flow lock. Room was taken for the job, so the call
    -- is repeated.
    IF coalesce(cardinality(answer), 0) < cardinality(places) THEN
        RAISE serialization_failure USING MESSAGE = 'a job to be leased was changed meanwhile';
    END IF;
    RETURN answer;
END $$;

-- The number of further jobs for which all of these slots have room now.
CREATE FUNCTION room(queue_ int, slots_ int[], now_us bigint) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
    RETURN (
        SELECT coalesce(min(least(
            coalesce(b.concurrency - s.used, 2147483647),
            CASE WHEN b.apart_us IS NULL THEN 2147483647 ELSE greatest(0,
                b.burst * b.apart_us
                - greatest(0, least(s.free_us - now_us, b.burst * b.apart_us))
            ) / b.apart_us END
        )), 2147483647)
        FROM unnest(slots_) AS w(slot)
        CROSS JOIN LATERAL (SELECT * FROM slots x WHERE x.number = w.slot OFFSET 0) s
        CROSS JOIN LATERAL (
            SELECT * FROM bounds x WHERE x.queue = queue_ AND x.name = s.name OFFSET 0
        ) b
    );
END $$;

-- Takes room for this many jobs in each of these slots, and starts of their rates.
CREATE FUNCTION occupy(queue_ int, now_us bigint, slots_ int[], counts int[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    WITH b AS MATERIALIZED (SELECT * FROM bounds x WHERE x.queue = queue_)
    UPDATE slots s SET
        used = s.used + u.count_,
        free_us = CASE WHEN b.apart_us IS NULL THEN s.free_us
            ELSE now_us + greatest(0, least(s.free_us - now_us, b.burst * b.apart_us))
                + u.count_ * b.apart_us END
    FROM unnest(slots_, counts) AS u(slot, count_), b
    WHERE s.number = u.slot AND b.name = s.name;
END $$;

-- Records that a tenant has started this many jobs in its turn.
CREATE FUNCTION spend_turn(queue_ int, tenant_ text, turn_ bigint, count_ int) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    next_ bigint := turn_ + count_ * 1000 / coalesce((
        SELECT w.weight FROM weights w WHERE w.queue = queue_ AND w.tenant = tenant_
    ), 1);
BEGIN
    INSERT INTO tenants (queue, tenant, turn) VALUES (queue_, tenant_, next_)
    ON CONFLICT (queue, tenant) DO UPDATE SET turn = excluded.turn;
    UPDATE heads h SET turn = next_ WHERE h.queue = queue_ AND h.tenant = tenant_;
END $$;

-- The tenants of a queue that hold up the others: many leases, or much of the processing time.
CREATE FUNCTION loud(ns_ int, queue_ int, now_ bigint) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    answer text[];
    busy_all numeric;
    busy_most bigint;
BEGIN
    SELECT sum(b.busy_us), max(b.busy_us) INTO busy_all, busy_most FROM (
        SELECT busy_us(t.busy_ms, now_ - t.busy_at) AS busy_us FROM tenants t
        WHERE t.queue = queue_ OFFSET 0
    ) b;
    IF busy_most > 0.1::float8 * busy_all THEN
        answer := ARRAY(
            SELECT t.tenant FROM tenants t
            WHERE t.queue = queue_
              AND busy_us(t.busy_ms, now_ - t.busy_at) > 0.1::float8 * busy_all
        );
    END IF;
    RETURN answer || ARRAY(
        SELECT w.tenant FROM (
            SELECT coalesce(j.tenant, '') AS tenant, count(*) AS leased,
                   sum(count(*)) OVER () AS leased_all
            FROM jobs j WHERE j.ns = ns_ AND j.state = 1 AND j.queue = queue_ GROUP BY 1
        ) w
        WHERE w.leased >= 30 AND w.leased > 0.1 * w.leased_all
    );
END $$;

-- Processing time with decay: half of it counts after a minute.
CREATE FUNCTION decayed(busy_ms float8, since_ms bigint) RETURNS float8 LANGUAGE sql IMMUTABLE AS $$
    SELECT busy_ms * power(2::float8, -least(1000, greatest(0, since_ms) / 60000::float8))
$$;

-- The same in whole microseconds.
CREATE FUNCTION busy_us(busy_ms float8, since_ms bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT round(decayed(busy_ms, since_ms) * 1000)::bigint
$$;
