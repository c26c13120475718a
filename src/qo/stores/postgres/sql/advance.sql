-- What time does to a group: leases run out, backoffs and lives end. Each effect is worked out from its own deadline, so
-- that one who comes late finds what an early one would have left.

-- The lease under which a message is unsettled, live or run out.
CREATE FUNCTION qo.lease_over(c qo.cursors, p_offset bigint) RETURNS SETOF qo.leases LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_token text;
BEGIN
    SELECT r.token INTO v_token FROM qo.retries r WHERE r.cursor_id = c.id AND r."offset" = p_offset;
    IF FOUND THEN
        RETURN QUERY SELECT * FROM qo.leases e WHERE e.token = v_token AND e.lane_id = c.lane_id;
    ELSIF NOT c.keyed OR NOT EXISTS (SELECT FROM qo.skips s WHERE s.cursor_id = c.id AND s."offset" = p_offset) THEN
        RETURN QUERY SELECT * FROM qo.leases e WHERE e.cursor_id = c.id AND e.ended_at IS NULL AND e.from_offset <= p_offset
            AND e.to_offset > p_offset AND NOT e.settled @> p_offset LIMIT 1;
    END IF;
END $$;

-- Give back what a lost lease did not settle, at most so many messages. The caller has locked its cursor.
-- Answers how many that were.
CREATE FUNCTION qo.lapse_lease(q qo.queues, c qo.cursors, e qo.leases, p_room integer, p_draw double precision, p_now timestamptz)
RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    v_offset bigint;
    v_attempts integer;
    v_losses integer;
    v_given integer := 0;
    v_marked int8multirange := e.settled;
BEGIN
    IF c.keyed THEN
        PERFORM qo.lapse_run(q, c, e, p_draw, p_now);
        RETURN 1;
    END IF;
    FOR v_offset, v_attempts, v_losses IN SELECT r."offset", r.attempts, r.losses FROM qo.retries r
            WHERE r.cursor_id = c.id AND r.token = e.token ORDER BY r."offset" LIMIT p_room LOOP
        PERFORM qo.give_back(q, c, e, v_offset, v_attempts, v_losses, false, p_draw, p_now);
        v_given := v_given + 1;
    END LOOP;
    FOR v_offset IN SELECT o FROM unnest(int8multirange(int8range(e.from_offset, e.to_offset)) - e.settled) gap,
            generate_series(lower(gap), upper(gap) - 1) o ORDER BY o LIMIT p_room - v_given LOOP
        PERFORM qo.give_back(q, c, e, v_offset, 0, 0, true, p_draw, p_now);
        v_marked := v_marked + int8multirange(int8range(v_offset, v_offset + 1));
        v_given := v_given + 1;
    END LOOP;
    IF v_marked @> int8range(e.from_offset, e.to_offset)
            AND NOT EXISTS (SELECT FROM qo.retries r WHERE r.cursor_id = c.id AND r.token = e.token) THEN
        UPDATE qo.leases SET ended_at = e.expires_at, fragile = NULL WHERE token = e.token AND lane_id = e.lane_id;
    ELSE
        UPDATE qo.leases SET settled = v_marked WHERE token = e.token AND lane_id = e.lane_id;
    END IF;
    RETURN greatest(v_given, 1);
END $$;

-- What becomes of a message whose lease was lost: NULL if it is delivered again, else its end.
CREATE FUNCTION qo.fate_of_loss(q qo.queues, e qo.leases, p_offset bigint, p_losses integer, p_draw double precision,
                                OUT ending text, OUT again_at timestamptz) LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_max integer := (q.rules ->> 'max_lost')::integer;
BEGIN
    IF p_offset = ANY (e.canceled) THEN
        ending := 'canceled';
    ELSIF v_max > 0 AND p_losses >= v_max THEN
        ending := 'lost';
    ELSIF EXISTS (SELECT FROM qo.messages m WHERE m.lane_id = e.lane_id AND m."offset" = p_offset
                  AND m.expires_at <= e.expires_at) THEN
        ending := 'expired';
    ELSE
        again_at := e.expires_at + CASE WHEN p_losses >= {fragile_losses} THEN qo.rest_after(q.rules, p_losses - 1, p_draw) ELSE interval '0' END;
    END IF;
END $$;

-- The end of one message of a lost lease.
CREATE FUNCTION qo.end_lost(q qo.queues, c qo.cursors, e qo.leases, p_offset bigint, p_attempts integer, p_losses integer,
                            p_ending text, p_now timestamptz) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_error text := CASE WHEN p_ending = 'lost' THEN format('its lease ran out %s times', p_losses) END;
BEGIN
    IF p_ending = 'lost' AND (q.rules ->> 'dead_letters')::boolean THEN
        PERFORM qo.bury(q.id, c.group_id, c.lane_id, p_offset, p_attempts, p_losses, 'lost', v_error, p_now);
    END IF;
    PERFORM qo.finish(q, c.group_id, c.lane_id, ARRAY[p_offset],
                      ARRAY[CASE WHEN p_ending = 'lost' THEN 'failed' ELSE 'canceled' END],
                      ARRAY[CASE WHEN p_ending = 'lost' THEN greatest(p_attempts, 1) ELSE p_attempts + 1 END],
                      ARRAY[p_ending], ARRAY[v_error], '{}', e.owner,
                      ARRAY[(e.started ->> p_offset::text)::timestamptz], p_now);
END $$;

-- Give back one message of an open lane, from a lost lease.
CREATE FUNCTION qo.give_back(q qo.queues, c qo.cursors, e qo.leases, p_offset bigint, p_attempts integer, p_losses integer,
                             p_fresh boolean, p_draw double precision, p_now timestamptz) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    f record := qo.fate_of_loss(q, e, p_offset, p_losses + 1, p_draw);
BEGIN
    IF f.ending IS NULL THEN
        PERFORM qo.wait(c, p_offset, p_attempts, p_losses + 1, f.again_at, p_fresh);
        PERFORM qo.note_event(q, c.group_id, c.lane_id, p_offset, 'queued', format('lease lost (%s)', p_losses + 1), p_now);
    ELSE
        DELETE FROM qo.retries WHERE cursor_id = c.id AND "offset" = p_offset AND NOT p_fresh;
        PERFORM qo.end_lost(q, c, e, p_offset, p_attempts, p_losses + 1, f.ending, p_now);
    END IF;
END $$;

-- Have a message of an open lane wait for its next attempt.
CREATE FUNCTION qo.wait(c qo.cursors, p_offset bigint, p_attempts integer, p_losses integer, p_due timestamptz, p_fresh boolean)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF p_fresh THEN
        INSERT INTO qo.retries (cursor_id, "offset", group_id, attempts, losses, due_at, entered_at)
        SELECT c.id, p_offset, c.group_id, p_attempts, p_losses, p_due, m.entered_at FROM qo.messages m
        WHERE m.lane_id = c.lane_id AND m."offset" = p_offset;
    ELSE
        UPDATE qo.retries SET token = NULL, attempts = p_attempts, losses = p_losses, due_at = p_due
        WHERE cursor_id = c.id AND "offset" = p_offset;
    END IF;
END $$;

-- A keyed lane's cursor goes back to the first unsettled message, which alone counts the loss.
CREATE FUNCTION qo.lapse_run(q qo.queues, c qo.cursors, e qo.leases, p_draw double precision, p_now timestamptz)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_head bigint := e.from_offset;
    f record := qo.fate_of_loss(q, e, e.from_offset, c.losses + 1, p_draw);
BEGIN
    UPDATE qo.leases SET ended_at = e.expires_at, fragile = NULL WHERE token = e.token AND lane_id = e.lane_id;
    PERFORM qo.skip_canceled(q, c, e, v_head + 1, e.to_offset, p_now);
    IF f.ending IS NULL THEN
        PERFORM qo.rest(c, v_head, c.attempts, c.losses + 1, f.again_at, p_now);
        PERFORM qo.note_event(q, c.group_id, c.lane_id, v_head, 'queued', format('lease lost (%s)', c.losses + 1), p_now);
    ELSE
        PERFORM qo.end_lost(q, c, e, v_head, c.attempts, c.losses + 1, f.ending, p_now);
        PERFORM qo.rest(c, v_head + 1, 0, 0, NULL, p_now);
    END IF;
END $$;

-- Messages of a run that go back with the cancel flag on become skips.
CREATE FUNCTION qo.skip_canceled(q qo.queues, c qo.cursors, e qo.leases, p_from bigint, p_to bigint, p_now timestamptz)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_gone bigint[] := ARRAY(SELECT DISTINCT o FROM unnest(e.canceled) o WHERE o >= p_from AND o < p_to ORDER BY o);
    v_count integer := cardinality(v_gone);
BEGIN
    IF v_count = 0 THEN RETURN; END IF;
    INSERT INTO qo.skips (cursor_id, "offset") SELECT c.id, o FROM unnest(v_gone) o ON CONFLICT DO NOTHING;
    PERFORM qo.finish(q, c.group_id, c.lane_id, v_gone, array_fill('canceled'::text, ARRAY[v_count]),
                      array_fill(1, ARRAY[v_count]), array_fill('canceled'::text, ARRAY[v_count]), '{}', '{}', e.owner, '{}', p_now);
END $$;

-- Bring groups up to date, up to a number of messages: give back what lost leases held, end the backoffs that are over,
-- cancel heads whose life is over. Cursors are locked by id. Answers whether something is left to do.
CREATE FUNCTION qo.lapse(p_groups bigint[], p_room integer, p_draw double precision, p_now timestamptz) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_room integer := p_room;
    v_due bigint[];
    v_cursors bigint[];
    v_queues text[] := '{}';
    v_lanes bigint[] := '{}';
    c qo.cursors;
    e qo.leases;
    q qo.queues;
    m qo.messages;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN PERFORM qo.refuse_isolation(); END IF;
    IF p_now IS NOT NULL THEN PERFORM qo.check_clock(); END IF;
    v_due := ARRAY(SELECT id FROM qo.cursors WHERE group_id = ANY (p_groups) AND due_at <= v_now AND due_at IS NOT NULL AND keyed
                   ORDER BY due_at LIMIT p_room);
    v_cursors := v_due || ARRAY(SELECT cursor_id FROM qo.leases WHERE group_id = ANY (p_groups) AND ended_at IS NULL
                                AND expires_at <= v_now ORDER BY expires_at, lane_id LIMIT p_room);
    IF cardinality(v_cursors) = 0 THEN RETURN false; END IF;
    PERFORM FROM qo.cursors WHERE id = ANY (v_cursors) ORDER BY id FOR UPDATE;
    FOR e IN SELECT * FROM qo.leases l WHERE l.cursor_id = ANY (v_cursors) AND l.ended_at IS NULL AND l.expires_at <= v_now
             ORDER BY l.expires_at, l.lane_id LIMIT p_room FOR UPDATE SKIP LOCKED LOOP  -- one that is being extended is left alone
        SELECT * INTO STRICT c FROM qo.cursors WHERE id = e.cursor_id;
        SELECT k.* INTO STRICT q FROM qo.queues k JOIN qo.lanes l ON l.queue_id = k.id WHERE l.id = e.lane_id;
        v_room := v_room - qo.lapse_lease(q, c, e, v_room, p_draw, v_now);
        v_queues := v_queues || q.name;
        v_lanes := v_lanes || e.lane_id;
        EXIT WHEN v_room <= 0;
    END LOOP;
    -- What came back may have outlived its time to live already.
    v_due := ARRAY(SELECT id FROM qo.cursors WHERE id = ANY (v_cursors) AND due_at <= v_now AND keyed ORDER BY due_at);
    FOR c IN SELECT * FROM qo.cursors WHERE id = ANY (v_due) ORDER BY due_at LOOP
        SELECT k.* INTO STRICT q FROM qo.queues k JOIN qo.lanes l ON l.queue_id = k.id WHERE l.id = c.lane_id;
        v_queues := v_queues || q.name;
        v_lanes := v_lanes || c.lane_id;
        IF c.state = 'blocked' THEN
            SELECT * INTO STRICT m FROM qo.messages WHERE lane_id = c.lane_id AND "offset" = c.position;
            UPDATE qo.cursors SET state = 'ready', due_at = m.expires_at WHERE id = c.id RETURNING * INTO c;
        END IF;
        WHILE c.state = 'ready' AND c.due_at <= v_now LOOP
            PERFORM qo.finish(q, c.group_id, c.lane_id, ARRAY[c.position], ARRAY['canceled'], ARRAY[c.attempts], ARRAY['expired'],
                              '{}', '{}', NULL, '{}', v_now);
            PERFORM qo.rest(c, c.position + 1, 0, 0, NULL, v_now);
            SELECT * INTO STRICT c FROM qo.cursors WHERE id = c.id;
        END LOOP;
    END LOOP;
    PERFORM qo.hint(ARRAY(SELECT DISTINCT unnest(v_queues)));
    PERFORM qo.to_tidy(v_lanes, v_now);
    RETURN v_room <= 0 OR EXISTS (SELECT FROM qo.cursors WHERE group_id = ANY (p_groups) AND due_at <= v_now AND due_at IS NOT NULL AND keyed)
        OR EXISTS (SELECT FROM qo.leases WHERE group_id = ANY (p_groups) AND ended_at IS NULL AND expires_at <= v_now);
END $$;

-- Give back the lease that has run out over one message of the default group, because a push must know how it stands.
CREATE FUNCTION qo.lapse_over(p_id uuid, p_draw double precision, p_now timestamptz) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz;
    v_place record := qo.place_of(p_id);
    q qo.queues;
    c qo.cursors;
    e qo.leases;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN PERFORM qo.refuse_isolation(); END IF;
    IF p_now IS NOT NULL THEN PERFORM qo.check_clock(); END IF;
    SELECT k.* INTO q FROM qo.queues k WHERE k.id = (SELECT l.queue_id FROM qo.lanes l WHERE l.id = v_place.lane_id);
    SELECT * INTO c FROM qo.cursors WHERE lane_id = v_place.lane_id AND group_id = q.default_group_id FOR UPDATE;
    v_now := coalesce(p_now, clock_timestamp());
    SELECT * INTO e FROM qo.lease_over(c, v_place."offset");
    SELECT * INTO e FROM qo.leases l WHERE l.token = e.token AND l.lane_id = e.lane_id FOR UPDATE;
    IF e.expires_at <= v_now THEN
        PERFORM qo.lapse_lease(q, c, e, 2147483647, p_draw, v_now);
        PERFORM qo.hint(ARRAY[q.name]);
        PERFORM qo.to_tidy(ARRAY[e.lane_id], v_now);
    END IF;
END $$;
