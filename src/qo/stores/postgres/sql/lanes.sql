-- Queues, lanes and cursors coming into being, and cursors coming to rest.

-- Every verb locks, then looks, in statements of their own. In any other isolation level than READ COMMITTED it would look at
-- what was there before it waited for the lock: two could lease the same messages. So each verb asks first.
CREATE FUNCTION qo.refuse_isolation() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'QO005', MESSAGE = format(
        'qo: isolation level is %s, and must be read committed', current_setting('transaction_isolation'));
END $$;

-- Tests set the time. A caller that has the rights of a role must not: at another time leases are over, and
-- messages are due for removal.
CREATE FUNCTION qo.check_clock() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF NOT pg_has_role(session_user, (SELECT relowner FROM pg_class WHERE oid = 'qo.queues'::regclass), 'MEMBER') THEN
        RAISE insufficient_privilege USING MESSAGE = 'the time is the server''s to say';
    END IF;
END $$;

-- A column of which one value was sent, because all are the same.
CREATE FUNCTION qo.filled(p_column anyarray, p_count integer) RETURNS anyarray LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN CASE WHEN cardinality(p_column) = 1 AND p_count > 1 THEN array_fill(p_column[1], ARRAY[p_count]) ELSE p_column END;
END $$;

-- Tell other processes that these queues may have work. NULL: any queue.
CREATE FUNCTION qo.hint(p_queues text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_text text := coalesce(array_to_json(p_queues)::text, '*');
BEGIN
    PERFORM pg_notify('qo', CASE WHEN octet_length(v_text) > 7900 THEN '*' ELSE v_text END);
END $$;

-- The queue of that name, created with the default settings if there is none.
CREATE FUNCTION qo.queue_to_use(p_name text, p_now timestamptz) RETURNS qo.queues LANGUAGE plpgsql AS $$
DECLARE
    q qo.queues;
    v_dot integer := strpos(p_name, '.');
BEGIN
    SELECT * INTO q FROM qo.queues WHERE name = p_name;
    IF FOUND THEN RETURN q; END IF;
    RETURN qo.queue_to_use(p_name, CASE WHEN v_dot > 0 THEN left(p_name, v_dot - 1) ELSE '' END,
                           CASE WHEN v_dot > 0 THEN substr(p_name, v_dot + 1) ELSE '' END, '{}', (SELECT rules FROM qo.defaults), p_now);
END $$;

-- The queue of that name, created as is said here if there is none.
CREATE FUNCTION qo.queue_to_use(p_name text, p_namespace text, p_task text, p_settings jsonb, p_rules jsonb, p_now timestamptz)
RETURNS qo.queues LANGUAGE plpgsql AS $$
DECLARE
    q qo.queues;
    v_group bigint;
BEGIN
    INSERT INTO qo.queues (name, namespace, task, settings, rules, created_at)
    VALUES (p_name, p_namespace, p_task, p_settings, p_rules, p_now)
    ON CONFLICT (name) DO NOTHING RETURNING * INTO q;
    IF NOT FOUND THEN
        SELECT * INTO STRICT q FROM qo.queues WHERE name = p_name;
        RETURN q;
    END IF;
    INSERT INTO qo.groups (queue_id, name, start_at, created_at) VALUES (q.id, 'default', 'all', p_now) RETURNING id INTO v_group;
    UPDATE qo.queues SET default_group_id = v_group WHERE id = q.id RETURNING * INTO q;
    INSERT INTO qo.groups (queue_id, name, start_at, start_time, created_at)
    SELECT DISTINCT ON (f.name) q.id, f.name, f.start_at, f.start_time, p_now FROM qo.group_filters f
    WHERE f.name <> 'default' AND coalesce(f.namespace = p_namespace, true) AND coalesce(f.task = p_task, true)
    ORDER BY f.name, f.id;
    PERFORM qo.hint(ARRAY[p_name]);
    RETURN q;
END $$;

-- The lanes of these names; NULL where there is none.
CREATE FUNCTION qo.find_lanes(p_queues bigint[], p_keys text[], p_kinds text[], p_priorities integer[]) RETURNS bigint[] LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN ARRAY(SELECT CASE WHEN u.key IS NOT NULL THEN (SELECT l.id FROM qo.lanes l WHERE l.queue_id = u.queue AND l.key = u.key)
                        ELSE (SELECT l.id FROM qo.lanes l WHERE l.queue_id = u.queue AND l.kind = u.kind AND l.priority = u.priority AND l.key IS NULL) END
                 FROM unnest(p_queues, p_keys, p_kinds, p_priorities) WITH ORDINALITY AS u (queue, key, kind, priority, n) ORDER BY u.n);
END $$;

-- The lanes of these names, created where there is none. New ones have their ids in the order given and are inserted in the
-- order of their names, so that two who create the same lanes cannot wait for each other. The queue is locked before its groups
-- are read, or a group that is being made would miss the lane for ever. Cursors come with a lane's first message, in `wake`.
CREATE FUNCTION qo.lanes_to_use(p_queues bigint[], p_keys text[], p_kinds text[], p_priorities integer[]) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    v_lanes bigint[] := qo.find_lanes(p_queues, p_keys, p_kinds, p_priorities);
    v_new bigint[];
    n integer;
BEGIN
    IF array_position(v_lanes, NULL) IS NULL THEN RETURN v_lanes; END IF;
    PERFORM FROM qo.queues WHERE id = ANY (p_queues) ORDER BY id FOR SHARE;
    GET DIAGNOSTICS n = ROW_COUNT;
    IF n < (SELECT count(DISTINCT queue) FROM unnest(p_queues) queue) THEN
        RAISE serialization_failure USING MESSAGE = 'qo: a queue was removed';
    END IF;
    v_new := ARRAY(SELECT CASE WHEN u.lane IS NULL THEN nextval(pg_get_serial_sequence('qo.lanes', 'id')) END
                   FROM unnest(v_lanes) WITH ORDINALITY AS u (lane, n) ORDER BY u.n);
    INSERT INTO qo.lanes (id, queue_id, key, kind, priority) OVERRIDING SYSTEM VALUE
    SELECT u.id, u.queue, u.key, CASE WHEN u.key IS NULL THEN u.kind END, CASE WHEN u.key IS NULL THEN u.priority END
    FROM unnest(p_queues, p_keys, p_kinds, p_priorities, v_new) WITH ORDINALITY AS u (queue, key, kind, priority, id, n)
    WHERE u.id IS NOT NULL
    ORDER BY u.queue, u.key, CASE WHEN u.key IS NULL THEN u.kind END, CASE WHEN u.key IS NULL THEN u.priority END, u.n
    ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS n = ROW_COUNT;
    IF n = cardinality(array_remove(v_new, NULL)) THEN
        RETURN ARRAY(SELECT coalesce(u.lane, u.new) FROM unnest(v_lanes, v_new) WITH ORDINALITY AS u (lane, new, n) ORDER BY u.n);
    END IF;
    RETURN qo.find_lanes(p_queues, p_keys, p_kinds, p_priorities);
END $$;

-- Lock lanes by id. One that was removed meanwhile makes the caller start anew.
CREATE FUNCTION qo.lock_by_id(p_lanes bigint[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_count bigint;
BEGIN
    PERFORM FROM qo.lanes WHERE id = ANY (p_lanes) ORDER BY id FOR UPDATE;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    IF v_count < (SELECT count(DISTINCT lane) FROM unnest(p_lanes) lane WHERE lane IS NOT NULL) OR array_position(p_lanes, NULL) IS NOT NULL THEN
        RAISE serialization_failure USING MESSAGE = 'qo: a lane was removed';
    END IF;
END $$;

-- Lock the idle cursors of lanes, which a push will wake, and others with them, by id.
CREATE FUNCTION qo.lock_idle(p_lanes bigint[], p_cursors bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM qo.cursors WHERE id = ANY (p_cursors || ARRAY(SELECT c.id FROM qo.cursors c WHERE c.lane_id = ANY (p_lanes) AND c.state = 'idle'))
    ORDER BY id FOR UPDATE;
END $$;

-- The next offset that a lane gives out, and when its newest message entered. True only under the lane's lock.
CREATE FUNCTION qo.tail_of(p_lane bigint, OUT tail bigint, OUT entered_at timestamptz) LANGUAGE plpgsql STABLE AS $$
BEGIN
    SELECT m."offset" + 1, m.entered_at INTO tail, entered_at FROM qo.messages m
    WHERE m.lane_id = p_lane ORDER BY m."offset" DESC LIMIT 1;
    SELECT greatest(l.floor, coalesce(tail_of.tail, 0)), greatest(l.floor_entered_at, tail_of.entered_at)
    INTO tail, entered_at FROM qo.lanes l WHERE l.id = p_lane;
END $$;

-- Whether a keyed lane is held back by its queue's window: not enough messages wait in it for a cursor at that position.
CREATE FUNCTION qo.is_filling(p_hold double precision, p_lane bigint, p_position bigint) RETURNS boolean LANGUAGE sql STABLE
RETURN p_hold > 0 AND (qo.tail_of(p_lane)).tail - p_position < {window_full};

-- Where an open cursor stands. True only under the cursor's lock.
CREATE FUNCTION qo.position_of(c qo.cursors) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN greatest(c.position, (SELECT e.last FROM qo.leases e WHERE e.cursor_id = c.id AND e.epoch = c.epoch
                                 ORDER BY e.last DESC LIMIT 1));
END $$;

-- Have housekeeping look at lanes within a minute from now, unless it will anyway. Rows of `tidying` are the last that anyone
-- locks: a verb says this once, at its end, of all lanes in which it finished something.
CREATE FUNCTION qo.to_tidy(p_lanes bigint[], p_now timestamptz) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_at timestamptz := p_now + interval '{tidy_after}';
    v_lanes bigint[] := ARRAY(SELECT DISTINCT lane FROM unnest(p_lanes) lane
                              WHERE NOT EXISTS (SELECT FROM qo.tidying t WHERE t.lane_id = lane AND t.at <= v_at) ORDER BY lane);
BEGIN
    IF cardinality(v_lanes) = 0 THEN RETURN; END IF;
    INSERT INTO qo.tidying AS t (lane_id, at) SELECT lane, v_at FROM unnest(v_lanes) lane
    ON CONFLICT (lane_id) DO UPDATE SET at = excluded.at WHERE t.at > excluded.at;
END $$;

-- The first message from an offset on that is for a cursor: not skipped, not addressed to another group.
CREATE FUNCTION qo.heads(p_cursor bigint, p_lane bigint, p_group bigint, p_position bigint) RETURNS SETOF qo.messages LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT * FROM qo.messages m WHERE m.lane_id = p_lane AND m."offset" >= p_position AND (m.group_id IS NULL OR m.group_id = p_group)
        AND NOT EXISTS (SELECT FROM qo.skips s WHERE s.cursor_id = p_cursor AND s."offset" = m."offset")
    ORDER BY m."offset" LIMIT 1;
END;

CREATE FUNCTION qo.head_from(c qo.cursors, p_position bigint) RETURNS qo.messages LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_head qo.messages;
BEGIN
    SELECT * INTO v_head FROM qo.heads(c.id, c.lane_id, c.group_id, p_position);
    RETURN v_head;
END $$;

-- Bring a cursor, which the caller has locked, to rest at the first deliverable message from a position on.
-- Attempts, losses and a backoff belong to the message at that position and end when it is passed. One that was not tried
-- yet is held back for its queue's window, unless {window_full} wait. Idle is decided
-- under the lane's lock alone; if that is taken, the cursor stays ready and whoever claims next looks again. An open
-- cursor only becomes ready or idle here: its leases say where it stands.
CREATE FUNCTION qo.rest(c qo.cursors, p_position bigint, p_attempts integer, p_losses integer, p_blocked timestamptz,
                        p_now timestamptz) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    m qo.messages := qo.head_from(c, p_position);
    v_state text := 'ready';
    v_position bigint := p_position;
BEGIN
    IF m.id IS NULL THEN
        PERFORM FROM qo.lanes WHERE id = c.lane_id FOR UPDATE SKIP LOCKED;
        IF FOUND THEN
            m := qo.head_from(c, p_position);
            IF m.id IS NULL THEN
                v_state := 'idle';
                v_position := (qo.tail_of(c.lane_id)).tail;
            END IF;
        END IF;
    END IF;
    IF m.id IS NULL OR m."offset" <> p_position THEN
        p_attempts := 0; p_losses := 0; p_blocked := NULL;
    END IF;
    v_position := coalesce(m."offset", v_position);
    IF m.id IS NOT NULL AND p_attempts = 0 AND p_losses = 0 AND qo.is_filling(c.hold, c.lane_id, m."offset") THEN
        p_blocked := greatest(p_blocked, m.entered_at + make_interval(secs => c.hold));   -- its queue's window
    END IF;
    IF p_blocked > p_now THEN v_state := 'blocked'; END IF;
    IF c.keyed THEN
        DELETE FROM qo.skips s WHERE s.cursor_id = c.id AND s."offset" < v_position;
        UPDATE qo.cursors SET state = v_state, position = v_position, attempts = p_attempts, losses = p_losses,
            head_kind = m.kind, head_priority = m.priority, head_entered_at = m.entered_at,
            due_at = CASE WHEN v_state = 'blocked' THEN p_blocked ELSE m.expires_at END
        WHERE id = c.id;
    ELSIF c.state <> v_state THEN
        UPDATE qo.cursors SET state = v_state WHERE id = c.id;
    END IF;
END $$;

-- How long to rest after the n-th failure. `RetryPolicy.rest` is the same in Python: see there for the largest exponent.
CREATE FUNCTION qo.rest_after(p_rules jsonb, p_failures integer, p_draw double precision) RETURNS interval LANGUAGE plpgsql AS $$
DECLARE
    v_retry jsonb := p_rules -> 'retry';
    v_jitter double precision := (v_retry ->> 'jitter')::double precision;
    v_multiplier double precision := (v_retry ->> 'multiplier')::double precision;
    v_seconds double precision := (v_retry ->> 'delay')::double precision;
    v_ceiling double precision := (v_retry ->> 'max_delay')::double precision;
BEGIN
    IF (p_failures - 1) * ln(v_multiplier) <= {largest_exponent} THEN
        v_seconds := v_seconds * v_multiplier ^ (p_failures - 1);
    ELSIF v_seconds > 0 THEN
        v_seconds := v_ceiling;
    END IF;
    RETURN make_interval(secs => least(v_seconds, v_ceiling) * (1 - v_jitter + 2 * v_jitter * coalesce(p_draw, random())));
END $$;
