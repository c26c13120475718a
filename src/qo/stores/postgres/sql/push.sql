-- push: messages into lanes, or into intake if they are not due yet.

-- How far an id is from the first of its run: ids of one call count up in their last 48 bits.
CREATE FUNCTION qo.id_number(p_id uuid) RETURNS bigint LANGUAGE sql IMMUTABLE
RETURN ('x' || right(p_id::text, 12))::bit(48)::bigint;

-- Where a message lies. Nothing, if it is not in a lane.
CREATE FUNCTION qo.place_of(p_id uuid, OUT lane_id bigint, OUT "offset" bigint, OUT group_id bigint) LANGUAGE plpgsql STABLE AS $$
DECLARE
    r qo.id_runs;
BEGIN
    SELECT * INTO r FROM qo.id_runs i WHERE i.first <= p_id ORDER BY i.first DESC LIMIT 1;
    IF FOUND AND p_id <= r.last THEN
        SELECT m.lane_id, m."offset", m.group_id INTO lane_id, "offset", group_id FROM qo.messages m
        WHERE m.lane_id = r.lane_id AND m."offset" = r."offset" + qo.id_number(p_id) - qo.id_number(r.first) AND m.id = p_id;
    END IF;
END $$;

-- Whether a message is completed, dead, canceled or removed, for the default group. A lease that has run out must be
-- given back before that can be known: then this says NULL.
CREATE FUNCTION qo.is_finished(q qo.queues, p_id uuid, p_now timestamptz) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_place record;
    c qo.cursors;
    v_token text;
    v_expires timestamptz;
BEGIN
    IF EXISTS (SELECT FROM qo.intake WHERE id = p_id AND canceled_at IS NULL) THEN RETURN false; END IF;
    v_place := qo.place_of(p_id);
    IF v_place.lane_id IS NULL OR v_place.group_id <> q.default_group_id THEN RETURN true; END IF;
    SELECT * INTO STRICT c FROM qo.cursors WHERE lane_id = v_place.lane_id AND group_id = q.default_group_id;
    SELECT e.expires_at INTO v_expires FROM qo.lease_over(c, v_place."offset") e;
    IF v_expires IS NOT NULL THEN
        RETURN CASE WHEN v_expires <= p_now THEN NULL ELSE false END;
    END IF;
    IF EXISTS (SELECT FROM qo.retries WHERE cursor_id = c.id AND "offset" = v_place."offset") THEN RETURN false; END IF;
    RETURN v_place."offset" < CASE WHEN c.keyed THEN c.position ELSE qo.position_of(c) END
        OR EXISTS (SELECT FROM qo.skips WHERE cursor_id = c.id AND "offset" = v_place."offset");
END $$;

-- Wake the cursors of lanes that are held back by their queue's window, and in which enough wait now. One that others have
-- locked is left to them: they bring it to rest, and see.
CREATE FUNCTION qo.wake_full(p_lanes bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE qo.cursors c SET state = 'ready',
        due_at = (SELECT m.expires_at FROM qo.messages m WHERE m.lane_id = c.lane_id AND m."offset" = c.position)
    WHERE c.id = ANY (ARRAY(
        SELECT k.id FROM qo.cursors k WHERE k.lane_id = ANY (p_lanes) AND k.state = 'blocked' AND k.hold > 0 AND k.attempts = 0 AND k.losses = 0
        AND (qo.tail_of(k.lane_id)).tail - k.position >= {window_full} ORDER BY k.id FOR UPDATE SKIP LOCKED));
END $$;

-- Wake the idle cursors of lanes that have grown, or have them wait for the end of their queue's window. Answers how many there were.
CREATE FUNCTION qo.wake(p_lanes bigint[], p_kinds text[], p_priorities integer[], p_entered timestamptz[], p_expires timestamptz[],
                        p_group bigint) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    v_idle bigint[];
BEGIN
    v_idle := ARRAY(SELECT id FROM qo.cursors WHERE lane_id = ANY (p_lanes) AND state = 'idle'
                    AND (p_group IS NULL OR group_id = p_group) ORDER BY id FOR UPDATE);
    IF cardinality(v_idle) = 0 THEN RETURN 0; END IF;
    UPDATE qo.cursors c SET head_kind = h.kind, head_priority = h.priority, head_entered_at = h.entered,
        state = CASE WHEN c.hold > 0 AND (qo.tail_of(c.lane_id)).tail - c.position < {window_full} THEN 'blocked' ELSE 'ready' END,
        due_at = CASE WHEN c.hold > 0 AND (qo.tail_of(c.lane_id)).tail - c.position < {window_full} THEN h.entered + make_interval(secs => c.hold)
                      WHEN c.keyed THEN h.expires END
    FROM unnest(p_lanes, p_kinds, p_priorities, p_entered, p_expires) AS h (lane, kind, priority, entered, expires)
    -- Lane by lane, by an index on lanes: looking for each lane among all cursors would take the square of their number.
    CROSS JOIN LATERAL (SELECT k.id FROM qo.cursors k WHERE k.lane_id = h.lane OFFSET 0) i
    WHERE i.id = ANY (v_idle) AND c.id = i.id;
    RETURN cardinality(v_idle);
END $$;

-- Push messages that say nothing but their payload, and kind and priority in keyed lanes. A keyed lane's kind and priority
-- are those of its first message here.
-- Answers NULL if it was done; else why it must be said to `push_any`: a payload too large, due intake of a key, a known id.
CREATE FUNCTION qo.push_plain(p_queues text[], p_keys text[], p_kinds text[], p_priorities integer[],
                              p_lane_numbers integer[], p_ids uuid[], p_payloads bytea[], p_own_kinds text[],
                              p_own_priorities integer[], p_run_lanes integer[], p_run_firsts uuid[], p_run_lasts uuid[],
                              p_run_starts bigint[], p_now timestamptz) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz;
    v_count integer := cardinality(p_queues);
    v_queues bigint[] := '{}';
    v_lanes bigint[];
    v_tails bigint[];
    v_entered timestamptz[];
    v_limit bigint;
    q qo.queues;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN PERFORM qo.refuse_isolation(); END IF;
    IF p_now IS NOT NULL THEN PERFORM qo.check_clock(); END IF;
    FOR i IN 1..v_count LOOP
        IF q.name IS DISTINCT FROM p_queues[i] THEN
            q := qo.queue_to_use(p_queues[i], coalesce(p_now, clock_timestamp()));
            v_limit := least(v_limit, (q.rules ->> 'max_payload')::bigint);
            IF q.rules ->> 'adorned' = 'true' THEN RETURN 'adorned'; END IF;
        END IF;
        v_queues[i] := q.id;
    END LOOP;
    IF (v_count > 1 OR p_keys[1] IS NOT NULL) AND EXISTS (
            SELECT FROM unnest(p_queues, p_keys) AS u (queue, key) WHERE EXISTS (
                SELECT FROM qo.intake i WHERE i.queue = u.queue AND i.key = u.key AND i.key IS NOT NULL AND i.canceled_at IS NULL
                AND i.due_at <= coalesce(p_now, clock_timestamp()))) THEN
        RETURN 'intake';
    END IF;
    IF (SELECT max(octet_length(payload)) FROM unnest(p_payloads) payload) > v_limit THEN RETURN 'too large'; END IF;
    v_lanes := qo.lanes_to_use(v_queues, p_keys, p_kinds, p_priorities);
    PERFORM qo.lock_by_id(v_lanes);
    v_now := coalesce(p_now, clock_timestamp());
    SELECT array_agg(greatest(l.floor, t."offset" + 1) ORDER BY u.n), array_agg(greatest(v_now, l.floor_entered_at, t.entered_at) ORDER BY u.n)
    INTO v_tails, v_entered FROM unnest(v_lanes) WITH ORDINALITY AS u (lane, n)
    CROSS JOIN LATERAL (SELECT * FROM qo.lanes x WHERE x.id = u.lane LIMIT 1) l
    LEFT JOIN LATERAL (SELECT m."offset", m.entered_at FROM qo.messages m WHERE m.lane_id = u.lane ORDER BY m."offset" DESC LIMIT 1) t ON true;
    -- Sorted, so that all are looked for before one is written: each would read past what was written for those before it.
    INSERT INTO qo.id_runs (first, last, lane_id, "offset")
    SELECT r.first, r.last, v_lanes[r.lane], v_tails[r.lane] + r.start
    FROM unnest(p_run_lanes, p_run_firsts, p_run_lasts, p_run_starts) AS r (lane, first, last, start)
    WHERE NOT EXISTS (SELECT FROM (SELECT i.last FROM qo.id_runs i WHERE i.first <= r.last ORDER BY i.first DESC LIMIT 1) b
                      WHERE b.last >= r.first)
    ORDER BY r.first
    ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS v_limit = ROW_COUNT;
    IF v_limit < cardinality(p_run_firsts) THEN RAISE unique_violation USING MESSAGE = 'qo: known id'; END IF;
    IF v_count = 1 THEN
        INSERT INTO qo.messages (lane_id, "offset", id, kind, priority, payload, created_at, entered_at)
        SELECT v_lanes[1], v_tails[1] + m.number - 1, m.id, m.kind, m.priority, m.payload, v_now, v_entered[1]
        FROM unnest(p_ids, p_own_kinds, p_own_priorities, p_payloads) WITH ORDINALITY AS m (id, kind, priority, payload, number);
    ELSE
        INSERT INTO qo.messages (lane_id, "offset", id, kind, priority, payload, created_at, entered_at)
        SELECT v_lanes[m.lane], v_tails[m.lane] + row_number() OVER (PARTITION BY m.lane ORDER BY m.number) - 1,
               m.id, m.kind, m.priority, m.payload, v_now, v_entered[m.lane]
        FROM unnest(p_lane_numbers, p_ids, p_own_kinds, p_own_priorities, p_payloads) WITH ORDINALITY
            AS m (lane, id, kind, priority, payload, number);
    END IF;
    IF EXISTS (SELECT FROM qo.cursors WHERE lane_id = ANY (v_lanes) AND state = 'idle')
            AND qo.wake(v_lanes, p_kinds, p_priorities, v_entered, '{}', NULL) > 0 THEN
        PERFORM qo.hint(ARRAY(SELECT DISTINCT unnest(p_queues)));
    END IF;
    PERFORM qo.to_tidy(v_lanes, v_now);
    RETURN NULL;
END $$;

-- Push one message that says nothing but its payload to an open lane that exists: the common case of `push_plain`, in fewer
-- steps. Whether it was done; if not, nothing was.
CREATE FUNCTION qo.push_one(p_queue text, p_kind text, p_priority integer, p_id uuid, p_payload bytea, p_now timestamptz)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz;
    v_lane bigint;
    v_tail bigint;
    v_entered timestamptz;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN PERFORM qo.refuse_isolation(); END IF;
    IF p_now IS NOT NULL THEN PERFORM qo.check_clock(); END IF;
    SELECT l.id INTO v_lane FROM qo.queues q JOIN qo.lanes l ON l.queue_id = q.id AND l.kind = p_kind AND l.priority = p_priority AND l.key IS NULL
    WHERE q.name = p_queue AND octet_length(p_payload) <= (q.rules ->> 'max_payload')::bigint AND q.rules ->> 'adorned' = 'false';
    IF NOT FOUND OR EXISTS (SELECT FROM (SELECT i.last FROM qo.id_runs i WHERE i.first <= p_id ORDER BY i.first DESC LIMIT 1) b WHERE b.last >= p_id) THEN
        RETURN false;
    END IF;
    PERFORM FROM qo.lanes WHERE id = v_lane FOR UPDATE;
    IF NOT FOUND THEN RETURN false; END IF;
    v_now := coalesce(p_now, clock_timestamp());
    SELECT greatest(l.floor, t."offset" + 1), greatest(v_now, l.floor_entered_at, t.entered_at) INTO v_tail, v_entered FROM qo.lanes l
    LEFT JOIN LATERAL (SELECT m."offset", m.entered_at FROM qo.messages m WHERE m.lane_id = v_lane ORDER BY m."offset" DESC LIMIT 1) t ON true
    WHERE l.id = v_lane;
    INSERT INTO qo.id_runs (first, last, lane_id, "offset") VALUES (p_id, p_id, v_lane, v_tail);
    INSERT INTO qo.messages (lane_id, "offset", id, payload, created_at, entered_at) VALUES (v_lane, v_tail, p_id, p_payload, v_now, v_entered);
    UPDATE qo.cursors SET state = 'ready' WHERE id = ANY (ARRAY(
        SELECT id FROM qo.cursors WHERE lane_id = v_lane AND state = 'idle' ORDER BY id FOR UPDATE));
    IF FOUND THEN PERFORM pg_notify('qo', json_build_array(p_queue)::text); END IF;
    PERFORM qo.to_tidy(ARRAY[v_lane], v_now);
    RETURN true;
END $$;

-- Append one message to a lane that the caller has locked, and wake its idle cursors. Answers whether there were any.
CREATE FUNCTION qo.append(q qo.queues, p_lane bigint, p_keyed boolean, p_id uuid, p_kind text, p_priority integer, p_payload bytea,
                          p_headers text, p_created timestamptz, p_due timestamptz, p_expires timestamptz, p_group bigint,
                          p_retry_of uuid, p_now timestamptz) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_tail bigint;
    v_entered timestamptz;
BEGIN
    SELECT t.tail, greatest(p_now, t.entered_at) INTO v_tail, v_entered FROM qo.tail_of(p_lane) t;
    INSERT INTO qo.id_runs (first, last, lane_id, "offset") VALUES (p_id, p_id, p_lane, v_tail);
    INSERT INTO qo.messages (lane_id, "offset", id, kind, priority, payload, headers, created_at, due_at, entered_at, expires_at,
                             group_id, retry_of)
    VALUES (p_lane, v_tail, p_id, CASE WHEN p_keyed THEN p_kind END, CASE WHEN p_keyed THEN p_priority END, p_payload, p_headers,
            p_created, p_due, v_entered, p_expires, p_group, p_retry_of);
    IF p_group IS NOT NULL THEN
        INSERT INTO qo.addressed (lane_id, "offset", group_id) VALUES (p_lane, v_tail, p_group);
    END IF;
    IF q.rules ->> 'history' = 'full' THEN
        PERFORM qo.record_events(ARRAY[p_id], 'queued', 'entered its lane', p_now);
    END IF;
    RETURN qo.wake(ARRAY[p_lane], ARRAY[p_kind], ARRAY[p_priority], ARRAY[v_entered], ARRAY[p_expires], p_group) > 0;
END $$;

-- When a message's life ends: from its due time.
CREATE FUNCTION qo.life(q qo.queues, p_ttl double precision, p_due timestamptz, p_now timestamptz) RETURNS timestamptz LANGUAGE sql
RETURN greatest(p_now, p_due) + make_interval(secs => coalesce(p_ttl, (q.rules ->> 'ttl')::double precision));

CREATE FUNCTION qo.scope_of(p_dedupe jsonb, p_key text, p_kind text, p_priority integer) RETURNS text LANGUAGE sql IMMUTABLE
RETURN CASE WHEN p_dedupe ->> 'scope' = 'queue' THEN ''
            WHEN p_key IS NOT NULL THEN 'key:' || p_key ELSE 'open:' || p_priority || ':' || p_kind END;

-- Take a dedupe key for a message, or find who holds it. The caller has locked the key's row, or inserts it here.
-- Raises QO002, with the holder as detail, if that can only be known after a lease that has run out was given back.
CREATE FUNCTION qo.holder(q qo.queues, p_dedupe jsonb, p_scope text, p_id uuid, p_on_the_way uuid[], p_now timestamptz)
RETURNS uuid LANGUAGE plpgsql AS $$
DECLARE
    d qo.dedupe;
    v_key text := p_dedupe ->> 'key';
    v_until timestamptz := p_now + make_interval(secs => (CASE WHEN p_dedupe ? 'as_queue' THEN q.rules ->> 'dedupe_window'
                                                               ELSE p_dedupe ->> 'window' END)::double precision);
    v_check timestamptz := coalesce(v_until, p_now + interval '{check_dedupe}');
    v_finished boolean;
BEGIN
    LOOP
        SELECT * INTO d FROM qo.dedupe WHERE queue_id = q.id AND scope = p_scope AND key = v_key FOR UPDATE;
        EXIT WHEN FOUND;
        INSERT INTO qo.dedupe (queue_id, scope, key, message_id, until, checked_at) VALUES (q.id, p_scope, v_key, p_id, v_until, v_check)
        ON CONFLICT DO NOTHING;
        IF FOUND THEN RETURN NULL; END IF;  -- else another took it at the same time; see who
    END LOOP;
    IF d.until IS NOT NULL THEN
        v_finished := d.until <= p_now;
    ELSIF d.message_id = ANY (p_on_the_way) THEN
        v_finished := false;
    ELSE
        v_finished := qo.is_finished(q, d.message_id, p_now);
        IF v_finished IS NULL THEN RAISE EXCEPTION USING ERRCODE = 'QO002', MESSAGE = 'a lease has run out', DETAIL = d.message_id; END IF;
    END IF;
    IF NOT v_finished THEN RETURN d.message_id; END IF;
    UPDATE qo.dedupe SET message_id = p_id, until = v_until, checked_at = v_check WHERE queue_id = q.id AND scope = p_scope AND key = v_key;
    RETURN NULL;
END $$;

-- Lock dedupe keys, in their order, those that are new too: an expired row stands in for them. Whoever needs several, or will
-- lock lanes first otherwise, says so here, so that no two can wait for each other.
CREATE FUNCTION qo.lock_keys(p_queues text[], p_scopes text[], p_keys text[], p_now timestamptz) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO qo.dedupe (queue_id, scope, key, message_id, until, checked_at)
    SELECT DISTINCT q.id, u.scope COLLATE "C", u.key COLLATE "C", '00000000-0000-0000-0000-000000000000'::uuid, '-infinity'::timestamptz, p_now
    FROM unnest(p_queues, p_scopes, p_keys) AS u (queue, scope, key) JOIN qo.queues q ON q.name = u.queue ORDER BY 1, 2, 3
    ON CONFLICT DO NOTHING;
    -- One by one, by the primary key: a join would be planned as a scan of all keys.
    PERFORM FROM (SELECT DISTINCT q.id, u.scope COLLATE "C" AS scope, u.key COLLATE "C" AS key
                  FROM unnest(p_queues, p_scopes, p_keys) AS u (queue, scope, key) JOIN qo.queues q ON q.name = u.queue ORDER BY 1, 2, 3) x
    CROSS JOIN LATERAL (SELECT FROM qo.dedupe d WHERE d.queue_id = x.id AND d.scope = x.scope AND d.key = x.key LIMIT 1 FOR UPDATE) locked;
END $$;

-- Lock the keys that messages, and what is due of their lanes' intake, will ask for.
CREATE FUNCTION qo.lock_keys_of(p_queues text[], p_keys text[], p_kinds text[], p_priorities integer[], p_dedupes jsonb[], p_now timestamptz)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_queues text[];
    v_scopes text[];
    v_keys text[];
BEGIN
    SELECT array_agg(x.queue), array_agg(qo.scope_of(x.dedupe, x.key, x.kind, x.priority)), array_agg(x.dedupe ->> 'key')
    INTO v_queues, v_scopes, v_keys FROM (
        SELECT * FROM unnest(p_queues, p_keys, p_kinds, p_priorities, p_dedupes) AS m (queue, key, kind, priority, dedupe)
        WHERE m.dedupe IS NOT NULL
        UNION ALL
        SELECT i.queue, i.key, i.kind, i.priority, i.dedupe FROM (SELECT DISTINCT * FROM unnest(p_queues, p_keys)) AS m (queue, key)
        CROSS JOIN LATERAL (SELECT * FROM qo.intake t WHERE t.queue = m.queue AND t.key = m.key AND t.key IS NOT NULL AND t.canceled_at IS NULL
                            AND t.due_at <= p_now AND t.dedupe IS NOT NULL) i) x;
    IF v_keys IS NULL THEN RETURN; END IF;
    PERFORM qo.queue_to_use(name, p_now) FROM (SELECT DISTINCT name FROM unnest(v_queues) name ORDER BY name) names;
    PERFORM qo.lock_keys(v_queues, v_scopes, v_keys, p_now);
END $$;

-- Whether what is stored under an id is this very message; nothing, if nothing is.
CREATE FUNCTION qo.is_repeat(p_id uuid, p_queue text, p_key text, p_payload bytea) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_place record := qo.place_of(p_id);
    v_same boolean;
BEGIN
    IF v_place.lane_id IS NULL THEN
        SELECT i.queue = p_queue AND i.key IS NOT DISTINCT FROM p_key AND i.payload = p_payload INTO v_same FROM qo.intake i WHERE i.id = p_id;
    ELSE
        SELECT q.name = p_queue AND l.key IS NOT DISTINCT FROM p_key AND m.payload = p_payload INTO v_same
        FROM qo.messages m JOIN qo.lanes l ON l.id = m.lane_id JOIN qo.queues q ON q.id = l.queue_id
        WHERE m.lane_id = v_place.lane_id AND m."offset" = v_place."offset";
    END IF;
    RETURN v_same;
END $$;

-- How many messages the slowest group of a queue has not settled, of those groups that hold messages back. The default group
-- counts once it has claimed, or as long as nobody else has.
CREATE FUNCTION qo.unsettled(q qo.queues, p_now timestamptz) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT (SELECT count(*) FROM qo.intake i WHERE i.queue = q.name AND i.canceled_at IS NULL) + coalesce((
        SELECT max((SELECT coalesce(sum((qo.tail_of(c.lane_id)).tail - CASE WHEN c.keyed THEN c.position ELSE qo.position_of(c) END
                                        - (SELECT count(*) FROM qo.skips s WHERE s.cursor_id = c.id)), 0)
                    FROM qo.cursors c WHERE c.group_id = g.id AND c.state <> 'idle')
                 + (SELECT count(*) FROM qo.retries r WHERE r.group_id = g.id AND r.token IS NULL)
                 + (SELECT coalesce(sum(e.to_offset - e.from_offset), 0) FROM qo.leases e WHERE e.group_id = g.id AND e.ended_at IS NULL))
        FROM qo.groups g WHERE g.queue_id = q.id
          AND coalesce(g.claimed_at, g.created_at) + make_interval(secs => (q.rules ->> 'group_idle')::double precision) > p_now
          AND (g.id <> q.default_group_id OR ((q.rules ->> 'default_group')::boolean AND (g.claimed_at IS NOT NULL
               OR NOT EXISTS (SELECT FROM qo.groups o WHERE o.queue_id = q.id AND o.claimed_at IS NOT NULL))))), 0)::bigint;
$$;

-- Push anything, message by message. Lanes are created in the order of first arrivals, and locked by id before offsets
-- are given out. Answers for each message: 'stored', 'duplicate' and the first one's id, 'too large' and the limit, or 'known',
-- if its id is that of another message. Raises, and nothing is done: QO001, if a queue is missing that the caller wants to
-- create itself (`p_own`); QO003, if a queue's payloads must be sealed and one is not; QO004, if a queue is full.
CREATE FUNCTION qo.push_any(p_queues text[], p_keys text[], p_kinds text[], p_priorities integer[], p_ids uuid[], p_payloads bytea[],
                        p_headers text[], p_dues timestamptz[], p_delays double precision[], p_ttls double precision[], p_dedupes jsonb[],
                        p_own text[], p_now timestamptz)
RETURNS TABLE (answer text, other text) LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_name text;
    v_coming bigint[] := '{}';      -- queues to which something comes, and which may be full
    v_count integer := cardinality(p_ids);
    v_enters boolean[] := array_fill(false, ARRAY[v_count]);
    v_on_the_way uuid[] := '{}';    -- what was judged to come
    v_lanes bigint[];
    v_queues bigint[] := '{}';
    v_hint boolean := false;
    v_due timestamptz;
    v_first uuid;
    v_repeat boolean;
    v_numbers integer[];
    v_number integer := 0;
    i integer;
    q qo.queues;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN PERFORM qo.refuse_isolation(); END IF;
    IF p_now IS NOT NULL THEN PERFORM qo.check_clock(); END IF;
    IF cardinality(p_own) > 0 THEN
        SELECT n INTO v_name FROM unnest(p_own) n WHERE NOT EXISTS (SELECT FROM qo.queues k WHERE k.name = n) LIMIT 1;
        IF FOUND THEN RAISE EXCEPTION USING ERRCODE = 'QO001', MESSAGE = 'a queue is new', DETAIL = v_name; END IF;
    END IF;
    -- One push at a time is weighed against a queue's size.
    PERFORM FROM qo.queues k WHERE k.name = ANY (p_queues) AND k.rules ->> 'max_size' IS NOT NULL ORDER BY k.id FOR NO KEY UPDATE;
    IF v_count > 1 OR p_keys[1] IS NOT NULL THEN
        PERFORM qo.lock_keys_of(p_queues, p_keys, p_kinds, p_priorities, p_dedupes, v_now);
    END IF;
    FOR i IN 1..v_count LOOP
        IF q.name IS DISTINCT FROM p_queues[i] THEN q := qo.queue_to_use(p_queues[i], v_now); END IF;
        answer := 'stored'; other := NULL;
        IF q.rules ->> 'encrypt' = 'true' AND NOT coalesce(p_headers[i]::jsonb ? 'qo-sealed', false) THEN
            RAISE EXCEPTION USING ERRCODE = 'QO003', MESSAGE = 'a queue seals its payloads', DETAIL = q.name;
        END IF;
        IF p_dues[i] IS NULL AND coalesce(p_delays[i], nullif((q.rules ->> 'delay')::double precision, 0)) IS NOT NULL THEN
            p_dues[i] := v_now + make_interval(secs => coalesce(p_delays[i], (q.rules ->> 'delay')::double precision));
        END IF;
        IF octet_length(p_payloads[i]) > (q.rules ->> 'max_payload')::bigint THEN
            answer := 'too large'; other := q.rules ->> 'max_payload';
        ELSE
            v_first := NULL;
            IF p_dedupes[i] IS NOT NULL THEN
                v_first := qo.holder(q, p_dedupes[i], qo.scope_of(p_dedupes[i], p_keys[i], p_kinds[i], p_priorities[i]),
                                     p_ids[i], v_on_the_way, v_now);
            END IF;
            IF v_first IS NOT NULL THEN
                answer := 'duplicate'; other := v_first::text;
            END IF;
            v_repeat := CASE WHEN v_first IS NULL THEN qo.is_repeat(p_ids[i], p_queues[i], p_keys[i], p_payloads[i]) END;
            IF v_repeat IS NOT NULL AND NOT v_repeat THEN
                answer := 'known';
            ELSIF v_first IS NULL AND v_repeat IS NULL THEN
                v_on_the_way := v_on_the_way || p_ids[i];
                IF q.rules ->> 'max_size' IS NOT NULL THEN v_coming := v_coming || q.id; END IF;
                IF p_dues[i] > v_now THEN
                    INSERT INTO qo.intake (id, queue, key, kind, priority, payload, headers, created_at, due_at, ttl)
                    VALUES (p_ids[i], p_queues[i], p_keys[i], p_kinds[i], p_priorities[i], p_payloads[i], p_headers[i], v_now,
                            p_dues[i], p_ttls[i]);
                    v_hint := true;
                ELSE
                    v_enters[i] := true;
                END IF;
            END IF;
        END IF;
        RETURN NEXT;
    END LOOP;
    -- From here on only those that enter now.
    SELECT array_agg(k.id ORDER BY m.n), array_agg(m.n ORDER BY m.n) INTO v_queues, v_numbers
    FROM unnest(p_queues, v_enters) WITH ORDINALITY AS m (queue, enters, n) JOIN qo.queues k ON k.name = m.queue WHERE m.enters;
    IF v_numbers IS NOT NULL THEN
        v_lanes := qo.lanes_to_use(v_queues, ARRAY(SELECT p_keys[n] FROM unnest(v_numbers) n), ARRAY(SELECT p_kinds[n] FROM unnest(v_numbers) n),
                                   ARRAY(SELECT p_priorities[n] FROM unnest(v_numbers) n));
        PERFORM qo.lock_by_id(v_lanes);
        PERFORM qo.lock_idle(v_lanes, '{}');
        v_due := v_now;     -- whose keys are locked
        v_now := coalesce(p_now, clock_timestamp());
        FOREACH i IN ARRAY v_numbers LOOP
            v_number := v_number + 1;
            IF q.name <> p_queues[i] THEN q := qo.queue_to_use(p_queues[i], v_now); END IF;
            IF p_keys[i] IS NOT NULL THEN
                v_hint := qo.enter_of_key(q, v_lanes[v_number], p_keys[i], v_due, v_now) OR v_hint;
            END IF;
            v_hint := qo.append(q, v_lanes[v_number], p_keys[i] IS NOT NULL, p_ids[i], p_kinds[i], p_priorities[i], p_payloads[i],
                                p_headers[i], v_now, p_dues[i], qo.life(q, p_ttls[i], p_dues[i], v_now), NULL, NULL, v_now) OR v_hint;
        END LOOP;
        IF EXISTS (SELECT FROM qo.cursors k WHERE k.lane_id = ANY (v_lanes) AND k.hold > 0) THEN PERFORM qo.wake_full(v_lanes); v_hint := true; END IF;
        PERFORM qo.to_tidy(ARRAY(SELECT DISTINCT unnest(v_lanes)), v_now);
    END IF;
    FOR q IN SELECT * FROM qo.queues k WHERE k.id = ANY (v_coming) LOOP
        IF qo.unsettled(q, v_now) > (q.rules ->> 'max_size')::bigint THEN RAISE EXCEPTION USING ERRCODE = 'QO004', MESSAGE = 'a queue is full', DETAIL = q.name; END IF;
    END LOOP;
    IF v_hint THEN PERFORM qo.hint(ARRAY(SELECT DISTINCT unnest(p_queues))); END IF;
END $$;

-- Push messages of keyed lanes that have a name there and headers, and nothing more to say, in a few statements for all of them. Answers as
-- `push_any` does; nothing at all, and nothing done, if it must be said to that: a queue's rules want more, a payload is too
-- large, intake of a key is due. Raises QO001 as that does, and a unique violation if an id is known.
CREATE FUNCTION qo.push_named(p_queues text[], p_keys text[], p_names text[], p_kinds text[], p_priorities integer[], p_ids uuid[],
                          p_payloads bytea[], p_headers text[], p_own text[], p_now timestamptz)
RETURNS TABLE (answer text, other text) LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_name text;
    v_count integer := cardinality(p_ids);
    v_queues bigint[];      -- by message, as the following
    v_windows interval[];
    v_holders uuid[];       -- who holds its name; itself, if nobody did
    v_fresh integer[];      -- numbers of those that enter
    v_lanes bigint[];
    v_distinct bigint[];
    v_heads integer[];      -- the first message of each lane
    v_tails bigint[];
    v_entered timestamptz[];
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN PERFORM qo.refuse_isolation(); END IF;
    IF p_now IS NOT NULL THEN PERFORM qo.check_clock(); END IF;
    SELECT n INTO v_name FROM unnest(p_own) n WHERE NOT EXISTS (SELECT FROM qo.queues k WHERE k.name = n) LIMIT 1;
    IF FOUND THEN RAISE EXCEPTION USING ERRCODE = 'QO001', MESSAGE = 'a queue is new', DETAIL = v_name; END IF;
    IF EXISTS (SELECT FROM qo.queues k WHERE k.name = ANY (p_queues) AND k.rules ->> 'adorned' <> 'false')
        OR EXISTS (SELECT FROM unnest(p_queues, p_payloads) AS m (queue, payload) LEFT JOIN qo.queues k ON k.name = m.queue
                   WHERE k.id IS NULL OR octet_length(m.payload) > (k.rules ->> 'max_payload')::bigint)
        OR EXISTS (SELECT FROM unnest(p_queues, p_keys) AS m (queue, key) JOIN qo.intake i ON i.queue = m.queue AND i.key = m.key
                   AND i.canceled_at IS NULL AND i.due_at <= v_now) THEN
        RETURN;
    END IF;
    PERFORM qo.lock_keys(p_queues, ARRAY(SELECT 'key:' || k FROM unnest(p_keys) k), p_names, v_now);
    v_now := coalesce(p_now, clock_timestamp());
    SELECT array_agg(q.id ORDER BY m.n), array_agg(make_interval(secs => (q.rules ->> 'dedupe_window')::double precision) ORDER BY m.n)
    INTO v_queues, v_windows FROM unnest(p_queues) WITH ORDINALITY AS m (queue, n) JOIN qo.queues q ON q.name = m.queue;
    -- A name is its holder's for the window; else the first's in this batch, where there is a window at all.
    SELECT array_agg(coalesce(CASE WHEN d.until > v_now THEN d.message_id END,
                              CASE WHEN m.win > interval '0' THEN m.first_id END, m.id) ORDER BY m.n)
    INTO v_holders FROM (
        SELECT u.*, first_value(u.id) OVER (PARTITION BY u.queue, u.key, u.name ORDER BY u.n) AS first_id
        FROM unnest(v_queues, p_keys, p_names, p_ids, v_windows) WITH ORDINALITY AS u (queue, key, name, id, win, n)) m
    LEFT JOIN LATERAL (SELECT * FROM qo.dedupe x WHERE x.queue_id = m.queue AND x.scope = 'key:' || m.key AND x.key = m.name LIMIT 1) d ON true;
    v_fresh := ARRAY(SELECT n FROM unnest(p_ids, v_holders) WITH ORDINALITY AS m (id, holder, n) WHERE m.id = m.holder ORDER BY n);
    IF cardinality(v_fresh) > 0 THEN
        -- Housekeeping may have removed a row while we waited for it.
        INSERT INTO qo.dedupe AS d (queue_id, scope, key, message_id, until, checked_at)
        SELECT m.queue, 'key:' || m.key, m.name, m.id, v_now + m.win, v_now + m.win
        FROM (SELECT DISTINCT ON (v_queues[n], p_keys[n], p_names[n]) v_queues[n] AS queue, p_keys[n] AS key, p_names[n] AS name, p_ids[n] AS id,
                     v_windows[n] AS win FROM unnest(v_fresh) n ORDER BY v_queues[n], p_keys[n], p_names[n], n DESC) m
        ON CONFLICT (queue_id, scope, key) DO UPDATE SET message_id = excluded.message_id, until = excluded.until, checked_at = excluded.checked_at;
        v_lanes := qo.lanes_to_use(ARRAY(SELECT v_queues[n] FROM unnest(v_fresh) n), ARRAY(SELECT p_keys[n] FROM unnest(v_fresh) n),
                                   ARRAY(SELECT p_kinds[n] FROM unnest(v_fresh) n), ARRAY(SELECT p_priorities[n] FROM unnest(v_fresh) n));
        SELECT array_agg(x.lane), array_agg(x.head) INTO v_distinct, v_heads FROM (
            SELECT u.lane, min(u.n) AS head FROM unnest(v_lanes, v_fresh) AS u (lane, n) GROUP BY u.lane ORDER BY u.lane) x;
        PERFORM qo.lock_by_id(v_distinct);
        v_now := coalesce(p_now, clock_timestamp());
        SELECT array_agg(greatest(l.floor, t."offset" + 1) ORDER BY u.n), array_agg(greatest(v_now, l.floor_entered_at, t.entered_at) ORDER BY u.n)
        INTO v_tails, v_entered FROM unnest(v_distinct) WITH ORDINALITY AS u (lane, n)
        CROSS JOIN LATERAL (SELECT * FROM qo.lanes x WHERE x.id = u.lane LIMIT 1) l
        LEFT JOIN LATERAL (SELECT m."offset", m.entered_at FROM qo.messages m WHERE m.lane_id = u.lane ORDER BY m."offset" DESC LIMIT 1) t ON true;
        WITH coming AS MATERIALIZED (
            SELECT u.lane, u.n, v_tails[d.n] + row_number() OVER (PARTITION BY u.lane ORDER BY u.n) - 1 AS place, v_entered[d.n] AS entered
            FROM unnest(v_lanes, v_fresh) AS u (lane, n) JOIN unnest(v_distinct) WITH ORDINALITY AS d (lane, n) ON d.lane = u.lane
        ), placed AS (
            INSERT INTO qo.id_runs (first, last, lane_id, "offset") SELECT p_ids[c.n], p_ids[c.n], c.lane, c.place FROM coming c
            WHERE NOT EXISTS (SELECT FROM (SELECT i.last FROM qo.id_runs i WHERE i.first <= p_ids[c.n] ORDER BY i.first DESC LIMIT 1) b
                              WHERE b.last >= p_ids[c.n])
            ORDER BY p_ids[c.n] RETURNING 1
        ), written AS (
            INSERT INTO qo.messages (lane_id, "offset", id, kind, priority, payload, headers, created_at, entered_at)
            SELECT c.lane, c.place, p_ids[c.n], p_kinds[c.n], p_priorities[c.n], p_payloads[c.n], p_headers[c.n], v_now, c.entered FROM coming c
        )
        SELECT count(*) INTO v_count FROM placed;
        IF v_count < cardinality(v_fresh) THEN RAISE unique_violation USING MESSAGE = 'qo: known id'; END IF;
        IF EXISTS (SELECT FROM qo.cursors WHERE lane_id = ANY (v_distinct) AND state = 'idle')
                AND qo.wake(v_distinct, ARRAY(SELECT p_kinds[n] FROM unnest(v_heads) WITH ORDINALITY AS h (n, o) ORDER BY o),
                            ARRAY(SELECT p_priorities[n] FROM unnest(v_heads) WITH ORDINALITY AS h (n, o) ORDER BY o), v_entered, '{}', NULL) > 0 THEN
            PERFORM qo.hint(ARRAY(SELECT DISTINCT unnest(p_queues)));
        END IF;
        PERFORM qo.to_tidy(v_distinct, v_now);
    END IF;
    RETURN QUERY SELECT CASE WHEN m.id = m.holder THEN 'stored' ELSE 'duplicate' END, CASE WHEN m.id <> m.holder THEN m.holder::text END
    FROM unnest(p_ids, v_holders) WITH ORDINALITY AS m (id, holder, n) ORDER BY m.n;
END $$;

-- Move all that is due for one key into its lane, which the caller has locked, so that a push comes after it.
CREATE FUNCTION qo.enter_of_key(q qo.queues, p_lane bigint, p_key text, p_due timestamptz, p_now timestamptz) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    i qo.intake;
    v_hint boolean := false;
BEGIN
    FOR i IN SELECT * FROM qo.intake t WHERE t.queue = q.name AND t.key = p_key AND t.canceled_at IS NULL AND t.due_at <= p_due
             ORDER BY t.due_at, t.id FOR UPDATE LOOP
        v_hint := qo.enter(q, i, p_lane, p_now) OR v_hint;
    END LOOP;
    RETURN v_hint;
END $$;

-- Move one intake row into its lane, which the caller has locked.
CREATE FUNCTION qo.enter(q qo.queues, i qo.intake, p_lane bigint, p_now timestamptz) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_first uuid;
BEGIN
    IF i.dedupe IS NOT NULL THEN
        v_first := qo.holder(q, i.dedupe, qo.scope_of(i.dedupe, i.key, i.kind, i.priority), i.id, '{}', p_now);
        IF v_first IS NOT NULL THEN
            UPDATE qo.intake SET canceled_at = p_now, reason = 'duplicate', duplicate_of = v_first WHERE id = i.id;
            DELETE FROM qo.watched WHERE message_id = i.id;
            IF FOUND THEN PERFORM qo.tell_finished(ARRAY[i.id]); END IF;
            RETURN false;
        END IF;
    END IF;
    DELETE FROM qo.intake WHERE id = i.id;
    RETURN qo.append(q, p_lane, i.key IS NOT NULL, i.id, i.kind, i.priority, i.payload, i.headers, i.created_at, i.due_at,
                     qo.life(q, i.ttl, i.due_at, least(p_now, i.due_at)), NULL, NULL, p_now);
END $$;

-- Move what is due in a queue into its lanes, in (due, id) order, up to a limit. One mover per queue at a time. Answers whether
-- more is due, or others are at it.
CREATE FUNCTION qo.enter_due(p_queue text, p_limit integer, p_now timestamptz) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_rows qo.intake[];
    v_lanes bigint[];
    v_hint boolean := false;
    q qo.queues;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN PERFORM qo.refuse_isolation(); END IF;
    IF p_now IS NOT NULL THEN PERFORM qo.check_clock(); END IF;
    IF NOT pg_try_advisory_xact_lock(hashtextextended('qo intake ' || p_queue, 0)) THEN RETURN true; END IF;
    q := qo.queue_to_use(p_queue, v_now);
    v_rows := ARRAY(SELECT t FROM qo.intake t WHERE t.queue = p_queue AND t.canceled_at IS NULL AND t.due_at <= v_now
                    ORDER BY t.due_at, t.id LIMIT p_limit);
    IF cardinality(v_rows) = 0 THEN RETURN false; END IF;
    PERFORM qo.lock_keys(array_agg(r.queue), array_agg(qo.scope_of(r.dedupe, r.key, r.kind, r.priority)), array_agg(r.dedupe ->> 'key'), v_now)
    FROM unnest(v_rows) r WHERE r.dedupe IS NOT NULL HAVING count(*) > 0;
    v_lanes := qo.lanes_to_use(array_fill(q.id, ARRAY[cardinality(v_rows)]), ARRAY(SELECT r.key FROM unnest(v_rows) r),
                               ARRAY(SELECT r.kind FROM unnest(v_rows) r), ARRAY(SELECT r.priority FROM unnest(v_rows) r));
    PERFORM qo.lock_by_id(v_lanes);
    PERFORM qo.lock_idle(v_lanes, '{}');
    FOR n IN 1..cardinality(v_rows) LOOP
        -- Lanes before intake, as a push does; a row may have been canceled, or have entered with a push, meanwhile.
        PERFORM FROM qo.intake t WHERE t.id = (v_rows[n]).id AND t.canceled_at IS NULL FOR UPDATE;
        CONTINUE WHEN NOT FOUND;
        v_hint := qo.enter(q, v_rows[n], v_lanes[n], v_now) OR v_hint;
    END LOOP;
    IF q.rules ->> 'window' <> '0.0' THEN PERFORM qo.wake_full(v_lanes); END IF;
    IF v_hint THEN PERFORM qo.hint(ARRAY[p_queue]); END IF;
    PERFORM qo.to_tidy(v_lanes, v_now);
    RETURN cardinality(v_rows) = p_limit;
END $$;

-- Lock what a unit will need before it does anything, in the order in which all do: the dedupe keys of its pushes; the lanes that it may
-- push to, of which those that it is sure to need are created, in the order given; idle cursors there and those of its leases.
CREATE FUNCTION qo.lock_unit(p_queues text[], p_keys text[], p_kinds text[], p_priorities integer[], p_sure boolean[],
                             p_push_queues text[], p_push_keys text[], p_push_kinds text[], p_push_priorities integer[], p_dedupes jsonb[],
                             p_tokens text[], p_lease_lanes bigint[], p_now timestamptz) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_queues bigint[] := '{}';
    v_lanes bigint[] := '{}';
    v_sure integer[] := ARRAY(SELECT n FROM unnest(p_sure) WITH ORDINALITY AS s (sure, n) WHERE sure);
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN PERFORM qo.refuse_isolation(); END IF;
    PERFORM FROM qo.queues k WHERE k.name = ANY (p_push_queues) AND k.rules ->> 'max_size' IS NOT NULL ORDER BY k.id FOR NO KEY UPDATE;
    PERFORM qo.lock_keys_of(p_push_queues, p_push_keys, p_push_kinds, p_push_priorities, p_dedupes, p_now);
    FOR i IN 1..cardinality(p_queues) LOOP
        v_queues := v_queues || (qo.queue_to_use(p_queues[i], p_now)).id;
        IF NOT p_sure[i] THEN v_lanes := v_lanes || (qo.find_lanes(ARRAY[v_queues[i]], p_keys[i:i], p_kinds[i:i], p_priorities[i:i]))[1]; END IF;
    END LOOP;
    v_lanes := array_remove(v_lanes, NULL) || qo.lanes_to_use(
        ARRAY(SELECT v_queues[n] FROM unnest(v_sure) n), ARRAY(SELECT p_keys[n] FROM unnest(v_sure) n),
        ARRAY(SELECT p_kinds[n] FROM unnest(v_sure) n), ARRAY(SELECT p_priorities[n] FROM unnest(v_sure) n));
    PERFORM qo.lock_by_id(v_lanes);
    PERFORM qo.lock_idle(v_lanes, ARRAY(SELECT (SELECT e.cursor_id FROM qo.leases e WHERE e.token = i.token AND e.lane_id = i.lane)
                                        FROM unnest(p_tokens, p_lease_lanes) AS i (token, lane)));
END $$;
