-- What is written when messages are finished for a group.

-- An event for each message; only for queues whose history is full.
CREATE FUNCTION qo.record_events(p_ids uuid[], p_state text, p_detail text, p_now timestamptz) RETURNS void LANGUAGE sql AS $$
    INSERT INTO qo.events (message_id, at, state, detail) SELECT id, p_now, p_state, p_detail FROM unnest(p_ids) id;
$$;

-- An event that is not the end.
CREATE FUNCTION qo.note_event(q qo.queues, p_group bigint, p_lane bigint, p_offset bigint, p_state text, p_detail text,
                              p_now timestamptz) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF q.rules ->> 'history' = 'full' AND p_group = q.default_group_id THEN
        PERFORM qo.record_events(ARRAY(SELECT id FROM qo.messages WHERE lane_id = p_lane AND "offset" = p_offset),
                                 p_state, p_detail, p_now);
    END IF;
END $$;

-- Write what became of messages, or of their attempts; one row per place and time. Arrays shorter than the places are filled up with NULL.
CREATE FUNCTION qo.write_outcomes(p_lanes bigint[], p_offsets bigint[], p_states text[], p_attempts integer[], p_reasons text[], p_errors text[],
                                  p_results bytea[], p_owners text[], p_started timestamptz[], p_now timestamptz) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO qo.outcomes AS o (lane_id, "offset", finished_at, state, attempt, reason, error, result, owner, started_at)
    SELECT f.lane, f."offset", p_now, coalesce(f.state, 'succeeded'), f.attempt, f.reason, f.error, f.result, f.owner, f.started
    FROM unnest(p_lanes, p_offsets, p_states, p_attempts, p_reasons, p_errors, p_results, p_owners, p_started)
        AS f (lane, "offset", state, attempt, reason, error, result, owner, started)
    ON CONFLICT (lane_id, "offset", finished_at) DO UPDATE SET state = excluded.state, attempt = excluded.attempt,
        reason = excluded.reason, error = excluded.error, result = excluded.result, owner = excluded.owner,
        started_at = excluded.started_at;
END $$;

-- Keep why an attempt failed that was not the last.
CREATE FUNCTION qo.note_failure(q qo.queues, e qo.leases, p_offset bigint, p_attempts integer, p_error text, p_now timestamptz)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF p_error <> '' AND e.group_id = q.default_group_id AND q.rules ->> 'history' <> 'none' THEN
        PERFORM qo.write_outcomes(ARRAY[e.lane_id], ARRAY[p_offset], ARRAY['queued'], ARRAY[p_attempts], '{}', ARRAY[p_error], '{}', ARRAY[e.owner],
                                  ARRAY[(e.started ->> p_offset::text)::timestamptz], p_now);
    END IF;
    PERFORM qo.note_event(q, e.group_id, e.lane_id, p_offset, 'queued', format('attempt %s failed', p_attempts), p_now);
END $$;

-- Write the outcomes of messages of one lane, and tell those who await them. Only the default group has outcomes.
-- Arrays shorter than the offsets are filled up with NULL. The caller has the lane tidied.
CREATE FUNCTION qo.finish(q qo.queues, p_group bigint, p_lane bigint, p_offsets bigint[], p_states text[], p_attempts integer[],
                          p_reasons text[], p_errors text[], p_results bytea[], p_owner text, p_started timestamptz[],
                          p_now timestamptz) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_history text := q.rules ->> 'history';
    v_count integer := cardinality(p_offsets);
BEGIN
    IF v_count = 0 OR p_group <> q.default_group_id THEN RETURN; END IF;
    IF v_history <> 'none' THEN
        PERFORM qo.write_outcomes(array_fill(p_lane, ARRAY[v_count]), p_offsets, p_states, p_attempts, p_reasons, p_errors, p_results,
                                  array_fill(p_owner, ARRAY[v_count]), p_started, p_now);
    END IF;
    IF v_history = 'full' THEN
        INSERT INTO qo.events (message_id, at, state, detail)
        SELECT m.id, p_now, f.state, coalesce(f.reason, f.error, '')
        FROM unnest(p_offsets, p_states, p_reasons, p_errors) AS f ("offset", state, reason, error)
        CROSS JOIN LATERAL (SELECT * FROM qo.messages x WHERE x.lane_id = p_lane AND x."offset" = f."offset" LIMIT 1) m ORDER BY m."offset";
    END IF;
    PERFORM qo.tell_watchers(array_fill(p_lane, ARRAY[v_count]), p_offsets);
END $$;

-- Tell those who await messages that have ended.
CREATE FUNCTION qo.tell_watchers(p_lanes bigint[], p_offsets bigint[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_ids uuid[];
BEGIN
    IF NOT EXISTS (SELECT FROM qo.watched) THEN RETURN; END IF;
    WITH gone AS (
        DELETE FROM qo.watched w WHERE w.message_id IN (
            SELECT (SELECT m.id FROM qo.messages m WHERE m.lane_id = i.lane AND m."offset" = i."offset")
            FROM unnest(p_lanes, p_offsets) AS i (lane, "offset")) RETURNING w.message_id
    )
    SELECT array_agg(message_id) INTO v_ids FROM gone;
    PERFORM qo.tell_finished(v_ids);
END $$;

-- Name finished messages to whoever awaits them, a few to a notification.
CREATE FUNCTION qo.tell_finished(p_ids uuid[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('qo', json_build_object('finished', json_agg(id))::text)
    FROM (SELECT id, (ordinality - 1) / 100 AS batch FROM unnest(p_ids) WITH ORDINALITY AS u (id, ordinality)) ids
    GROUP BY batch;
END $$;

-- Copy a message to the dead letters of a group. One that dies again after a seek replaces its copy.
CREATE FUNCTION qo.bury(p_queue bigint, p_group bigint, p_lane bigint, p_offset bigint, p_attempts integer, p_losses integer,
                        p_reason text, p_error text, p_now timestamptz) RETURNS void LANGUAGE sql AS $$
    INSERT INTO qo.dead_letters AS d (id, queue_id, group_id, key, kind, priority, payload, headers, attempts, losses, reason,
                                      error, created_at, died_at)
    SELECT m.id, p_queue, p_group, l.key, coalesce(m.kind, l.kind), coalesce(m.priority, l.priority), m.payload, m.headers,
           p_attempts, p_losses, p_reason, p_error, m.created_at, p_now
    FROM qo.messages m JOIN qo.lanes l ON l.id = m.lane_id WHERE m.lane_id = p_lane AND m."offset" = p_offset
    ON CONFLICT (group_id, id) DO UPDATE SET attempts = excluded.attempts, losses = excluded.losses,
        reason = excluded.reason, error = excluded.error, died_at = excluded.died_at;
$$;

-- Whether the owner is a registered worker, which starts what it claims at once and need not say so.
CREATE FUNCTION qo.starts_at_once(p_owner text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM qo.workers WHERE id = p_owner);
$$;
