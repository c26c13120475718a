-- groups: joining a queue, moving within it. And cancel.

-- Register a group and give it a cursor in every lane. The queue is locked against lanes that are being made.
CREATE FUNCTION qo.join_group(p_queue text, p_group text, p_start text, p_time timestamptz, p_now timestamptz) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    q qo.queues := qo.queue_to_use(p_queue, v_now);
    v_group bigint;
    c qo.cursors;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN PERFORM qo.refuse_isolation(); END IF;
    IF p_now IS NOT NULL THEN PERFORM qo.check_clock(); END IF;
    PERFORM FROM qo.queues WHERE id = q.id FOR UPDATE;
    IF NOT FOUND THEN RAISE serialization_failure USING MESSAGE = 'qo: a queue was removed'; END IF;
    INSERT INTO qo.groups (queue_id, name, start_at, start_time, created_at) VALUES (q.id, p_group, p_start, p_time, v_now)
    ON CONFLICT (queue_id, name) DO NOTHING RETURNING id INTO v_group;
    IF v_group IS NULL THEN RETURN false; END IF;
    PERFORM FROM qo.lanes WHERE queue_id = q.id ORDER BY id FOR UPDATE;
    INSERT INTO qo.cursors (lane_id, group_id, keyed, position, hold)
    SELECT l.id, v_group, l.key IS NOT NULL, (qo.tail_of(l.id)).tail, CASE WHEN l.key IS NULL THEN 0 ELSE (q.rules ->> 'window')::double precision END
    FROM qo.lanes l WHERE l.queue_id = q.id AND EXISTS (SELECT FROM qo.cursors k WHERE k.lane_id = l.id) ORDER BY l.id;
    IF p_start <> 'new' THEN
        FOR c IN SELECT k.* FROM qo.cursors k JOIN qo.lanes l ON l.id = k.lane_id WHERE k.group_id = v_group AND l.first < k.position ORDER BY k.id LOOP
            PERFORM qo.stand_at(c, p_start, p_time, NULL, v_now);
        END LOOP;
    END IF;
    UPDATE qo.cursors k SET head_kind = l.kind, head_priority = l.priority FROM qo.lanes l
    WHERE k.group_id = v_group AND NOT k.keyed AND l.id = k.lane_id;
    PERFORM qo.hint(ARRAY[p_queue]);
    RETURN true;
END $$;

-- Move a cursor, which the caller has locked: to all, new, a time or an offset, within what is retained.
CREATE FUNCTION qo.stand_at(c qo.cursors, p_to text, p_time timestamptz, p_offset bigint, p_now timestamptz) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    l qo.lanes;
    t record := qo.tail_of(c.lane_id);
    v_position bigint;
BEGIN
    SELECT * INTO STRICT l FROM qo.lanes WHERE id = c.lane_id;
    UPDATE qo.leases SET ended_at = least(p_now, expires_at), fragile = NULL WHERE cursor_id = c.id AND ended_at IS NULL;
    DELETE FROM qo.retries WHERE cursor_id = c.id;
    DELETE FROM qo.skips WHERE cursor_id = c.id;
    DELETE FROM qo.marks WHERE lane_id = c.lane_id;
    v_position := CASE
        WHEN p_offset IS NOT NULL THEN least(greatest(p_offset, l.first), t.tail)
        WHEN p_to = 'all' OR l.first = t.tail THEN l.first
        WHEN p_to = 'new' THEN t.tail
        ELSE qo.first_entered(c.lane_id, l.first, t.tail, p_time) END;
    UPDATE qo.cursors SET position = v_position, epoch = epoch + 1,
        state = CASE WHEN keyed THEN state WHEN v_position < t.tail THEN 'ready' ELSE 'idle' END
    WHERE id = c.id RETURNING * INTO c;
    PERFORM qo.rest(c, v_position, 0, 0, NULL, p_now);
END $$;

-- The first offset that entered at that time or later: offsets are dense and entry times sorted, so halve.
CREATE FUNCTION qo.first_entered(p_lane bigint, p_low bigint, p_high bigint, p_time timestamptz) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_middle bigint;
BEGIN
    WHILE p_low < p_high LOOP
        v_middle := (p_low + p_high) / 2;
        IF (SELECT entered_at FROM qo.messages WHERE lane_id = p_lane AND "offset" = v_middle) < p_time THEN
            p_low := v_middle + 1;
        ELSE
            p_high := v_middle;
        END IF;
    END LOOP;
    RETURN p_low;
END $$;

-- Move a group: lanes are locked, then cursors. How many lanes were moved; NULL: no such lane.
CREATE FUNCTION qo.seek(p_queue bigint, p_group bigint, p_to text, p_time timestamptz, p_offset bigint, p_key text, p_now timestamptz)
RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz;
    v_lanes bigint[];
    c qo.cursors;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN PERFORM qo.refuse_isolation(); END IF;
    IF p_now IS NOT NULL THEN PERFORM qo.check_clock(); END IF;
    v_lanes := ARRAY(SELECT id FROM qo.lanes WHERE queue_id = p_queue AND (p_key IS NULL OR key = p_key) ORDER BY id FOR UPDATE);
    PERFORM FROM qo.cursors WHERE lane_id = ANY (v_lanes) AND group_id = p_group ORDER BY id FOR UPDATE;
    v_now := coalesce(p_now, clock_timestamp());
    FOR c IN SELECT * FROM qo.cursors k WHERE k.lane_id = ANY (v_lanes) AND k.group_id = p_group ORDER BY k.id LOOP
        PERFORM qo.stand_at(c, p_to, p_time, p_offset, v_now);
    END LOOP;
    PERFORM qo.hint(NULL);
    RETURN cardinality(v_lanes);
END $$;

-- Cancel a message for one group, wherever it is.
CREATE FUNCTION qo.cancel(p_id uuid, p_group text, p_draw double precision, p_now timestamptz) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz;
    v_place record;
    v_queue text;
    v_attempts integer;
    q qo.queues;
    c qo.cursors;
    e qo.leases;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN PERFORM qo.refuse_isolation(); END IF;
    IF p_now IS NOT NULL THEN PERFORM qo.check_clock(); END IF;
    SELECT i.queue INTO v_queue FROM qo.intake i WHERE i.id = p_id AND i.canceled_at IS NULL FOR UPDATE;
    v_now := coalesce(p_now, clock_timestamp());
    IF FOUND THEN
        -- Nobody has seen it: it goes for every group.
        IF p_group <> 'default' THEN RETURN 'not_found'; END IF;
        q := qo.queue_to_use(v_queue, v_now);
        IF q.rules ->> 'history' = 'none' THEN
            DELETE FROM qo.intake WHERE id = p_id;
        ELSE
            UPDATE qo.intake SET canceled_at = v_now, reason = 'canceled' WHERE id = p_id;
        END IF;
        DELETE FROM qo.watched WHERE message_id = p_id;
        IF FOUND THEN PERFORM qo.tell_finished(ARRAY[p_id]); END IF;
        RETURN 'canceled';
    END IF;
    v_place := qo.place_of(p_id);
    IF v_place.lane_id IS NULL THEN RETURN 'not_found'; END IF;
    SELECT k.* INTO STRICT q FROM qo.queues k JOIN qo.lanes l ON l.queue_id = k.id WHERE l.id = v_place.lane_id;
    SELECT k.* INTO c FROM qo.cursors k JOIN qo.groups g ON g.id = k.group_id
    WHERE k.lane_id = v_place.lane_id AND g.name = p_group FOR UPDATE OF k;
    IF NOT FOUND OR v_place.group_id <> c.group_id THEN RETURN 'not_found'; END IF;
    v_now := coalesce(p_now, clock_timestamp());
    LOOP
        SELECT * INTO e FROM qo.lease_over(c, v_place."offset");
        EXIT WHEN e.token IS NULL;
        SELECT * INTO e FROM qo.leases l WHERE l.token = e.token AND l.lane_id = e.lane_id FOR UPDATE;  -- it may be extended right now
        EXIT WHEN e.expires_at > v_now;
        PERFORM qo.lapse_lease(q, c, e, 2147483647, p_draw, v_now);
        SELECT * INTO STRICT c FROM qo.cursors WHERE id = c.id;
    END LOOP;
    PERFORM qo.to_tidy(ARRAY[c.lane_id], v_now);
    IF e.token IS NOT NULL THEN
        UPDATE qo.leases SET canceled = canceled || v_place."offset" WHERE token = e.token AND lane_id = e.lane_id;
        RETURN 'requested';
    END IF;
    DELETE FROM qo.retries r WHERE r.cursor_id = c.id AND r."offset" = v_place."offset" RETURNING r.attempts INTO v_attempts;
    IF NOT FOUND THEN
        IF v_place."offset" < (CASE WHEN c.keyed THEN c.position ELSE qo.position_of(c) END)
                OR EXISTS (SELECT FROM qo.skips s WHERE s.cursor_id = c.id AND s."offset" = v_place."offset") THEN
            RETURN 'finished';
        END IF;
        -- Not claimed yet: claims will pass it. A head is passed at once, its backoff and attempts with it.
        INSERT INTO qo.skips (cursor_id, "offset") VALUES (c.id, v_place."offset");
        v_attempts := CASE WHEN c.keyed AND v_place."offset" = c.position THEN c.attempts ELSE 0 END;
        IF c.keyed AND c.state <> 'leased' THEN
            PERFORM qo.rest(c, c.position, c.attempts, c.losses, CASE WHEN c.state = 'blocked' THEN c.due_at END, v_now);
            PERFORM qo.hint(ARRAY[q.name]);
        ELSIF NOT c.keyed THEN
            PERFORM qo.rest(c, qo.position_of(c), 0, 0, NULL, v_now);
        END IF;
    END IF;
    PERFORM qo.finish(q, c.group_id, c.lane_id, ARRAY[v_place."offset"], ARRAY['canceled'], ARRAY[v_attempts], ARRAY['canceled'],
                      '{}', '{}', NULL, '{}', v_now);
    RETURN 'canceled';
END $$;

-- Send a hint at the end of these messages. Those in lanes are looked at under the lock that finishing them takes, so that
-- an end is either seen by whoever looks after this, or sends a hint.
CREATE FUNCTION qo.watch(p_ids uuid[], p_until timestamptz) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM qo.cursors c WHERE c.id IN (
        SELECT k.id FROM unnest(p_ids) i CROSS JOIN LATERAL qo.place_of(i) p JOIN qo.lanes l ON l.id = p.lane_id
        JOIN qo.queues q ON q.id = l.queue_id JOIN qo.cursors k ON k.lane_id = l.id AND k.group_id = q.default_group_id)
    ORDER BY c.id FOR SHARE;
    INSERT INTO qo.watched (message_id, until) SELECT DISTINCT i, p_until FROM unnest(p_ids) i
    ON CONFLICT (message_id) DO UPDATE SET until = excluded.until;
END $$;

-- Append dead letters again as new messages, each naming the old, addressed to their group alone.
CREATE FUNCTION qo.retry_dead(p_queue text, p_group bigint, p_olds uuid[], p_news uuid[], p_now timestamptz) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz;
    v_due timestamptz;
    q qo.queues;
    d qo.dead_letters;
    v_lanes bigint[];
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN PERFORM qo.refuse_isolation(); END IF;
    IF p_now IS NOT NULL THEN PERFORM qo.check_clock(); END IF;
    SELECT * INTO STRICT q FROM qo.queues WHERE name = p_queue;
    v_due := coalesce(p_now, clock_timestamp());
    PERFORM qo.lock_keys_of(array_agg(p_queue), array_agg(l.key), array_agg(l.kind), array_agg(l.priority), array_agg(NULL::jsonb), v_due)
    FROM qo.dead_letters l WHERE l.group_id = p_group AND l.id = ANY (p_olds);
    SELECT qo.lanes_to_use(array_agg(q.id), array_agg(l.key ORDER BY o.n), array_agg(l.kind ORDER BY o.n), array_agg(l.priority ORDER BY o.n))
    INTO v_lanes FROM unnest(p_olds) WITH ORDINALITY AS o (id, n) JOIN qo.dead_letters l ON l.group_id = p_group AND l.id = o.id;
    PERFORM qo.lock_by_id(v_lanes);
    PERFORM qo.lock_idle(v_lanes, '{}');
    v_now := coalesce(p_now, clock_timestamp());
    FOR n IN 1..cardinality(p_olds) LOOP
        SELECT * INTO STRICT d FROM qo.dead_letters WHERE group_id = p_group AND id = p_olds[n];
        IF d.key IS NOT NULL THEN PERFORM qo.enter_of_key(q, v_lanes[n], d.key, v_due, v_now); END IF;
        PERFORM qo.append(ARRAY[v_lanes[n]], ARRAY[d.key IS NOT NULL], ARRAY[p_news[n]], ARRAY[d.kind], ARRAY[d.priority], ARRAY[d.payload],
                          ARRAY[d.headers], ARRAY[v_now], NULL, ARRAY[qo.life(q, NULL, NULL, v_now)], p_group, ARRAY[d.id],
                          ARRAY[q.rules ->> 'history' = 'full'], v_now);
        DELETE FROM qo.dead_letters WHERE group_id = p_group AND id = p_olds[n];
        UPDATE qo.dedupe x SET message_id = p_news[n]   -- the name of the old message is the new one's
        WHERE x.queue_id = q.id AND x.scope = 'key:' || d.key AND x.key = d.headers::json ->> 'qo-transaction' AND x.message_id = d.id;
    END LOOP;
    PERFORM qo.to_tidy(ARRAY(SELECT DISTINCT unnest(v_lanes)), v_now);
    PERFORM qo.hint(ARRAY[p_queue]);
END $$;

-- What a group has still to claim, and how old the oldest of it is. Index cursors_busy: idle lanes cost nothing. Skips, and messages
-- that are addressed to other groups, do not count.
CREATE FUNCTION qo.still_ready(p_group bigint, OUT ready bigint, OUT oldest timestamptz) LANGUAGE sql STABLE AS $$
    SELECT coalesce(sum((qo.tail_of(c.lane_id)).tail - p.position
               - (SELECT count(*) FROM qo.skips s WHERE s.cursor_id = c.id AND s."offset" >= p.position)
               - (SELECT count(*) FROM qo.addressed a WHERE a.lane_id = c.lane_id AND a."offset" >= p.position AND a.group_id <> p_group
                    AND NOT EXISTS (SELECT FROM qo.skips s WHERE s.cursor_id = c.id AND s."offset" = a."offset"))), 0)::bigint,
           min(coalesce(CASE WHEN c.keyed THEN c.head_entered_at END, (qo.head_from(c, p.position)).entered_at))
    FROM qo.cursors c CROSS JOIN LATERAL (SELECT CASE WHEN c.keyed THEN c.position ELSE qo.position_of(c) END AS position) p
    WHERE c.group_id = p_group AND c.state <> 'idle'
$$;

-- What a group has claimed and not settled: under leases that live, and under those that have run out. Index leases_to_expire.
CREATE FUNCTION qo.unsettled_under_leases(p_group bigint, p_now timestamptz, OUT running bigint, OUT lost bigint) LANGUAGE sql STABLE AS $$
    SELECT coalesce(sum(u.unsettled) FILTER (WHERE u.lives), 0)::bigint, coalesce(sum(u.unsettled) FILTER (WHERE NOT u.lives), 0)::bigint
    FROM (
        SELECT e.expires_at > p_now AS lives, CASE WHEN c.keyed THEN e.to_offset - e.from_offset
                   - (SELECT count(*) FROM qo.skips s WHERE s.cursor_id = c.id AND s."offset" >= e.from_offset AND s."offset" < e.to_offset)
               ELSE coalesce((SELECT sum(upper(gap) - lower(gap)) FROM unnest(int8multirange(int8range(e.from_offset, e.to_offset)) - e.settled) gap), 0)
                   + (SELECT count(*) FROM qo.retries r WHERE r.cursor_id = c.id AND r.token = e.token) END AS unsettled
        FROM qo.leases e JOIN qo.cursors c ON c.id = e.cursor_id WHERE e.group_id = p_group AND e.ended_at IS NULL
    ) u
$$;
