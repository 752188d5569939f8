-- A job is written twice more after its insert: when it is leased and when it ends. Half of each
-- page is left free for that, so that the next version is on the same page (half the log, and no
-- search for another page), and the indexes that get an entry for each version have room for all
-- three without splitting or looking for dead ones. Existing pages stay as they are.
ALTER TABLE jobs SET (fillfactor = 50);
ALTER INDEX jobs_id SET (fillfactor = 40);
ALTER INDEX jobs_seq SET (fillfactor = 40);

-- Jobs are looked up one by one. Without statistics a bitmap is planned for each single row.
ALTER FUNCTION complete SET enable_bitmapscan = off;
ALTER FUNCTION renew SET enable_bitmapscan = off;
ALTER FUNCTION lease_ids SET enable_bitmapscan = off;
ALTER FUNCTION hold SET enable_bitmapscan = off;
ALTER FUNCTION hold_ids SET enable_bitmapscan = off;
ALTER FUNCTION known SET enable_bitmapscan = off;
ALTER FUNCTION rewrite SET enable_bitmapscan = off;
ALTER FUNCTION free_ids SET enable_bitmapscan = off;
ALTER FUNCTION free_keys SET enable_bitmapscan = off;
ALTER FUNCTION keep_keys SET enable_bitmapscan = off;
