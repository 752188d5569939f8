-- A process of an older version that is still connected must not write any more, because it does
-- not know what later versions store. Versions before this one find what they use under names that
-- change here. Later versions need no new names: their statements name the version that they were
-- written for, see schema.py.
ALTER TABLE queues RENAME COLUMN dropped_at TO removed_at;
DO $$
DECLARE
    names CONSTANT jsonb := '{
        "lease": "lease_jobs", "lease_ids": "lease_jobs_by_id",
        "lease_flow": "lease_lanes", "lease_ids_flow": "lease_lanes_by_id",
        "add_plain_jobs": "insert_plain_jobs", "add_jobs": "insert_jobs",
        "complete": "complete_jobs", "complete_flow": "complete_flow_jobs",
        "complete_light": "complete_light_jobs", "rewrite": "rewrite_jobs",
        "renew": "renew_leases", "linger": "wait_for_jobs", "save": "save_records",
        "erase": "erase_jobs", "purge": "purge_queue", "join_flow": "join_domain",
        "declare_flow": "declare_lanes", "wake": "wake_leases", "link": "link_jobs",
        "free_keys": "remove_keys", "sort_into": "sort_into_lanes", "prune_flow": "prune_lanes"
    }';
    -- Not a column or a table of the same name, and not a longer name.
    calls CONSTANT text := format(
        '(?<![\w.])(%s)(?=\()',
        (SELECT string_agg(key, '|' ORDER BY length(key) DESC) FROM jsonb_each_text(names))
    );
    found record;
    body text;
    called text[];
BEGIN
    FOR found IN
        SELECT p.oid, p.prosrc FROM pg_proc p
        WHERE p.pronamespace = current_schema()::regnamespace AND p.prokind = 'f'
    LOOP
        IF found.prosrc ~ calls THEN
            body := found.prosrc;
            FOR called IN SELECT DISTINCT regexp_matches(found.prosrc, calls, 'g') LOOP
                body := regexp_replace(
                    body, '(?<![\w.])' || called[1] || '(?=\()', names ->> called[1], 'g');
            END LOOP;
            EXECUTE replace(pg_get_functiondef(found.oid), found.prosrc, body);
        END IF;
    END LOOP;
    -- Only versions before 17 use them.
    FOR found IN
        SELECT p.oid::regprocedure AS signature FROM pg_proc p
        WHERE p.pronamespace = current_schema()::regnamespace AND p.proname IN ('put_plain', 'put')
    LOOP
        EXECUTE format('DROP FUNCTION %s', found.signature);
    END LOOP;
    FOR found IN
        SELECT p.oid::regprocedure AS signature, p.proname FROM pg_proc p
        WHERE p.pronamespace = current_schema()::regnamespace AND names ? p.proname
    LOOP
        EXECUTE format('ALTER FUNCTION %s RENAME TO %I', found.signature, names ->> found.proname);
    END LOOP;
END
$$;
