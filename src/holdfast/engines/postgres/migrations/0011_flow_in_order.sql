-- Leases many jobs at once from queues with lanes: the best ones are computed in memory from a
-- window of candidates, and written by a few statements. The result is the same as one by one.

-- The state of the lanes of the candidates. Lanes and slots are numbered from 1, by their numbers;
-- lane `of_lane[n]` needs slot `needed[n]`. demands: how many of the candidates need each slot;
-- fits: there is room for all of them; then `needed` is only filled if it is `asked` for.
CREATE TYPE standing AS (
    lanes int[], slots int[], rooms int[], demands int[], fits boolean, of_lane int[],
    needed int[], tids tid[]
);
CREATE FUNCTION standing_of(
    queue_ int, now_us bigint, lanes_ int[], asked boolean
) RETURNS standing LANGUAGE plpgsql AS $$
DECLARE
    answer standing;
    counts int[];
    wanted int[];
BEGIN
    SELECT array_agg(w.lane), array_agg(w.count_) INTO answer.lanes, counts FROM (
        SELECT u.lane, count(*)::int AS count_ FROM unnest(lanes_) AS u(lane)
        GROUP BY u.lane ORDER BY u.lane
    ) w;
    SELECT array_agg(w.o), array_agg(x.slot) INTO answer.of_lane, wanted
    FROM (
        SELECT array_position(answer.lanes, l.number) AS o, l.slots FROM lanes l
        WHERE l.number = ANY (answer.lanes) ORDER BY l.number
    ) w
    CROSS JOIN LATERAL unnest(w.slots) AS x(slot);
    IF wanted IS NULL THEN
        RETURN answer;
    END IF;
    SELECT array_agg(w.slot), array_agg(w.demand) INTO answer.slots, answer.demands FROM (
        SELECT u.slot, sum(counts[u.lane])::int AS demand
        FROM unnest(wanted, answer.of_lane) AS u(slot, lane) GROUP BY u.slot ORDER BY u.slot
    ) w;
    WITH b AS MATERIALIZED (SELECT * FROM bounds x WHERE x.queue = queue_)
    SELECT array_agg(r.number), array_agg(r.room), array_agg(r.tid_), array_agg(r.demand),
           bool_and(r.demand <= r.room)
    INTO answer.slots, answer.rooms, answer.tids, answer.demands, answer.fits
    FROM (
        SELECT s.number, s.ctid AS tid_,
               answer.demands[array_position(answer.slots, s.number)] AS demand,
               least(
                   coalesce(b.concurrency - s.used, 2147483647),
                   CASE WHEN b.apart_us IS NULL THEN 2147483647 ELSE greatest(0,
                       b.burst * b.apart_us
                       - greatest(0, least(s.free_us - now_us, b.burst * b.apart_us))
                   ) / b.apart_us END
               )::int AS room
        FROM slots s JOIN b ON b.name = s.name
        WHERE s.number = ANY (answer.slots)
    ) r;
    IF asked OR NOT answer.fits THEN
        answer.needed := ARRAY(
            SELECT array_position(answer.slots, w.slot)
            FROM unnest(wanted) WITH ORDINALITY AS w(slot, o) ORDER BY w.o
        );
    END IF;
    RETURN answer;
END $$;

-- The positions of the candidates that have room, and the lanes that have no more.
CREATE TYPE chosen AS (places int[], full_lanes int[], full_slots int[]);

-- Leases by priority and time; jobs of noisy tenants come after the others of their priority. While
-- no lane has to be skipped, that is the order of the index. Otherwise a window of consecutive jobs
-- begins at the first lane that is not skipped. NULL means that finding it took too long: call
-- again.
CREATE FUNCTION lease_ordered(
    line queues, now_ bigint, now_us bigint, need_ int, worker_ text, span bigint, tasks text[]
) RETURNS tid[] LANGUAGE plpgsql AS $$
DECLARE
    answer tid[] := '{}';
    need int := need_;
    is_limited CONSTANT boolean := EXISTS (SELECT FROM bounds b WHERE b.queue = line.number);
    loud_ text[];
    is_loud boolean := false;
    passes_over boolean;
    is_known boolean;
    level smallint := -32768;
    start_due bigint;
    start_place bigint;
    places tid[];
    lanes_ int[];
    choice chosen;
    count_ int;
BEGIN
    PERFORM unpark(line.number, now_, now_us);
    IF is_limited THEN
        need := least(need, wide_room(line, now_us));
    END IF;
    IF line.fairness = 2 THEN
        loud_ := nullif(loud(line.ns, line.number, now_), '{}');
    END IF;
    passes_over := tasks IS NOT NULL OR loud_ IS NOT NULL
        OR EXISTS (SELECT FROM heads h WHERE h.queue = line.number AND h.parked > 0);
    WHILE need > 0 LOOP
        -- The next priority, or the noisy tenants of this one.
        IF loud_ IS NOT NULL AND level > -32768 AND NOT is_loud THEN
            is_loud := true;
        ELSE
            is_loud := false;
            IF passes_over THEN
                SELECT h.rank INTO level FROM heads h
                WHERE h.queue = line.number AND h.parked IS NULL AND h.rank > level
                ORDER BY h.rank LIMIT 1;
            ELSE
                SELECT j.rank, j.due_at INTO level, start_due FROM jobs j
                WHERE j.queue = line.number AND j.state = 0 AND j.holds = 0 AND j.rank > level
                ORDER BY j.rank, j.due_at LIMIT 1;
            END IF;
            EXIT WHEN NOT FOUND;
        END IF;
        start_place := 0;
        WHILE need > 0 LOOP
            IF passes_over THEN
                SELECT f.due_at, f.place, f.is_known INTO start_due, start_place, is_known
                FROM first_open(line.number, now_, level, loud_, is_loud, tasks) f;
                IF NOT is_known THEN
                    RETURN nullif(answer, '{}');
                END IF;
            END IF;
            EXIT WHEN coalesce(start_due > now_, true);
            SELECT array_agg(w.tid_), array_agg(w.lane) INTO places, lanes_ FROM (
                SELECT j.ctid AS tid_, j.lane FROM jobs j
                WHERE j.queue = line.number AND j.state = 0 AND j.holds = 0 AND j.rank = level
                  AND (j.due_at, j.place) >= (start_due, start_place) AND j.due_at <= now_
                  AND (tasks IS NULL OR j.task = ANY (tasks))
                  AND (loud_ IS NULL OR (coalesce(j.tenant, '') = ANY (loud_)) = is_loud)
                ORDER BY j.due_at, j.place LIMIT need + 20 * is_limited::int
            ) w;
            EXIT WHEN places IS NULL;
            IF is_limited THEN
                choice := choose(line.number, now_us, lanes_, need);
            END IF;
            IF NOT is_limited OR choice.places IS NULL THEN
                places := places[1:need];
            ELSE
                places := ARRAY(
                    SELECT places[w.place] FROM unnest(choice.places) WITH ORDINALITY AS w(place, o)
                    ORDER BY w.o
                );
            END IF;
            count_ := cardinality(places);
            IF count_ > 0 THEN
                answer := answer || grant_lease(line, now_, places, worker_, span);
                need := need - count_;
            END IF;
            IF is_limited AND choice.full_lanes <> '{}' THEN
                PERFORM park(line.number, now_us, choice.full_lanes, choice.full_slots);
                passes_over := true;
            ELSE
                EXIT WHEN NOT passes_over OR count_ = 0;
            END IF;
        END LOOP;
    END LOOP;
    RETURN answer;
END $$;

-- The first jobs of the open lanes at this priority. Heads whose job is gone come first, and are
-- written again, a bounded number of them; those outside the window are behind its last job.
CREATE FUNCTION first_open(
    queue_ int, now_ bigint, level smallint, loud_ text[], is_loud boolean, tasks text[],
    OUT due_at bigint, OUT place bigint, OUT is_known boolean
) LANGUAGE plpgsql AS $$
DECLARE
    some_ int := 2;
BEGIN
    FOR _ IN 1..4 LOOP
        WITH was AS MATERIALIZED (
            SELECT h.tid_, h.due_at AS due_before, h.place AS place_before, x.due_at, x.place
            FROM (
                SELECT y.ctid AS tid_, y.lane, y.due_at, y.place FROM heads y
                WHERE y.queue = queue_ AND y.parked IS NULL AND y.rank = level
                  AND (loud_ IS NULL OR (y.tenant = ANY (loud_)) = is_loud)
                  AND (tasks IS NULL OR (
                      SELECT l.task = ANY (tasks) FROM lanes l WHERE l.number = y.lane))
                ORDER BY y.turn, y.due_at, y.place LIMIT some_
            ) h
            LEFT JOIN LATERAL (
                SELECT j.due_at, j.place FROM jobs j
                WHERE j.lane = h.lane AND j.state = 0 AND j.holds = 0 AND j.rank = level
                ORDER BY j.due_at, j.place LIMIT 1
            ) x ON true
        ), moved AS (
            UPDATE heads h SET
                parked = CASE WHEN w.due_at > now_ THEN 0 END, due_at = w.due_at, place = w.place
            FROM was w
            WHERE (w.due_at, w.place) <> (w.due_before, w.place_before) AND h.ctid = w.tid_
        ), gone AS (
            DELETE FROM heads h USING was w WHERE w.place IS NULL AND h.ctid = w.tid_
        )
        SELECT f.due_at, f.place,
               coalesce(l.count_ < some_ OR (f.due_at, f.place) <= (l.due_at, l.place), false)
        INTO first_open.due_at, first_open.place, is_known
        FROM (
            SELECT w.due_before AS due_at, w.place_before AS place, count(*) OVER () AS count_
            FROM was w ORDER BY w.due_before DESC, w.place_before DESC LIMIT 1
        ) l
        LEFT JOIN (
            SELECT w.due_at, w.place FROM was w WHERE w.place IS NOT NULL
            ORDER BY w.due_at, w.place LIMIT 1
        ) f ON true;
        is_known := NOT FOUND OR is_known;
        EXIT WHEN is_known;
        some_ := CASE some_ WHEN 2 THEN 100 ELSE 1000 END;
    END LOOP;
END $$;

-- Which of the consecutive jobs of these lanes have room in their slots, up to `need` of them; NULL
-- stands for the first ones. What they take is written. The lanes without more room are full.
CREATE FUNCTION choose(queue_ int, now_us bigint, lanes_ int[], need int) RETURNS chosen
LANGUAGE plpgsql AS $$
DECLARE
    answer chosen;
    now_is standing := standing_of(queue_, now_us, lanes_[1:need], false);
    rooms int[];
    firsts int[];
    is_full boolean[];
    lane_ int;
    n int;
BEGIN
    answer.full_lanes := '{}';
    answer.full_slots := '{}';
    IF now_is.slots IS NULL THEN
        RETURN answer;
    END IF;
    IF now_is.fits THEN
        PERFORM fill(queue_, now_us, now_is.tids, now_is.demands);
        RETURN answer;
    END IF;
    now_is := standing_of(queue_, now_us, lanes_, true);
    rooms := now_is.rooms;
    firsts := array_fill(0, ARRAY[cardinality(now_is.lanes)]);
    FOR i IN REVERSE cardinality(now_is.of_lane)..1 LOOP
        firsts[now_is.of_lane[i]] := i;
    END LOOP;
    is_full := array_fill(false, ARRAY[cardinality(now_is.lanes)]);
    answer.places := '{}';
    <<candidates>>
    FOR i IN 1..cardinality(lanes_) LOOP
        EXIT WHEN cardinality(answer.places) >= need;
        lane_ := array_position(now_is.lanes, lanes_[i]);
        CONTINUE WHEN is_full[lane_];
        n := firsts[lane_];
        WHILE n > 0 AND now_is.of_lane[n] = lane_ LOOP
            IF rooms[now_is.needed[n]] <= 0 THEN
                is_full[lane_] := true;
                answer.full_lanes := answer.full_lanes || lanes_[i];
                answer.full_slots := answer.full_slots || now_is.slots[now_is.needed[n]];
                CONTINUE candidates;
            END IF;
            n := n + 1;
        END LOOP;
        n := firsts[lane_];
        WHILE n > 0 AND now_is.of_lane[n] = lane_ LOOP
            rooms[now_is.needed[n]] := rooms[now_is.needed[n]] - 1;
            n := n + 1;
        END LOOP;
        answer.places := answer.places || i;
    END LOOP;
    PERFORM fill(queue_, now_us, now_is.tids, ARRAY(
        SELECT u.before - u.after FROM unnest(now_is.rooms, rooms) WITH ORDINALITY
            AS u(before, after, o) ORDER BY u.o
    ));
    RETURN answer;
END $$;

-- Leases the first jobs of all priorities by age; stops if a lane has no room left, because jobs
-- behind it may come before those that are known here.
CREATE FUNCTION lease_aged(
    line queues, now_ bigint, now_us bigint, need int, worker_ text, span bigint
) RETURNS tid[] LANGUAGE plpgsql AS $$
DECLARE
    is_limited CONSTANT boolean := EXISTS (SELECT FROM bounds b WHERE b.queue = line.number);
    places tid[];
    lanes_ int[];
    choice chosen;
BEGIN
    WITH RECURSIVE levels (rank) AS (
        (SELECT j.rank FROM jobs j WHERE j.queue = line.number AND j.state = 0 AND j.holds = 0
         ORDER BY j.rank LIMIT 1)
        UNION ALL
        SELECT (SELECT j.rank FROM jobs j
                WHERE j.queue = line.number AND j.state = 0 AND j.holds = 0 AND j.rank > l.rank
                ORDER BY j.rank LIMIT 1)
        FROM levels l WHERE l.rank IS NOT NULL
    )
    SELECT array_agg(w.tid_), array_agg(w.lane) INTO places, lanes_ FROM (
        SELECT x.tid_, x.lane FROM levels l
        CROSS JOIN LATERAL (
            SELECT j.ctid AS tid_, j.lane, j.due_at, j.place FROM jobs j
            WHERE j.queue = line.number AND j.state = 0 AND j.holds = 0 AND j.rank = l.rank
              AND j.due_at <= now_
            ORDER BY j.due_at, j.place LIMIT need
        ) x
        ORDER BY x.due_at + l.rank * line.aging_ms, l.rank, x.due_at, x.place LIMIT need
    ) w;
    IF is_limited AND places IS NOT NULL THEN
        choice := choose(line.number, now_us, lanes_, need);
        IF choice.places IS NOT NULL THEN
            places := ARRAY(
                SELECT places[w.place] FROM unnest(choice.places) WITH ORDINALITY AS w(place, o)
                ORDER BY w.o
            );
        END IF;
    END IF;
    IF coalesce(cardinality(places), 0) = 0 THEN
        RETURN '{}';
    END IF;
    RETURN grant_lease(line, now_, places, worker_, span);
END $$;

-- Takes room for this many jobs in each of these slots, and starts of their rates.
CREATE FUNCTION fill(queue_ int, now_us bigint, tids tid[], counts int[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    WITH b AS MATERIALIZED (SELECT * FROM bounds x WHERE x.queue = queue_)
    UPDATE slots s SET
        used = s.used + u.count_,
        free_us = CASE WHEN b.apart_us IS NULL THEN s.free_us
            ELSE now_us + greatest(0, least(s.free_us - now_us, b.burst * b.apart_us))
                + u.count_ * b.apart_us END
    FROM unnest(tids, counts) AS u(tid_, count_), b
    WHERE u.count_ > 0 AND s.ctid = u.tid_ AND b.name = s.name;
END $$;

-- Skips lanes, at all priorities, until these slots have room.
CREATE FUNCTION park(queue_ int, now_us bigint, lanes_ int[], slots_ int[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE heads h SET parked = u.slot
    FROM unnest(lanes_, slots_) AS u(lane, slot)
    WHERE h.lane = u.lane AND h.parked IS NULL;
    INSERT INTO parks (queue, slot, wake_us)
    SELECT queue_, w.slot, CASE WHEN b.concurrency <= s.used THEN NULL ELSE
               now_us + greatest(0, least(s.free_us - now_us, b.burst * b.apart_us)
                                    - (b.burst - 1) * b.apart_us) END
    FROM (SELECT DISTINCT u.slot FROM unnest(slots_) AS u(slot)) w
    CROSS JOIN LATERAL (SELECT * FROM slots x WHERE x.number = w.slot OFFSET 0) s
    CROSS JOIN LATERAL (
        SELECT * FROM bounds x WHERE x.queue = queue_ AND x.name = s.name OFFSET 0
    ) b
    ON CONFLICT (queue, slot) DO UPDATE SET wake_us = excluded.wake_us;
END $$;

-- Checks heads that have become due, and those whose slot may have room.
CREATE FUNCTION unpark(queue_ int, now_ bigint, now_us bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    slots_ int[];
BEGIN
    PERFORM FROM heads h WHERE h.queue = queue_ AND h.parked = 0 AND h.due_at <= now_ LIMIT 1;
    IF FOUND THEN
        UPDATE heads h SET parked = NULL
        WHERE h.queue = queue_ AND h.parked = 0 AND h.due_at <= now_;
    END IF;
    PERFORM FROM parks p WHERE p.queue = queue_ AND p.wake_us <= now_us;
    IF FOUND THEN
        WITH woken AS (
            DELETE FROM parks p WHERE p.queue = queue_ AND p.wake_us <= now_us RETURNING p.slot
        )
        SELECT array_agg(w.slot) INTO slots_ FROM woken w;
        UPDATE heads h SET parked = CASE WHEN h.due_at > now_ THEN 0 END
        WHERE h.queue = queue_ AND h.parked > 0 AND h.parked = ANY (slots_);
    END IF;
END $$;

-- The number of jobs for which the slots that every job of the queue needs have room.
CREATE FUNCTION wide_room(line queues, now_us bigint) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
    RETURN coalesce((
        SELECT min(room(line.number, ARRAY[s.number], now_us))
        FROM bounds b
        CROSS JOIN LATERAL (
            SELECT x.number FROM slots x
            WHERE x.ns = line.ns AND x.name = b.name AND x.key = b.wide OFFSET 0
        ) s
        WHERE b.queue = line.number AND b.wide IS NOT NULL
    ), 2147483647);
END $$;
