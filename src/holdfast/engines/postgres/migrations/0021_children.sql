-- The children of every job, those that no longer wait for it too, to list them. Triggers keep it,
-- because `extra` has the parents of a job from its insert to its end.
CREATE TABLE children (
    parent  text COLLATE "C" NOT NULL,
    ns      int NOT NULL,
    child   bigint NOT NULL,
    PRIMARY KEY (parent, ns, child)
);

-- The parents in the column `extra` of a job.
CREATE FUNCTION parents_of(extra_ bytea) RETURNS SETOF text LANGUAGE sql
SET search_path FROM CURRENT AS $$
    SELECT jsonb_array_elements_text(convert_from(extra_, 'UTF8')::jsonb -> 'after')
$$;

CREATE FUNCTION add_child() RETURNS trigger LANGUAGE plpgsql
SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO children (parent, ns, child)
    SELECT p, NEW.ns, NEW.seq FROM parents_of(NEW.extra) p ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;

CREATE FUNCTION remove_child() RETURNS trigger LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
    DELETE FROM children c USING parents_of(OLD.extra) p
    WHERE c.parent = p AND c.ns = OLD.ns AND c.child = OLD.seq;
    RETURN NULL;
END $$;

-- `"after":[` in hexadecimal: only jobs with parents have it, since JSON escapes quotes in texts.
CREATE TRIGGER add_child AFTER INSERT ON jobs FOR EACH ROW
WHEN (NEW.extra IS NOT NULL AND position('\x226166746572223a5b'::bytea IN NEW.extra) > 0)
EXECUTE FUNCTION add_child();
CREATE TRIGGER remove_child AFTER DELETE ON jobs FOR EACH ROW
WHEN (OLD.extra IS NOT NULL AND position('\x226166746572223a5b'::bytea IN OLD.extra) > 0)
EXECUTE FUNCTION remove_child();

INSERT INTO children (parent, ns, child)
SELECT p, j.ns, j.seq FROM jobs j CROSS JOIN LATERAL parents_of(j.extra) p
WHERE j.extra IS NOT NULL AND position('\x226166746572223a5b'::bytea IN j.extra) > 0
ON CONFLICT DO NOTHING;
