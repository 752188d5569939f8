-- Records have an age. It is not known when existing ones were saved: their age counts from now.
ALTER TABLE records ADD COLUMN saved_at bigint NOT NULL DEFAULT now_ms(NULL);

-- Writes each record only on the version that was read; always in the same order. The older form
-- stays, for processes that opened the store before it was changed.
CREATE FUNCTION save(
    ns_ int, given bigint, kinds text[], keys_ text[], versions bigint[], contents bytea[]
) RETURNS boolean[] LANGUAGE plpgsql
SET search_path FROM CURRENT AS $$
DECLARE
    now_ bigint := now_ms(given);
    wanted record;
    answers boolean[] := array_fill(false, ARRAY[cardinality(kinds)]);
BEGIN
    FOR wanted IN
        SELECT * FROM unnest(kinds, keys_, versions, contents) WITH ORDINALITY
             AS u(kind, key, version, content, o)
        ORDER BY u.kind COLLATE "C", u.key COLLATE "C", u.o
    LOOP
        IF wanted.version > 0 AND wanted.content IS NOT NULL THEN
            UPDATE records r
            SET version = wanted.version + 1, value = wanted.content, saved_at = now_
            WHERE r.ns = ns_ AND r.kind = wanted.kind AND r.key = wanted.key
              AND r.version = wanted.version;
            answers[wanted.o] := FOUND;
        ELSIF wanted.version > 0 THEN
            DELETE FROM records r
            WHERE r.ns = ns_ AND r.kind = wanted.kind AND r.key = wanted.key
              AND r.version = wanted.version;
            answers[wanted.o] := FOUND;
        ELSIF wanted.content IS NOT NULL THEN
            INSERT INTO records (ns, kind, key, version, value, saved_at)
            VALUES (ns_, wanted.kind, wanted.key, 1, wanted.content, now_)
            ON CONFLICT (ns, kind, key) DO NOTHING;
            answers[wanted.o] := FOUND;
        ELSE
            PERFORM FROM records r
            WHERE r.ns = ns_ AND r.kind = wanted.kind AND r.key = wanted.key;
            answers[wanted.o] := NOT FOUND;
        END IF;
    END LOOP;
    RETURN answers;
END $$;
