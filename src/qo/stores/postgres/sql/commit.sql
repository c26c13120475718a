-- commit: what is said about messages of keyed lanes by their names there, as other systems acknowledge.

-- What commits speak of: the lane and the group's cursor in it; the message's offset, under a lease one of that lease if there
-- is one; the range of the lease that the token names; whether the group has passed the message; whether that lease is over or
-- never was.
CREATE FUNCTION qo.resolve(p_queues text[], p_keys text[], p_names text[], p_groups text[], p_tokens text[], p_now timestamptz)
RETURNS TABLE (number bigint, lane bigint, cursor_id bigint, place bigint, first bigint, last bigint, passed boolean, stale boolean)
LANGUAGE sql STABLE AS $$
    SELECT r.n, r.lane, r.cursor_id, r.place, r.first, r.last,
           r.place < coalesce((SELECT min(x.from_offset) FROM qo.leases x WHERE x.cursor_id = r.cursor_id AND x.ended_at IS NULL), r.position),
           r.stale
    FROM (
        SELECT i.n, l.id AS lane, c.id AS cursor_id, c.position, e.first, e.last,
               i.token IS NOT NULL AND (e.token IS NULL OR e.ended_at IS NOT NULL OR e.expires_at <= p_now) AS stale,
               CASE WHEN e.token IS NOT NULL AND NOT coalesce(p."offset" >= e.first AND p."offset" < e.last, false)
                    THEN coalesce((SELECT m."offset" FROM qo.messages m WHERE m.lane_id = l.id AND m."offset" >= e.first AND m."offset" < e.last
                                   AND m.headers IS NOT NULL AND m.headers::json ->> 'qo-transaction' = i.name LIMIT 1), p."offset")
                    ELSE p."offset" END AS place
        FROM unnest(p_queues, p_keys, p_names, p_groups, p_tokens) WITH ORDINALITY AS i (queue, key, name, grp, token, n)
        LEFT JOIN qo.queues q ON q.name = i.queue
        LEFT JOIN qo.lanes l ON l.queue_id = q.id AND l.key = i.key AND l.key IS NOT NULL
        LEFT JOIN qo.groups g ON g.queue_id = q.id AND g.name = i.grp
        LEFT JOIN qo.cursors c ON c.lane_id = l.id AND c.group_id = g.id
        LEFT JOIN qo.leases e ON e.token = i.token AND e.lane_id = l.id AND e.cursor_id = c.id AND NOT e.at_delivery
        LEFT JOIN LATERAL (SELECT * FROM qo.dedupe x WHERE x.queue_id = q.id AND x.scope = 'key:' || i.key AND x.key = i.name LIMIT 1) d ON true
        LEFT JOIN LATERAL (SELECT o."offset" FROM qo.place_of(d.message_id) o WHERE o.lane_id = l.id) p ON d.message_id IS NOT NULL
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
    INSERT INTO qo.leases (token, lane_id, cursor_id, group_id, epoch, first, last, from_offset, to_offset, claimed_at, expires_at)
    VALUES (p_token, c.lane_id, c.id, c.group_id, c.epoch, v_from, p_offset + 1, v_from, p_offset + 1, v_now, v_now + make_interval(secs => p_seconds));
    UPDATE qo.cursors SET state = 'leased', position = p_offset + 1, due_at = NULL WHERE id = c.id;
    RETURN p_token;
END $$;
