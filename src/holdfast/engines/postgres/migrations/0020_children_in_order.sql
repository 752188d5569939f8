-- A call in a caller's transaction notifies children in that transaction, which already holds rows.
-- Their locks are out of order by then, so they are only tried.

-- Locks the children that are to be notified of these endings, and their domains, without waiting:
-- fails if another call holds one of them. Then `release` has nothing to wait for: a child whose
-- row and domain are locked stays in its queue, and a parent whose row is locked gets no child.
CREATE FUNCTION hold_children(ns_ int, numbers_ bigint[]) RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off AS $$
DECLARE
    seqs bigint[];
    queues_ int[];
    domains_ int[];
    homes int[];
BEGIN
    SELECT array_agg(DISTINCT c.seq), array_agg(DISTINCT c.queue) INTO seqs, queues_
    FROM unnest(numbers_) AS w(number)
    CROSS JOIN LATERAL (
        SELECT x.parent, x.state FROM endings x
        WHERE x.number = w.number AND x.ns = ns_ OFFSET 0
    ) e
    CROSS JOIN LATERAL (
        SELECT y.child FROM edges y
        WHERE y.parent = e.parent AND y.ns = ns_
          AND CASE e.state WHEN 2 THEN y.on_done ELSE y.on_death END < 2
        OFFSET 0
    ) g
    CROSS JOIN LATERAL (
        SELECT x.seq, x.queue FROM jobs x WHERE x.ns = ns_ AND x.seq = g.child OFFSET 0
    ) c;
    IF seqs IS NULL THEN
        RETURN;
    END IF;
    domains_ := ARRAY(SELECT DISTINCT f.domain FROM flows f WHERE f.queue = ANY (queues_));
    IF NOT (
        SELECT bool_and(pg_try_advisory_xact_lock(domain_key(w.domain)))
        FROM unnest(domains_) AS w(domain)
    ) OR NOT queues_ <@ lock_domains(domains_) THEN
        RAISE serialization_failure USING MESSAGE = 'another call holds the queue of a child';
    END IF;
    SELECT array_agg(c.queue) INTO homes FROM unnest(seqs) AS w(seq)
    CROSS JOIN LATERAL (
        SELECT x.queue FROM jobs x WHERE x.ns = ns_ AND x.seq = w.seq FOR NO KEY UPDATE NOWAIT
    ) c;
    IF NOT homes <@ queues_ THEN
        RAISE serialization_failure USING MESSAGE = 'a child went to another queue meanwhile';
    END IF;
END $$;
