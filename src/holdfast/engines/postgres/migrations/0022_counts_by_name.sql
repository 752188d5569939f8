-- The counts of some queues, or of all: the page of one queue must not count every job of the store.
DROP FUNCTION counts(int, bigint, int);

CREATE FUNCTION counts(ns_ int, given bigint, most int, names_ text[])
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
          AND (names_ IS NULL OR q.name = ANY (names_))
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
            WHERE j.ns = ns_ AND j.state IN (1, 5) AND j.queue = number_
            LIMIT most + 1
        ) w;
        RETURN NEXT;
    END LOOP;
END $$;
