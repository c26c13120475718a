-- ack: what is said about messages of keyed lanes by their names there, as other systems acknowledge.

-- What acks by name speak of: the lane and the group's cursor in it; the message's offset, by its name or its id; the range of the lease
-- that the token names, and whether that is over or never was; the first message that the group has not passed. `doubtful`: the lease may hold another
-- message of that name, because the newest is not in it, or the name was given again. `open_lane`: by its id it is in an open lane.
CREATE FUNCTION qo.resolve(p_queues text[], p_keys text[], p_names text[], p_groups text[], p_tokens text[], p_now timestamptz)
RETURNS TABLE (number bigint, lane bigint, cursor_id bigint, place bigint, first bigint, last bigint, unsettled bigint, stale boolean,
               doubtful boolean, open_lane bigint, open_place bigint)
LANGUAGE sql STABLE AS $$
    SELECT r.n, r.lane, r.cursor_id, r.place, r.first, r.last,
           coalesce((SELECT min(x.from_offset) FROM qo.leases x WHERE x.cursor_id = r.cursor_id AND x.ended_at IS NULL), r.position),
           r.stale,
           r.first IS NOT NULL AND (NOT coalesce(r.place >= r.first AND r.place < r.last, false) OR (r.place > r.first AND coalesce(
               (SELECT m.entered_at FROM qo.messages m WHERE m.lane_id = r.lane AND m."offset" = r.place)
               - (SELECT m.entered_at FROM qo.messages m WHERE m.lane_id = r.lane AND m."offset" = r.first) >= r.win, true))),
           r.open_lane, r.open_place
    FROM (
        SELECT i.n, l.id AS lane, c.id AS cursor_id, c.position, e.first, e.last,
               make_interval(secs => (q.rules ->> 'dedupe_window')::double precision) AS win,
               i.token IS NOT NULL AND (e.token IS NULL OR e.ended_at IS NOT NULL OR e.expires_at <= p_now) AS stale,
               CASE WHEN p.lane_id = l.id THEN p."offset" END AS place,
               CASE WHEN p.lane_id <> coalesce(l.id, 0) AND o.id IS NOT NULL THEN p.lane_id END AS open_lane,
               CASE WHEN p.lane_id <> coalesce(l.id, 0) AND o.id IS NOT NULL THEN p."offset" END AS open_place
        FROM unnest(p_queues, p_keys, p_names, p_groups, p_tokens) WITH ORDINALITY AS i (queue, key, name, grp, token, n)
        LEFT JOIN qo.queues q ON q.name = i.queue
        LEFT JOIN qo.lanes l ON l.queue_id = q.id AND l.key = i.key AND l.key IS NOT NULL
        LEFT JOIN qo.groups g ON g.queue_id = q.id AND g.name = i.grp
        LEFT JOIN qo.cursors c ON c.lane_id = l.id AND c.group_id = g.id
        LEFT JOIN qo.leases e ON e.token = i.token AND e.lane_id = l.id AND e.cursor_id = c.id AND NOT e.at_delivery
        LEFT JOIN LATERAL (SELECT * FROM qo.dedupe x WHERE x.queue_id = q.id AND x.scope = 'key:' || i.key AND x.key = i.name LIMIT 1) d ON true
        LEFT JOIN LATERAL qo.place_of(coalesce(d.message_id, CASE WHEN i.name ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' THEN i.name::uuid END)) p ON true
        LEFT JOIN LATERAL (SELECT x.id FROM qo.lanes x WHERE x.id = p.lane_id AND x.queue_id = q.id AND x.key IS NULL LIMIT 1) o ON true
    ) r;
$$;

-- A lease over a lane's unsettled messages up to one of them, whoever held them: its token. The live one, if that covers it; NULL,
-- if the group has passed that message meanwhile.
CREATE FUNCTION qo.seize(p_cursor bigint, p_offset bigint, p_token text, p_seconds double precision, p_draw double precision, p_now timestamptz)
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz;
    v_from bigint;
    c qo.cursors;
    e qo.leases;
    q qo.queues;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN PERFORM qo.refuse_isolation(); END IF;
    IF p_now IS NOT NULL THEN PERFORM qo.check_clock(); END IF;
    SELECT * INTO c FROM qo.cursors WHERE id = p_cursor FOR UPDATE;
    IF NOT FOUND THEN RETURN NULL; END IF;
    v_now := coalesce(p_now, clock_timestamp());
    SELECT * INTO e FROM qo.leases l WHERE l.cursor_id = c.id AND l.ended_at IS NULL FOR UPDATE;
    IF e.expires_at <= v_now THEN
        SELECT k.* INTO STRICT q FROM qo.queues k JOIN qo.lanes l ON l.queue_id = k.id WHERE l.id = c.lane_id;
        PERFORM qo.lapse_lease(q, c, e, 2147483647, p_draw, v_now);
        SELECT * INTO STRICT c FROM qo.cursors WHERE id = p_cursor;
        e := NULL;
    END IF;
    v_from := coalesce(e.from_offset, c.position);
    IF p_offset < v_from THEN RETURN NULL; END IF;
    IF p_offset < e.to_offset THEN RETURN e.token; END IF;
    UPDATE qo.leases SET ended_at = v_now, fragile = NULL WHERE token = e.token AND lane_id = e.lane_id;
    INSERT INTO qo.leases (token, lane_id, cursor_id, group_id, first, last, from_offset, to_offset, claimed_at, expires_at)
    VALUES (p_token, c.lane_id, c.id, c.group_id, v_from, p_offset + 1, v_from, p_offset + 1, v_now, v_now + make_interval(secs => p_seconds));
    UPDATE qo.cursors SET state = 'leased', position = p_offset + 1, due_at = NULL WHERE id = c.id;
    RETURN p_token;
END $$;
