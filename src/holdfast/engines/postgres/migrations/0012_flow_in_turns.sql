-- Leasing many jobs at once where tenants take turns.

-- The jobs that turns take, and the next turns of their tenants.
CREATE TYPE turned AS (taken tid[], turns bigint[]);

-- Leases in turns: within the best priority, the tenant with the lowest turn first, a few jobs of
-- one of its lanes. A window of lanes is processed until one outside it could be better, or the
-- next job of one of them is not known. NULL means that too many heads had lost their job: call
-- again.
CREATE FUNCTION lease_in_turns(
    line queues, now_ bigint, now_us bigint, need_ int, most int, worker_ text, span bigint,
    tasks text[]
) RETURNS tid[] LANGUAGE plpgsql AS $$
DECLARE
    answer tid[] := '{}';
    is_limited CONSTANT boolean := EXISTS (SELECT FROM bounds b WHERE b.queue = line.number);
    credit CONSTANT bigint := 100000;
    quantum CONSTANT int := least(4, 1 + most / 25);
    need int;
    vclock_ bigint;
    vclock_before bigint;
    each turned;
    floor_ bigint;
    level smallint;
    window_ int;
    deep int;
    count_ int;
    per_lane int := quantum;
    -- For each lane of the window, by the turn of its tenant.
    ranks smallint[];
    lanes_ int[];
    tenants_ text[];
    head_turns bigint[];
    head_dues bigint[];
    head_places bigint[];
    tenant_of int[];
    starts int[];
    nexts int[];
    ends int[];
    is_over boolean[];
    -- For each of their tenants.
    names text[];
    turns bigint[];
    weights_ int[];
    is_spent boolean[];
    -- For each of their first jobs.
    of_lane int[];
    tids tid[];
    dues bigint[];
    places bigint[];
    outside_turn bigint;
    outside_due bigint;
    outside_place bigint;
    now_is standing;
    slot_firsts int[];
    rooms int[];
    best int;
    best_turn bigint;
    fresh_turn bigint;
    turn_ bigint;
    count_taken int;
    lane_ int;
    n int;
    taken tid[];
    taken_lanes int[];
    stale int[];
    stale_rounds int := 0;
    full_lanes int[];
    full_slots int[];
BEGIN
    PERFORM unpark(line.number, now_, now_us);
    need := CASE WHEN is_limited THEN least(need_, wide_room(line, now_us)) ELSE need_ END;
    SELECT f.vclock INTO vclock_ FROM flows f WHERE f.queue = line.number;
    vclock_before := vclock_;
    WHILE need > 0 LOOP
        floor_ := vclock_ - credit;
        window_ := least(CASE WHEN is_limited THEN 50 ELSE 100 END,
                         (need + per_lane - 1) / per_lane);
        SELECT array_agg(w.rank), array_agg(w.lane), array_agg(w.tenant), array_agg(w.turn),
               array_agg(w.due_at), array_agg(w.place)
        INTO ranks, lanes_, tenants_, head_turns, head_dues, head_places
        FROM (
            SELECT h.* FROM heads h
            WHERE h.queue = line.number AND h.parked IS NULL
              AND (tasks IS NULL OR (
                  SELECT l.task = ANY (tasks) FROM lanes l WHERE l.number = h.lane))
            ORDER BY h.rank, h.turn, h.due_at, h.place LIMIT window_ + 1
        ) w;
        EXIT WHEN lanes_ IS NULL;
        level := ranks[1];
        IF head_turns[1] < floor_ THEN
            UPDATE heads h SET turn = floor_
            WHERE h.queue = line.number AND h.parked IS NULL AND h.rank = level
              AND h.turn < floor_;
            CONTINUE;
        END IF;
        count_ := cardinality(array_positions(ranks, level));
        outside_turn := NULL;
        IF count_ > window_ THEN
            outside_turn := head_turns[count_];
            outside_due := head_dues[count_];
            outside_place := head_places[count_];
            count_ := window_;
        END IF;
        lanes_ := lanes_[1:count_];
        tenants_ := tenants_[1:count_];
        IF NOT is_limited THEN
            each := one_turn_each(line.number, now_, level, floor_, quantum, lanes_, tenants_,
                                  head_turns, head_dues, head_places, need);
            IF each.taken IS NOT NULL THEN
                answer := answer || grant_lease(line, now_, each.taken, worker_, span);
                need := need - cardinality(each.taken);
                count_ := cardinality(each.turns);
                per_lane := greatest(1, cardinality(each.taken) / count_);
                vclock_ := greatest(vclock_, head_turns[count_]);
                PERFORM advance_turns(line.number, now_, lanes_[1:count_], level,
                                      tenants_[1:count_], each.turns,
                                      array_fill(true, ARRAY[count_]));
                CONTINUE;
            END IF;
        END IF;
        -- Deep enough that the lanes together have enough jobs, in whole turns.
        deep := CASE WHEN outside_turn IS NOT NULL THEN quantum
                     ELSE ((need + count_ - 1) / count_ / quantum + 1) * quantum END;
        SELECT array_agg(t.tenant), array_agg(t.turn), array_agg(t.weight)
        INTO names, turns, weights_
        FROM (
            SELECT w.tenant,
                   coalesce((SELECT x.turn FROM tenants x
                             WHERE x.queue = line.number AND x.tenant = w.tenant), 0) AS turn,
                   coalesce((SELECT x.weight FROM weights x
                             WHERE x.queue = line.number AND x.tenant = w.tenant), 1) AS weight
            FROM (SELECT DISTINCT u.tenant FROM unnest(tenants_) AS u(tenant)) w
        ) t;
        SELECT array_agg(array_position(names, u.tenant)) INTO tenant_of
        FROM unnest(tenants_) AS u(tenant);
        SELECT array_agg(j.tid_), array_agg(j.due_at), array_agg(j.place), array_agg(u.o::int)
        INTO tids, dues, places, of_lane
        FROM unnest(lanes_) WITH ORDINALITY AS u(lane, o)
        CROSS JOIN LATERAL (
            SELECT y.ctid AS tid_, y.due_at, y.place FROM jobs y
            WHERE y.lane = u.lane AND y.state = 0 AND y.holds = 0 AND y.rank = level
              AND y.due_at <= now_
            ORDER BY y.due_at, y.place LIMIT deep
        ) j;
        SELECT array_agg(r.first_ ORDER BY r.o), array_agg(r.last_ ORDER BY r.o)
        INTO nexts, ends
        FROM (
            SELECT u.o, coalesce(w.first_, 1) AS first_, coalesce(w.last_, 0) AS last_
            FROM unnest(lanes_) WITH ORDINALITY AS u(lane, o)
            LEFT JOIN (
                SELECT x.lane, min(x.n)::int AS first_, max(x.n)::int AS last_
                FROM unnest(of_lane) WITH ORDINALITY AS x(lane, n) GROUP BY x.lane
            ) w ON w.lane = u.o
        ) r;
        is_over := array_fill(false, ARRAY[count_]);
        starts := nexts;
        -- A head whose job is gone is written again, and the first lane is determined again.
        stale := ARRAY(
            SELECT u.lane FROM unnest(lanes_, nexts, ends, head_dues, head_places)
                AS u(lane, next_, end_, due_at, place)
            WHERE u.lane IS NOT NULL AND (u.end_ = 0 OR dues[u.next_] <> u.due_at
                OR places[u.next_] <> u.place)
        );
        IF cardinality(stale) > 0 THEN
            PERFORM refresh(now_, stale, array_fill(level, ARRAY[cardinality(stale)]));
            stale_rounds := stale_rounds + 1;
            IF stale_rounds > 20 THEN
                answer := nullif(answer, '{}');
                EXIT;
            END IF;
            CONTINUE;
        END IF;
        IF is_limited THEN
            now_is := standing_of(line.number, now_us, lanes_, true);
            rooms := now_is.rooms;
        END IF;
        IF now_is.slots IS NOT NULL THEN
            slot_firsts := array_fill(0, ARRAY[cardinality(now_is.lanes)]);
            FOR i IN REVERSE cardinality(now_is.of_lane)..1 LOOP
                slot_firsts[now_is.of_lane[i]] := i;
            END LOOP;
        END IF;
        is_spent := array_fill(false, ARRAY[cardinality(names)]);
        taken := '{}';
        taken_lanes := '{}';
        full_lanes := '{}';
        full_slots := '{}';
        WHILE cardinality(taken) < need LOOP
            best := NULL;
            fresh_turn := NULL;
            FOR i IN 1..count_ LOOP
                CONTINUE WHEN is_over[i];
                turn_ := greatest(turns[tenant_of[i]], vclock_ - credit);
                IF best IS NULL OR turn_ < best_turn OR (turn_ = best_turn AND (
                    head_dues[i] < head_dues[best]
                    OR (head_dues[i] = head_dues[best] AND head_places[i] < head_places[best])
                )) THEN
                    best := i;
                    best_turn := turn_;
                END IF;
                -- Lanes from which no job was taken are in order.
                IF NOT is_spent[tenant_of[i]] THEN
                    fresh_turn := head_turns[i];
                    EXIT;
                END IF;
            END LOOP;
            EXIT WHEN best IS NULL OR nexts[best] > ends[best];
            -- As the clock advances, more of them may become equal.
            EXIT WHEN vclock_ - credit > floor_
                AND vclock_ - credit > least(fresh_turn, outside_turn);
            EXIT WHEN outside_turn IS NOT NULL AND (best_turn > outside_turn
                OR (best_turn = outside_turn AND (head_dues[best] > outside_due
                    OR (head_dues[best] = outside_due AND head_places[best] > outside_place))));
            count_taken := 0;
            lane_ := CASE WHEN now_is.slots IS NOT NULL
                          THEN array_position(now_is.lanes, lanes_[best]) END;
            <<turn>>
            WHILE count_taken < quantum AND cardinality(taken) < need
                  AND nexts[best] <= ends[best] LOOP
                IF lane_ IS NOT NULL AND slot_firsts[lane_] > 0 THEN
                    n := slot_firsts[lane_];
                    WHILE now_is.of_lane[n] = lane_ LOOP
                        IF rooms[now_is.needed[n]] <= 0 THEN
                            is_over[best] := true;
                            full_lanes := full_lanes || lanes_[best];
                            full_slots := full_slots || now_is.slots[now_is.needed[n]];
                            EXIT turn;
                        END IF;
                        n := n + 1;
                    END LOOP;
                    n := slot_firsts[lane_];
                    WHILE now_is.of_lane[n] = lane_ LOOP
                        rooms[now_is.needed[n]] := rooms[now_is.needed[n]] - 1;
                        n := n + 1;
                    END LOOP;
                END IF;
                taken := taken || tids[nexts[best]];
                count_taken := count_taken + 1;
                nexts[best] := nexts[best] + 1;
            END LOOP;
            CONTINUE WHEN count_taken = 0;
            taken_lanes := taken_lanes || lanes_[best];
            turns[tenant_of[best]] := best_turn + count_taken * 1000 / weights_[tenant_of[best]];
            is_spent[tenant_of[best]] := true;
            vclock_ := greatest(vclock_, best_turn);
            IF nexts[best] <= ends[best] THEN
                head_dues[best] := dues[nexts[best]];
                head_places[best] := places[nexts[best]];
            ELSIF ends[best] - starts[best] + 1 < deep THEN
                is_over[best] := true;
            END IF;
        END LOOP;
        IF cardinality(taken) > 0 THEN
            answer := answer || grant_lease(line, now_, taken, worker_, span);
            need := need - cardinality(taken);
            per_lane := greatest(1, cardinality(taken) / cardinality(taken_lanes));
            IF now_is.slots IS NOT NULL THEN
                PERFORM fill(line.number, now_us, now_is.tids, ARRAY(
                    SELECT u.before - u.after FROM unnest(now_is.rooms, rooms) WITH ORDINALITY
                        AS u(before, after, o) ORDER BY u.o
                ));
            END IF;
            PERFORM advance_turns(line.number, now_, taken_lanes, level, names, turns, is_spent);
        END IF;
        IF cardinality(full_lanes) > 0 THEN
            PERFORM park(line.number, now_us, full_lanes, full_slots);
        END IF;
        EXIT WHEN cardinality(taken) = 0 AND cardinality(full_lanes) = 0;
    END LOOP;
    IF vclock_ > vclock_before THEN
        UPDATE flows f SET vclock = vclock_ WHERE f.queue = line.number;
    END IF;
    RETURN answer;
END $$;

-- If each tenant that has had a turn is then behind all the others, each tenant has one turn, in
-- order: returns the jobs they take, and their next turns. NULL if it is not so simple, or the job
-- of a head is gone.
CREATE FUNCTION one_turn_each(
    queue_ int, now_ bigint, level smallint, floor_ bigint, quantum int, lanes_ int[],
    tenants_ text[], head_turns bigint[], head_dues bigint[], head_places bigint[], need int
) RETURNS turned LANGUAGE plpgsql AS $$
DECLARE
    count_ CONSTANT int := cardinality(lanes_);
    answer turned;
    weights_ int[];
    tids tid[];
    of_lane int[];
    is_so boolean := head_turns[count_] - head_turns[1] <= 100000;
BEGIN
    IF is_so THEN
        SELECT array_agg(t.weight ORDER BY t.o), count(DISTINCT t.tenant) = count_
               AND min(t.turn + quantum * 1000 / t.weight) > head_turns[count_]
        INTO weights_, is_so
        FROM (
            SELECT u.tenant, u.turn, u.o, coalesce((
                SELECT x.weight FROM weights x WHERE x.queue = queue_ AND x.tenant = u.tenant
            ), 1) AS weight
            FROM unnest(tenants_, head_turns[1:count_]) WITH ORDINALITY AS u(tenant, turn, o)
        ) t;
    END IF;
    IF is_so THEN
        SELECT array_agg(j.tid_), array_agg(u.o::int), count(*) FILTER (
            WHERE j.n = 1 AND j.due_at = u.due_at AND j.place = u.place) = count_
        INTO tids, of_lane, is_so
        FROM unnest(lanes_, head_dues[1:count_], head_places[1:count_]) WITH ORDINALITY
             AS u(lane, due_at, place, o)
        CROSS JOIN LATERAL (
            SELECT y.*, row_number() OVER () AS n FROM (
                SELECT x.ctid AS tid_, x.due_at, x.place FROM jobs x
                WHERE x.lane = u.lane AND x.state = 0 AND x.holds = 0 AND x.rank = level
                  AND x.due_at <= now_
                ORDER BY x.due_at, x.place LIMIT quantum
            ) y
        ) j;
    END IF;
    IF is_so THEN
        of_lane := of_lane[1:need];
        answer.taken := tids[1:need];
        answer.turns := ARRAY(
            SELECT u.turn + cardinality(array_positions(of_lane, u.o::int)) * 1000 / u.weight
            FROM unnest(head_turns[1:count_], weights_) WITH ORDINALITY AS u(turn, weight, o)
            WHERE u.o <= of_lane[cardinality(of_lane)] ORDER BY u.o
        );
    END IF;
    RETURN answer;
END $$;

-- Tenants that used their turn get the next, with all their heads.
CREATE FUNCTION advance_turns(
    queue_ int, now_ bigint, lanes_ int[], level smallint, names text[], turns bigint[],
    is_spent boolean[]
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    WITH next_ AS (
        INSERT INTO tenants (queue, tenant, turn)
        SELECT queue_, u.tenant, u.turn
        FROM unnest(names, turns, is_spent) AS u(tenant, turn, spent) WHERE u.spent
        ON CONFLICT (queue, tenant) DO UPDATE SET turn = excluded.turn
    ), was AS MATERIALIZED (
        SELECT h.ctid AS tid_, u.turn, h.lane = ANY (lanes_) AND h.rank = level AS moves,
               x.due_at, x.place
        FROM unnest(names, turns, is_spent) AS u(tenant, turn, spent)
        CROSS JOIN LATERAL (
            SELECT y.ctid, y.* FROM heads y WHERE y.queue = queue_ AND y.tenant = u.tenant OFFSET 0
        ) h
        LEFT JOIN LATERAL (
            SELECT j.due_at, j.place FROM jobs j
            WHERE j.lane = h.lane AND j.state = 0 AND j.holds = 0 AND j.rank = h.rank
            ORDER BY j.due_at, j.place LIMIT 1
        ) x ON true
        WHERE u.spent
    ), moved AS (
        UPDATE heads h SET
            parked = CASE WHEN NOT w.moves THEN h.parked WHEN w.due_at > now_ THEN 0 END,
            turn = w.turn, due_at = w.due_at, place = w.place
        FROM was w WHERE w.place IS NOT NULL AND h.ctid = w.tid_
    )
    DELETE FROM heads h WHERE h.ctid = ANY (ARRAY(
        SELECT w.tid_ FROM was w WHERE w.place IS NULL
    ));
END $$;
