-- tidy: remove what need not be kept, in small steps.
--
-- A lane is looked at when `tidying` says so. Each look marks how far every group has settled; once a mark is `retain`
-- old, what lies below it goes. Marks are set at most eight times per `retain`.

-- How a lane's messages are held: by groups that have not settled them, and by live leases.
CREATE FUNCTION qo.standing(q qo.queues, l qo.lanes, p_tail bigint, p_now timestamptz,
                            OUT settled_to bigint, OUT unleased_to bigint, OUT group_idle_at timestamptz) LANGUAGE plpgsql STABLE AS $$
DECLARE
    c qo.cursors;
    v_active timestamptz;
    v_name text;
    v_leased bigint;
    v_claimed bigint;
    v_waiting bigint;
    v_position bigint;
    v_settled bigint;
    v_idle_at timestamptz;
BEGIN
    settled_to := p_tail;
    unleased_to := p_tail;
    FOR c IN SELECT * FROM qo.cursors k WHERE k.lane_id = l.id ORDER BY k.id LOOP
        SELECT coalesce(g.claimed_at, g.created_at), g.name INTO v_active, v_name FROM qo.groups g WHERE g.id = c.group_id;
        SELECT min(CASE WHEN c.keyed THEN e.from_offset
                        ELSE coalesce(lower(int8multirange(int8range(e.from_offset, e.to_offset)) - e.settled), e.to_offset) END)
        INTO v_leased FROM qo.leases e WHERE e.cursor_id = c.id AND e.ended_at IS NULL;
        SELECT min(r."offset") FILTER (WHERE r.token IS NOT NULL), min(r."offset") INTO v_claimed, v_waiting
        FROM qo.retries r WHERE r.cursor_id = c.id;
        unleased_to := least(unleased_to, v_leased, v_claimed);
        v_idle_at := v_active + make_interval(secs => (q.rules ->> 'group_idle')::double precision);
        CONTINUE WHEN v_idle_at <= p_now OR (v_name = 'default' AND NOT (q.rules ->> 'default_group')::boolean);
        v_position := CASE WHEN c.state = 'idle' THEN p_tail WHEN c.keyed THEN c.position ELSE qo.position_of(c) END;
        v_settled := least(v_position, v_leased, v_waiting, p_tail);
        settled_to := least(settled_to, v_settled);
        IF v_settled < p_tail THEN group_idle_at := least(group_idle_at, v_idle_at); END IF;
    END LOOP;
END $$;

-- Look at one lane, which is locked with its cursors.
CREATE FUNCTION qo.tidy_lane(q qo.queues, l qo.lanes, p_rows integer, p_now timestamptz) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    t record := qo.tail_of(l.id);
    s record := qo.standing(q, l, t.tail, p_now);
    v_retain interval := make_interval(secs => (q.rules ->> 'retain')::double precision);
    v_max_length bigint := (q.rules ->> 'max_length')::bigint;
    v_max_age interval := make_interval(secs => (q.rules ->> 'max_age')::double precision);
    v_settled bigint;
    v_forced bigint := l.first;
    v_floor bigint;
    v_step bigint;
    v_next timestamptz;
BEGIN
    -- A mark says what was settled then; a seek, or a group that came later, may have gone back since.
    v_settled := CASE WHEN v_retain = interval '0' THEN s.settled_to ELSE least(s.settled_to, greatest(l.first,
        (SELECT max(m."offset") FROM qo.marks m WHERE m.lane_id = l.id AND m.at + v_retain <= p_now))) END;
    IF v_max_length IS NOT NULL THEN v_forced := greatest(v_forced, t.tail - v_max_length); END IF;
    IF v_max_age IS NOT NULL AND l.first < t.tail THEN
        v_forced := greatest(v_forced, qo.first_entered(l.id, l.first, t.tail, p_now - v_max_age + interval '1 microsecond'));
    END IF;
    v_floor := greatest(least(greatest(v_settled, v_forced), s.unleased_to), l.first);
    v_step := least(v_floor, l.first + p_rows);
    IF v_step > l.first THEN PERFORM qo.remove_below(q, l, v_step, t.tail, t.entered_at, p_now); END IF;
    IF v_step = t.tail AND NOT EXISTS (SELECT FROM qo.cursors c JOIN qo.leases e ON e.cursor_id = c.id AND e.ended_at IS NULL
                                       WHERE c.lane_id = l.id) THEN
        -- An empty lane that nobody holds goes; its key starts anew when it comes back.
        DELETE FROM qo.skips k USING qo.cursors c WHERE c.lane_id = l.id AND k.cursor_id = c.id;
        DELETE FROM qo.marks m WHERE m.lane_id = l.id;
        DELETE FROM qo.cursors c WHERE c.lane_id = l.id;
        DELETE FROM qo.lanes x WHERE x.id = l.id;
        DELETE FROM qo.tidying x WHERE x.lane_id = l.id;
        RETURN;
    END IF;
    v_next := least(CASE WHEN v_step < v_floor THEN p_now END, qo.mark(l, s.settled_to, v_retain, p_now), s.group_idle_at,
                    CASE WHEN v_max_age IS NOT NULL AND v_step < t.tail THEN greatest(p_now + interval '1 s', v_max_age
                        + (SELECT m.entered_at FROM qo.messages m WHERE m.lane_id = l.id AND m."offset" = v_step)) END);
    IF v_next IS NULL THEN
        DELETE FROM qo.tidying x WHERE x.lane_id = l.id;
    ELSE
        UPDATE qo.tidying x SET at = v_next WHERE x.lane_id = l.id;
    END IF;
END $$;

-- Note how far all groups have settled a lane. Answers when it is to be looked at for that reason.
CREATE FUNCTION qo.mark(l qo.lanes, p_settled bigint, p_retain interval, p_now timestamptz) RETURNS timestamptz LANGUAGE plpgsql AS $$
DECLARE
    v_first timestamptz;
    v_last timestamptz;
    v_offset bigint;
BEGIN
    SELECT min(m.at), max(m.at), max(m."offset") INTO v_first, v_last, v_offset FROM qo.marks m
    WHERE m.lane_id = l.id AND m.at + p_retain > p_now;
    IF p_settled > coalesce(v_offset, (SELECT first FROM qo.lanes x WHERE x.id = l.id)) AND p_retain > interval '0' THEN
        IF v_last + p_retain / 8 > p_now THEN
            RETURN least(v_last + p_retain / 8, v_first + p_retain);
        END IF;
        INSERT INTO qo.marks (lane_id, at, "offset") VALUES (l.id, p_now, p_settled)
        ON CONFLICT (lane_id, at) DO UPDATE SET "offset" = excluded."offset";
        v_first := coalesce(v_first, p_now);
    END IF;
    RETURN v_first + p_retain;
END $$;

-- Remove a lane's messages below an offset, for every group.
CREATE FUNCTION qo.remove_below(q qo.queues, l qo.lanes, p_floor bigint, p_tail bigint, p_entered timestamptz, p_now timestamptz)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    c qo.cursors;
    v_dropped bigint;
    v_position bigint;
    v_ids uuid[];
BEGIN
    FOR c IN SELECT * FROM qo.cursors k WHERE k.lane_id = l.id ORDER BY k.id LOOP
        DELETE FROM qo.retries r WHERE r.cursor_id = c.id AND r."offset" < p_floor AND r.token IS NULL;
        GET DIAGNOSTICS v_dropped = ROW_COUNT;
        v_position := CASE WHEN c.state = 'idle' THEN p_tail WHEN c.keyed THEN c.position ELSE qo.position_of(c) END;
        v_dropped := v_dropped + greatest(p_floor - greatest(v_position, l.first), 0);
        IF v_dropped > 0 THEN UPDATE qo.cursors k SET missed = missed + v_dropped WHERE k.id = c.id; END IF;
        IF v_position < p_floor THEN
            IF NOT c.keyed THEN UPDATE qo.cursors k SET position = p_floor WHERE k.id = c.id RETURNING * INTO c; END IF;
            PERFORM qo.rest(c, p_floor, 0, 0, NULL, p_now);
            PERFORM qo.tell_of_head(q, c);
        END IF;
        DELETE FROM qo.skips s WHERE s.cursor_id = c.id AND s."offset" < p_floor;
    END LOOP;
    IF EXISTS (SELECT FROM qo.watched) THEN
        WITH gone AS (DELETE FROM qo.watched w USING qo.messages m WHERE m.lane_id = l.id AND m."offset" < p_floor AND w.message_id = m.id
                      RETURNING w.message_id)
        SELECT array_agg(message_id) INTO v_ids FROM gone;
        PERFORM qo.tell_finished(v_ids);
    END IF;
    IF q.rules ->> 'history' = 'full' OR EXISTS (SELECT FROM qo.events) THEN
        DELETE FROM qo.events v USING qo.messages m WHERE m.lane_id = l.id AND m."offset" < p_floor AND v.message_id = m.id;
    END IF;
    UPDATE qo.lanes x SET first = p_floor, floor = CASE WHEN p_floor = p_tail THEN p_tail ELSE floor END,
        floor_entered_at = CASE WHEN p_floor = p_tail THEN p_entered ELSE floor_entered_at END
    WHERE x.id = l.id;
    DELETE FROM qo.messages m WHERE m.lane_id = l.id AND m."offset" < p_floor;
    DELETE FROM qo.id_runs i WHERE i.lane_id = l.id AND i."offset" < p_floor
        AND i."offset" + qo.id_number(i.last) - qo.id_number(i.first) < p_floor;
    DELETE FROM qo.addressed a WHERE a.lane_id = l.id AND a."offset" < p_floor;
    DELETE FROM qo.outcomes o WHERE o.lane_id = l.id AND o."offset" < p_floor;
    DELETE FROM qo.marks m WHERE m.lane_id = l.id AND m."offset" <= p_floor;
END $$;

-- One bounded step over the lanes that are due. Answers whether there may be more.
CREATE FUNCTION qo.tidy_lanes(p_lanes integer, p_rows integer, p_now timestamptz) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_due bigint[] := ARRAY(SELECT t.lane_id FROM qo.tidying t WHERE t.at <= v_now ORDER BY t.at LIMIT p_lanes);
    v_lanes bigint[];
    l qo.lanes;
    q qo.queues;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN PERFORM qo.refuse_isolation(); END IF;
    IF p_now IS NOT NULL THEN PERFORM qo.check_clock(); END IF;
    IF cardinality(v_due) = 0 THEN RETURN false; END IF;
    v_lanes := ARRAY(SELECT x.id FROM qo.lanes x WHERE x.id = ANY (v_due) ORDER BY x.id FOR UPDATE SKIP LOCKED);
    DELETE FROM qo.tidying t WHERE t.lane_id = ANY (v_due) AND NOT EXISTS (SELECT FROM qo.lanes x WHERE x.id = t.lane_id);
    PERFORM FROM qo.cursors c WHERE c.lane_id = ANY (v_lanes) ORDER BY c.id FOR UPDATE;
    FOR l IN SELECT * FROM qo.lanes x WHERE x.id = ANY (v_lanes) ORDER BY x.id LOOP
        SELECT * INTO q FROM qo.queues k WHERE k.id = l.queue_id;
        CONTINUE WHEN NOT FOUND;  -- its queue is being removed, and it with it
        PERFORM qo.tidy_lane(q, l, p_rows, v_now);
    END LOOP;
    RETURN cardinality(v_lanes) > 0 AND EXISTS (SELECT FROM qo.tidying t WHERE t.at <= v_now);
END $$;

-- Forget what tokens settled, ten minutes after their last lease ended; nonces after an hour; dedupe keys that are free.
-- An open cursor whose newest lease goes keeps its place as a floor. Answers whether there may be more.
CREATE FUNCTION qo.tidy_rest(p_rows integer, p_now timestamptz) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_tokens text[];
    v_more boolean;
    v_count bigint;
    d qo.dedupe;
    q qo.queues;
    v_finished boolean;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN PERFORM qo.refuse_isolation(); END IF;
    IF p_now IS NOT NULL THEN PERFORM qo.check_clock(); END IF;
    v_tokens := ARRAY(SELECT DISTINCT x.token FROM (SELECT e.token FROM qo.leases e WHERE e.ended_at <= v_now - interval '{keep_settled}'
                      AND e.ended_at IS NOT NULL ORDER BY e.ended_at LIMIT p_rows) x
                      WHERE NOT EXISTS (SELECT FROM qo.leases o WHERE o.token = x.token
                                        AND (o.ended_at IS NULL OR o.ended_at > v_now - interval '{keep_settled}')));
    v_more := cardinality(v_tokens) >= p_rows;
    IF cardinality(v_tokens) > 0 THEN
        PERFORM FROM qo.cursors c WHERE NOT c.keyed AND c.id IN (SELECT e.cursor_id FROM qo.leases e WHERE e.token = ANY (v_tokens))
        ORDER BY c.id FOR UPDATE;
        UPDATE qo.cursors c SET position = qo.position_of(c) WHERE NOT c.keyed
            AND c.id IN (SELECT e.cursor_id FROM qo.leases e WHERE e.token = ANY (v_tokens) AND e.last = (
                SELECT max(n.last) FROM qo.leases n WHERE n.cursor_id = e.cursor_id AND n.epoch = e.epoch));
        DELETE FROM qo.settlements s WHERE s.token = ANY (v_tokens);
        DELETE FROM qo.leases e WHERE e.token = ANY (v_tokens);
    END IF;
    DELETE FROM qo.nonces n WHERE n.nonce IN (SELECT o.nonce FROM qo.nonces o WHERE o.at <= v_now - interval '{keep_nonces}' ORDER BY o.at LIMIT p_rows);
    DELETE FROM qo.watched w WHERE w.message_id IN (SELECT o.message_id FROM qo.watched o WHERE o.until <= v_now ORDER BY o.until LIMIT p_rows);
    DELETE FROM qo.intake i WHERE i.id IN (SELECT o.id FROM qo.intake o JOIN qo.queues k ON k.name = o.queue
        WHERE o.canceled_at IS NOT NULL AND o.canceled_at + make_interval(secs => (k.rules ->> 'retain')::double precision) <= v_now
        ORDER BY o.canceled_at LIMIT p_rows);
    GET DIAGNOSTICS v_count = ROW_COUNT;
    v_more := v_more OR v_count = p_rows;
    FOR d IN SELECT * FROM qo.dedupe x WHERE x.checked_at <= v_now ORDER BY x.queue_id, x.scope, x.key LIMIT p_rows FOR UPDATE SKIP LOCKED LOOP
        SELECT * INTO q FROM qo.queues k WHERE k.id = d.queue_id;
        v_finished := q.id IS NULL OR d.until IS NOT NULL OR coalesce(qo.is_finished(q, d.message_id, v_now), false);
        IF v_finished AND q.id IS NOT NULL AND d.scope <> '' AND ((qo.place_of(d.message_id)).lane_id IS NOT NULL
                OR EXISTS (SELECT FROM qo.intake i WHERE i.id = d.message_id)) THEN     -- it is a name, too
            UPDATE qo.dedupe x SET checked_at = v_now + greatest(interval '{check_dedupe}', make_interval(secs => (q.rules ->> 'retain')::double precision))
            WHERE x.queue_id = d.queue_id AND x.scope = d.scope AND x.key = d.key;
        ELSIF v_finished THEN
            DELETE FROM qo.dedupe x WHERE x.queue_id = d.queue_id AND x.scope = d.scope AND x.key = d.key;
        ELSE
            UPDATE qo.dedupe x SET checked_at = v_now + interval '{check_dedupe}' WHERE x.queue_id = d.queue_id AND x.scope = d.scope AND x.key = d.key;
        END IF;
    END LOOP;
    DELETE FROM qo.traces t WHERE t.number IN (SELECT o.number FROM qo.traces o WHERE o.created_at <= v_now - interval '{keep_traces}'
                                               ORDER BY o.created_at LIMIT p_rows);
    RETURN v_more;
END $$;

-- When there will be something to tidy; NULL: nothing to come.
CREATE FUNCTION qo.next_tidy(p_now timestamptz) RETURNS timestamptz LANGUAGE sql STABLE AS $$
    SELECT least((SELECT min(at) FROM qo.tidying),
                 (SELECT min(ended_at) FROM qo.leases WHERE ended_at IS NOT NULL AND ended_at > p_now - interval '{keep_settled}') + interval '{keep_settled}',
                 (SELECT min(at) FROM qo.nonces) + interval '{keep_nonces}',
                 (SELECT min(until) FROM qo.watched),
                 (SELECT min(i.canceled_at + make_interval(secs => (k.rules ->> 'retain')::double precision))
                  FROM qo.intake i JOIN qo.queues k ON k.name = i.queue WHERE i.canceled_at IS NOT NULL),
                 (SELECT min(checked_at) FROM qo.dedupe),
                 (SELECT min(created_at) FROM qo.traces) + interval '{keep_traces}');
$$;

-- Remove every message of a queue, for every group. Offsets go on where they were. How many there were.
CREATE FUNCTION qo.purge(p_queue text, p_now timestamptz) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz;
    v_count bigint;
    v_lanes bigint[];
    v_cursors bigint[];
    v_ids uuid[];
    q qo.queues;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN PERFORM qo.refuse_isolation(); END IF;
    IF p_now IS NOT NULL THEN PERFORM qo.check_clock(); END IF;
    SELECT * INTO STRICT q FROM qo.queues WHERE name = p_queue FOR UPDATE;
    v_lanes := ARRAY(SELECT id FROM qo.lanes WHERE queue_id = q.id ORDER BY id FOR UPDATE);
    v_cursors := ARRAY(SELECT id FROM qo.cursors WHERE lane_id = ANY (v_lanes) ORDER BY id FOR UPDATE);
    v_now := coalesce(p_now, clock_timestamp());
    SELECT count(*) INTO v_count FROM qo.messages WHERE lane_id = ANY (v_lanes);
    v_count := v_count + (SELECT count(*) FROM qo.intake WHERE queue = p_queue AND canceled_at IS NULL);
    UPDATE qo.leases SET ended_at = least(v_now, expires_at), fragile = NULL WHERE lane_id = ANY (v_lanes) AND ended_at IS NULL;
    UPDATE qo.lanes l SET first = t.tail, floor = t.tail, floor_entered_at = coalesce(t.entered_at, l.floor_entered_at)
    FROM (SELECT x.id, (qo.tail_of(x.id)).* FROM qo.lanes x WHERE x.id = ANY (v_lanes)) t WHERE t.id = l.id;
    DELETE FROM qo.events v USING qo.messages m WHERE m.lane_id = ANY (v_lanes) AND v.message_id = m.id;
    DELETE FROM qo.events v USING qo.intake i WHERE i.queue = p_queue AND v.message_id = i.id;
    WITH gone AS (DELETE FROM qo.watched w WHERE w.message_id IN (SELECT m.id FROM qo.messages m WHERE m.lane_id = ANY (v_lanes)
                  UNION ALL SELECT i.id FROM qo.intake i WHERE i.queue = p_queue) RETURNING w.message_id)
    SELECT array_agg(message_id) INTO v_ids FROM gone;
    PERFORM qo.tell_finished(v_ids);
    DELETE FROM qo.messages WHERE lane_id = ANY (v_lanes);
    DELETE FROM qo.id_runs WHERE lane_id = ANY (v_lanes);
    DELETE FROM qo.outcomes WHERE lane_id = ANY (v_lanes);
    DELETE FROM qo.addressed WHERE lane_id = ANY (v_lanes);
    DELETE FROM qo.marks WHERE lane_id = ANY (v_lanes);
    DELETE FROM qo.retries WHERE cursor_id = ANY (v_cursors);
    DELETE FROM qo.skips WHERE cursor_id = ANY (v_cursors);
    DELETE FROM qo.intake WHERE queue = p_queue;
    UPDATE qo.cursors c SET state = 'idle', attempts = 0, losses = 0, head_entered_at = NULL, due_at = NULL, position = l.floor,
        epoch = epoch + 1 FROM qo.lanes l WHERE c.id = ANY (v_cursors) AND l.id = c.lane_id;
    IF cardinality(v_lanes) > 0 THEN PERFORM qo.to_tidy(v_lanes, v_now); END IF;
    PERFORM qo.hint(NULL);
    RETURN v_count;
END $$;

-- Remove a group with its cursors, leases, retries, skips and dead letters.
CREATE FUNCTION qo.drop_group(p_group bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_cursors bigint[] := ARRAY(SELECT id FROM qo.cursors WHERE group_id = p_group ORDER BY id FOR UPDATE);
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN PERFORM qo.refuse_isolation(); END IF;
    DELETE FROM qo.settlements s USING qo.leases e WHERE e.group_id = p_group AND s.token = e.token AND s.lane_id = e.lane_id;
    DELETE FROM qo.leases WHERE group_id = p_group;
    DELETE FROM qo.retries WHERE cursor_id = ANY (v_cursors);
    DELETE FROM qo.skips WHERE cursor_id = ANY (v_cursors);
    DELETE FROM qo.cursors WHERE id = ANY (v_cursors);
    DELETE FROM qo.dead_letters WHERE group_id = p_group;
    DELETE FROM qo.groups WHERE id = p_group;
END $$;

-- Remove a queue and all that is in it. Whether there was one.
CREATE FUNCTION qo.delete_queue(p_queue text, p_now timestamptz) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    q qo.queues;
    v_lanes bigint[];
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN PERFORM qo.refuse_isolation(); END IF;
    IF p_now IS NOT NULL THEN PERFORM qo.check_clock(); END IF;
    SELECT * INTO q FROM qo.queues WHERE name = p_queue FOR UPDATE;
    IF NOT FOUND THEN RETURN false; END IF;
    PERFORM FROM qo.dedupe WHERE queue_id = q.id ORDER BY scope, key FOR UPDATE;
    PERFORM qo.purge(p_queue, p_now);
    PERFORM qo.drop_group(g.id) FROM qo.groups g WHERE g.queue_id = q.id;
    v_lanes := ARRAY(SELECT id FROM qo.lanes WHERE queue_id = q.id);
    DELETE FROM qo.settlements WHERE lane_id = ANY (v_lanes);
    DELETE FROM qo.leases WHERE lane_id = ANY (v_lanes);
    DELETE FROM qo.tidying WHERE lane_id = ANY (v_lanes);
    DELETE FROM qo.lanes WHERE id = ANY (v_lanes);
    DELETE FROM qo.dedupe WHERE queue_id = q.id;
    DELETE FROM qo.dead_letters WHERE queue_id = q.id;
    DELETE FROM qo.traces WHERE queue = q.name;
    DELETE FROM qo.queues WHERE id = q.id;
    RETURN true;
END $$;
