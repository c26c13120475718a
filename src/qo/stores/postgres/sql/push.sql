-- push: messages into lanes, or into intake if they are not due yet.

-- How far an id is from the first of its run: ids of one call count up in their last 48 bits.
CREATE FUNCTION qo.id_number(p_id uuid) RETURNS bigint LANGUAGE sql IMMUTABLE
RETURN ('x' || right(p_id::text, 12))::bit(48)::bigint;

-- Where a message lies. Nothing, if it is not in a lane.
CREATE FUNCTION qo.place_of(p_id uuid, OUT lane_id bigint, OUT "offset" bigint, OUT group_id bigint) LANGUAGE plpgsql STABLE AS $$
DECLARE
    r qo.id_runs;
BEGIN
    SELECT m.lane_id, m."offset", m.group_id INTO lane_id, "offset", group_id FROM qo.messages m WHERE m.id = p_id AND m.alone;
    IF FOUND THEN RETURN; END IF;
    SELECT * INTO r FROM qo.id_runs i WHERE i.first <= p_id ORDER BY i.first DESC LIMIT 1;
    IF FOUND AND p_id <= r.last THEN
        SELECT m.lane_id, m."offset", m.group_id INTO lane_id, "offset", group_id FROM qo.messages m
        WHERE m.lane_id = r.lane_id AND m."offset" = r."offset" + qo.id_number(p_id) - qo.id_number(r.first) AND m.id = p_id;
    END IF;
END $$;

-- Whether an id of one of these spans is that of a message, or was that of one of a run.
CREATE FUNCTION qo.knows_ids(p_firsts uuid[], p_lasts uuid[]) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN EXISTS (SELECT FROM unnest(p_firsts, p_lasts) AS s (first, last)
                   WHERE EXISTS (SELECT FROM (SELECT i.last FROM qo.id_runs i WHERE i.first <= s.last ORDER BY i.first DESC LIMIT 1) b WHERE b.last >= s.first)
                   OR EXISTS (SELECT FROM qo.messages m WHERE m.alone AND m.id >= s.first AND m.id <= s.last));
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

-- Wake the idle cursors of lanes that have grown and that the caller has locked, or have them wait for the end of their queue's window;
-- of lanes that are new, make the cursors. Answers whether there were any. A cursor becomes idle under its lane's lock alone, so that all
-- that are idle are ours. Lane by lane, by an index on lanes: looking for each lane among all cursors would take the square of their number.
CREATE FUNCTION qo.wake(p_lanes bigint[], p_kinds text[], p_priorities integer[], p_entered timestamptz[], p_expires timestamptz[],
                        p_group bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_new boolean;
    v_idle boolean;
BEGIN
    SELECT bool_or(c.idle IS NULL), bool_or(c.idle) INTO v_new, v_idle FROM unnest(p_lanes) lane
    CROSS JOIN LATERAL (SELECT bool_or(k.state = 'idle' AND (p_group IS NULL OR k.group_id = p_group)) AS idle FROM qo.cursors k WHERE k.lane_id = lane) c;
    IF v_idle THEN
        PERFORM FROM qo.cursors WHERE lane_id = ANY (p_lanes) AND state = 'idle' AND (p_group IS NULL OR group_id = p_group) ORDER BY id FOR UPDATE;
        UPDATE qo.cursors c SET head_kind = h.kind, head_priority = h.priority, head_entered_at = h.entered,
            state = CASE WHEN qo.is_filling(c.hold, c.lane_id, c.position) THEN 'blocked' ELSE 'ready' END,
            due_at = CASE WHEN qo.is_filling(c.hold, c.lane_id, c.position) THEN h.entered + make_interval(secs => c.hold)
                          WHEN c.keyed THEN h.expires END
        FROM unnest(p_lanes, p_kinds, p_priorities, p_entered, p_expires) AS h (lane, kind, priority, entered, expires)
        CROSS JOIN LATERAL (SELECT k.id FROM qo.cursors k WHERE k.lane_id = h.lane AND k.state = 'idle'
                            AND (p_group IS NULL OR k.group_id = p_group) OFFSET 0) i
        WHERE c.id = i.id;
    END IF;
    IF v_new THEN
        INSERT INTO qo.cursors (lane_id, group_id, keyed, position, hold, head_kind, head_priority, head_entered_at, state, due_at)
        SELECT l.id, g.id, l.keyed, 0, l.hold, h.kind, h.priority, h.entered,
               CASE WHEN g.id <> p_group THEN 'idle' WHEN qo.is_filling(l.hold, l.id, 0) THEN 'blocked' ELSE 'ready' END,
               CASE WHEN g.id <> p_group THEN NULL WHEN qo.is_filling(l.hold, l.id, 0) THEN h.entered + make_interval(secs => l.hold)
                    WHEN l.keyed THEN h.expires END
        FROM unnest(p_lanes, p_kinds, p_priorities, p_entered, p_expires) AS h (lane, kind, priority, entered, expires)
        CROSS JOIN LATERAL (SELECT x.id, x.queue_id, x.key IS NOT NULL AS keyed, CASE WHEN x.key IS NULL THEN 0 ELSE (q.rules ->> 'window')::double precision END AS hold
                            FROM qo.lanes x JOIN qo.queues q ON q.id = x.queue_id WHERE x.id = h.lane LIMIT 1) l
        JOIN qo.groups g ON g.queue_id = l.queue_id
        WHERE NOT EXISTS (SELECT FROM qo.cursors k WHERE k.lane_id = h.lane) ORDER BY l.id, g.id;
    END IF;
    RETURN v_new OR coalesce(v_idle, false);
END $$;

-- Where lanes, which the caller has locked, give out their next offset, and the time of entry there, in the order given.
CREATE FUNCTION qo.tails_of(p_lanes bigint[], p_now timestamptz, OUT tails bigint[], OUT entered timestamptz[]) LANGUAGE sql STABLE AS $$
    SELECT array_agg(greatest(l.floor, t."offset" + 1) ORDER BY u.n), array_agg(greatest(p_now, l.floor_entered_at, t.entered_at) ORDER BY u.n)
    FROM unnest(p_lanes) WITH ORDINALITY AS u (lane, n) CROSS JOIN LATERAL (SELECT * FROM qo.lanes x WHERE x.id = u.lane LIMIT 1) l
    LEFT JOIN LATERAL (SELECT m."offset", m.entered_at FROM qo.messages m WHERE m.lane_id = u.lane ORDER BY m."offset" DESC LIMIT 1) t ON true
$$;

-- Push messages that say nothing but their payload, and kind and priority in keyed lanes. A keyed lane's kind and priority
-- are those of its first message here. A column that is the same for all has one value; without lane numbers, each message has a lane
-- of its own, or all the same. Spans are the ids, where they count up: of lane after lane in the order given, a run is a
-- span of two or more in one lane.
-- Answers NULL if it was done; else why it must be said to `push_any`: a payload too large, due intake of a key.
CREATE FUNCTION qo.push_plain(p_queues text[], p_keys text[], p_kinds text[], p_priorities integer[],
                              p_lane_numbers integer[], p_ids uuid[], p_payloads bytea[], p_own_kinds text[],
                              p_own_priorities integer[], p_alone boolean[], p_run_lanes integer[], p_run_firsts uuid[], p_run_lasts uuid[],
                              p_run_starts bigint[], p_span_firsts uuid[], p_span_lasts uuid[], p_now timestamptz) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz;
    v_count integer := cardinality(p_keys);
    v_own integer := cardinality(p_ids);
    v_queues bigint[];
    v_lanes bigint[];
    v_tails bigint[];
    v_entered timestamptz[];
    v_limit bigint;
    q qo.queues;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN PERFORM qo.refuse_isolation(); END IF;
    IF p_now IS NOT NULL THEN PERFORM qo.check_clock(); END IF;
    FOR i IN 1..cardinality(p_queues) LOOP
        IF q.name IS DISTINCT FROM p_queues[i] THEN
            q := qo.queue_to_use(p_queues[i], coalesce(p_now, clock_timestamp()));
            v_limit := least(v_limit, (q.rules ->> 'max_payload')::bigint);
            IF q.rules ->> 'adorned' = 'true' THEN RETURN 'adorned'; END IF;
        END IF;
        v_queues[i] := q.id;
    END LOOP;
    p_queues := qo.filled(p_queues, v_count);
    v_queues := qo.filled(v_queues, v_count);
    p_kinds := qo.filled(p_kinds, v_count);
    p_priorities := qo.filled(p_priorities, v_count);
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
    IF qo.knows_ids(p_span_firsts, p_span_lasts) THEN RAISE unique_violation USING MESSAGE = 'qo: known id'; END IF;
    SELECT x.tails, x.entered INTO v_tails, v_entered FROM qo.tails_of(v_lanes, v_now) x;
    INSERT INTO qo.id_runs (first, last, lane_id, "offset")
    SELECT r.first, r.last, v_lanes[r.lane], v_tails[r.lane] + r.start
    FROM unnest(p_run_lanes, p_run_firsts, p_run_lasts, p_run_starts) AS r (lane, first, last, start);
    IF v_count = 1 THEN
        INSERT INTO qo.messages (lane_id, "offset", id, kind, priority, payload, created_at, entered_at, alone)
        SELECT v_lanes[1], v_tails[1] + m.number - 1, m.id, m.kind, m.priority, m.payload, v_now, v_entered[1], coalesce(m.alone, false)
        FROM unnest(p_ids, qo.filled(p_own_kinds, v_own), qo.filled(p_own_priorities, v_own), p_payloads, qo.filled(p_alone, v_own)) WITH ORDINALITY
            AS m (id, kind, priority, payload, alone, number);
    ELSIF v_count = v_own THEN
        INSERT INTO qo.messages (lane_id, "offset", id, kind, priority, payload, created_at, entered_at, alone)
        SELECT m.lane, m.tail, m.id, m.kind, m.priority, m.payload, v_now, m.entered, true
        FROM unnest(v_lanes, v_tails, v_entered, p_ids, qo.filled(p_own_kinds, v_own), qo.filled(p_own_priorities, v_own), p_payloads)
            AS m (lane, tail, entered, id, kind, priority, payload);
    ELSE
        INSERT INTO qo.messages (lane_id, "offset", id, kind, priority, payload, created_at, entered_at, alone)
        SELECT v_lanes[m.lane], v_tails[m.lane] + row_number() OVER (PARTITION BY m.lane ORDER BY m.number) - 1,
               m.id, m.kind, m.priority, m.payload, v_now, v_entered[m.lane], coalesce(m.alone, false)
        FROM unnest(p_lane_numbers, p_ids, qo.filled(p_own_kinds, v_own), qo.filled(p_own_priorities, v_own), p_payloads, qo.filled(p_alone, v_own))
            WITH ORDINALITY AS m (lane, id, kind, priority, payload, alone, number);
    END IF;
    IF qo.wake(v_lanes, p_kinds, p_priorities, v_entered, '{}', NULL) THEN
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
    WHERE q.name = p_queue AND octet_length(p_payload) <= (q.rules ->> 'max_payload')::bigint AND q.rules ->> 'adorned' = 'false'
      AND EXISTS (SELECT FROM qo.cursors c WHERE c.lane_id = l.id);    -- or it never had a message
    IF NOT FOUND OR qo.knows_ids(ARRAY[p_id], ARRAY[p_id]) THEN RETURN false; END IF;
    PERFORM FROM qo.lanes WHERE id = v_lane FOR UPDATE;
    IF NOT FOUND THEN RETURN false; END IF;
    v_now := coalesce(p_now, clock_timestamp());
    SELECT greatest(l.floor, t."offset" + 1), greatest(v_now, l.floor_entered_at, t.entered_at) INTO v_tail, v_entered FROM qo.lanes l
    LEFT JOIN LATERAL (SELECT m."offset", m.entered_at FROM qo.messages m WHERE m.lane_id = v_lane ORDER BY m."offset" DESC LIMIT 1) t ON true
    WHERE l.id = v_lane;
    INSERT INTO qo.messages (lane_id, "offset", id, payload, created_at, entered_at, alone) VALUES (v_lane, v_tail, p_id, p_payload, v_now, v_entered, true);
    UPDATE qo.cursors SET state = 'ready' WHERE id = ANY (ARRAY(
        SELECT id FROM qo.cursors WHERE lane_id = v_lane AND state = 'idle' ORDER BY id FOR UPDATE));
    IF FOUND THEN PERFORM pg_notify('qo', json_build_array(p_queue)::text); END IF;
    PERFORM qo.to_tidy(ARRAY[v_lane], v_now);
    RETURN true;
END $$;

-- Append messages, in their order, to lanes that the caller has locked, and wake idle cursors. Answers whether there were any. Raises a
-- unique violation if one of them is there already. Work is per message and never per pair: no array is looked into by its number but
-- those whose elements all have one length, and no two arrays are joined.
CREATE FUNCTION qo.append(p_lanes bigint[], p_keyed boolean[], p_ids uuid[], p_kinds text[], p_priorities integer[], p_payloads bytea[],
                          p_headers text[], p_created timestamptz[], p_dues timestamptz[], p_expires timestamptz[], p_group bigint,
                          p_retries_of uuid[], p_noted boolean[], p_now timestamptz) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_distinct bigint[];        -- the lanes, by id, and of each its first message here:
    v_kinds text[];
    v_priorities integer[];
    v_expires timestamptz[];
    v_tails bigint[];
    v_entered timestamptz[];
    v_places bigint[];          -- of each message
    v_numbers integer[];        -- of each message its lane's, among the distinct
    v_runs integer[];           -- of each message its run's, in its lane: ids that count up by one from place to place, and no other between them
    v_alone boolean[];          -- whether it is all of its run
BEGIN
    IF cardinality(p_lanes) = 1 THEN
        v_distinct := p_lanes; v_kinds := p_kinds; v_priorities := p_priorities; v_expires := p_expires;
    ELSE
        SELECT array_agg(m.lane ORDER BY m.lane), array_agg(m.kind ORDER BY m.lane), array_agg(m.priority ORDER BY m.lane),
               array_agg(m.expires ORDER BY m.lane) INTO v_distinct, v_kinds, v_priorities, v_expires
        FROM (SELECT DISTINCT ON (u.lane) u.* FROM unnest(p_lanes, p_kinds, p_priorities, p_expires) WITH ORDINALITY
                  AS u (lane, kind, priority, expires, n) ORDER BY u.lane, u.n) m;
    END IF;
    SELECT x.tails, x.entered INTO v_tails, v_entered FROM qo.tails_of(v_distinct, p_now) x;
    SELECT array_agg(v_tails[r.d] + r.o - 1 ORDER BY r.n), array_agg(r.d ORDER BY r.n), array_agg(r.run ORDER BY r.n), array_agg(r.alone ORDER BY r.n)
    INTO v_places, v_numbers, v_runs, v_alone
    FROM (SELECT y.*, count(*) OVER (PARTITION BY y.lane, y.run) = 1 AS alone
          FROM (SELECT x.*, (count(*) FILTER (WHERE x.begins) OVER (PARTITION BY x.lane ORDER BY x.n))::integer AS run
                FROM (SELECT u.lane, u.n, (dense_rank() OVER (ORDER BY u.lane))::integer AS d, row_number() OVER w AS o,
                             (u.number - lag(u.number) OVER w) IS DISTINCT FROM 1 OR u.head IS DISTINCT FROM lag(u.head) OVER w AS begins
                      FROM (SELECT i.lane, i.n, left(i.id, 24) AS head, ('x' || right(i.id, 12))::bit(48)::bigint AS number
                            FROM unnest(p_lanes, p_ids::text[]) WITH ORDINALITY AS i (lane, id, n) OFFSET 0) u WINDOW w AS (PARTITION BY u.lane ORDER BY u.n)) x) y) r;
    IF qo.knows_ids(ARRAY(SELECT id FROM unnest(p_ids) id ORDER BY id LIMIT 1), ARRAY(SELECT id FROM unnest(p_ids) id ORDER BY id DESC LIMIT 1))
        AND qo.knows_ids(p_ids, p_ids) AND EXISTS (SELECT FROM unnest(p_ids) id WHERE (qo.place_of(id)).lane_id IS NOT NULL) THEN
        RAISE unique_violation USING MESSAGE = 'qo: known id';
    END IF;
    INSERT INTO qo.id_runs (first, last, lane_id, "offset")
    SELECT (array_agg(u.id ORDER BY u.place))[1], (array_agg(u.id ORDER BY u.place DESC))[1], u.lane, min(u.place)
    FROM unnest(p_lanes, v_places, p_ids, v_runs, v_alone) AS u (lane, place, id, run, alone) WHERE NOT u.alone GROUP BY u.lane, u.run ORDER BY 1;
    INSERT INTO qo.messages (lane_id, "offset", id, kind, priority, payload, headers, created_at, due_at, entered_at, expires_at, group_id, retry_of, alone)
    SELECT m.lane, m.place, m.id, CASE WHEN m.keyed THEN m.kind END, CASE WHEN m.keyed THEN m.priority END, m.payload, m.headers,
           m.created, m.due, v_entered[m.d], m.expires, p_group, m.retry_of, m.alone
    FROM unnest(p_lanes, v_places, v_numbers, p_keyed, p_ids, p_kinds, p_priorities, p_payloads, p_headers, p_created, p_dues, p_expires, p_retries_of, v_alone)
        AS m (lane, place, d, keyed, id, kind, priority, payload, headers, created, due, expires, retry_of, alone);
    IF p_group IS NOT NULL THEN
        INSERT INTO qo.addressed (lane_id, "offset", group_id) SELECT lane, place, p_group FROM unnest(p_lanes, v_places) AS u (lane, place);
    END IF;
    IF true = ANY (p_noted) THEN
        PERFORM qo.record_events(ARRAY(SELECT u.id FROM unnest(p_ids, p_noted) AS u (id, noted) WHERE u.noted), 'queued', 'entered its lane', p_now);
    END IF;
    RETURN qo.wake(v_distinct, v_kinds, v_priorities, v_entered, v_expires, p_group);
END $$;

-- When a message's life ends: from its due time.
CREATE FUNCTION qo.life(q qo.queues, p_ttl double precision, p_due timestamptz, p_now timestamptz) RETURNS timestamptz LANGUAGE sql
RETURN greatest(p_now, p_due) + make_interval(secs => coalesce(p_ttl, (q.rules ->> 'ttl')::double precision));

CREATE FUNCTION qo.scope_of(p_dedupe jsonb, p_key text, p_kind text, p_priority integer) RETURNS text LANGUAGE sql IMMUTABLE
RETURN CASE WHEN p_dedupe ->> 'scope' = 'queue' THEN ''
            WHEN p_key IS NOT NULL THEN 'key:' || p_key ELSE 'open:' || p_priority::text || ':' || p_kind END;

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

-- Take the dedupe keys of messages, if no two are the same and nobody has, or had, one of them: the common case of `lock_keys` and
-- `judge_keys`, with one row written for each. Whether that was possible; if not, what was written stands in for free keys.
CREATE FUNCTION qo.take_keys(p_queues bigint[], p_scopes text[], p_ids uuid[], p_dedupes jsonb[], p_windows double precision[], p_now timestamptz)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_count bigint;
    v_queues bigint[];      -- of the keys that were taken, as the following
    v_scopes text[];
    v_keys text[];
BEGIN
    SELECT count(*) INTO v_count FROM unnest(p_dedupes) d WHERE d IS NOT NULL;
    IF v_count > (SELECT count(*) FROM (SELECT DISTINCT m.queue, m.scope, m.dedupe ->> 'key' FROM unnest(p_queues, p_scopes, p_dedupes) AS m (queue, scope, dedupe)
                                        WHERE m.dedupe IS NOT NULL) x) THEN
        RETURN false;
    END IF;
    WITH taken AS (
        INSERT INTO qo.dedupe (queue_id, scope, key, message_id, until, checked_at)
        SELECT m.queue, m.scope COLLATE "C", (m.dedupe ->> 'key') COLLATE "C", m.id, u.until, coalesce(u.until, p_now + interval '{check_dedupe}')
        FROM unnest(p_queues, p_scopes, p_ids, p_dedupes, p_windows) AS m (queue, scope, id, dedupe, secs)
        CROSS JOIN LATERAL (SELECT p_now + make_interval(secs => m.secs) AS until) u WHERE m.dedupe IS NOT NULL ORDER BY 1, 2, 3
        ON CONFLICT DO NOTHING RETURNING queue_id, scope, key
    )
    SELECT array_agg(t.queue_id), array_agg(t.scope), array_agg(t.key) INTO v_queues, v_scopes, v_keys FROM taken t;
    IF cardinality(v_keys) = v_count THEN RETURN true; END IF;
    UPDATE qo.dedupe d SET message_id = '00000000-0000-0000-0000-000000000000', until = '-infinity', checked_at = p_now
    FROM unnest(v_queues, v_scopes, v_keys) AS t (queue, scope, key) WHERE d.queue_id = t.queue AND d.scope = t.scope AND d.key = t.key;
    RETURN false;
END $$;

-- Judge the dedupe keys of messages: of each the one that holds its key, NULL if it takes the key itself or has none. The keys are locked.
-- Keys that come once are judged together; one that comes again in the batch, or whose row is not there, in its turn.
CREATE FUNCTION qo.judge_keys(p_queues bigint[], p_scopes text[], p_ids uuid[], p_dedupes jsonb[], p_windows double precision[], p_known boolean[], p_now timestamptz)
RETURNS uuid[] LANGUAGE plpgsql AS $$
DECLARE
    v_firsts uuid[] := array_fill(NULL::uuid, ARRAY[cardinality(p_ids)]);
    v_on_the_way uuid[] := '{}';
    q qo.queues;
    x record;
BEGIN
    FOR x IN
        WITH asked AS MATERIALIZED (
            SELECT m.*, m.dedupe ->> 'key' AS key, count(*) OVER (PARTITION BY m.queue, m.scope, m.dedupe ->> 'key') AS times
            FROM unnest(p_queues, p_scopes, p_ids, p_dedupes, p_windows) WITH ORDINALITY AS m (queue, scope, id, dedupe, secs, n) WHERE m.dedupe IS NOT NULL
        ), judged AS MATERIALIZED (
            SELECT a.*, d.message_id AS first, a.times = 1 AND d.message_id IS NOT NULL AS judged,
                   CASE WHEN a.times > 1 THEN NULL WHEN d.until IS NOT NULL THEN d.until <= p_now
                        ELSE (SELECT qo.is_finished(k, d.message_id, p_now) FROM qo.queues k WHERE k.id = a.queue) END AS free,
                   p_now + make_interval(secs => a.secs) AS until
            FROM asked a LEFT JOIN LATERAL (SELECT * FROM qo.dedupe y WHERE y.queue_id = a.queue AND y.scope = a.scope AND y.key = a.key LIMIT 1) d ON true
        ), taken AS (
            INSERT INTO qo.dedupe AS d (queue_id, scope, key, message_id, until, checked_at)
            SELECT j.queue, j.scope, j.key, j.id, j.until, coalesce(j.until, p_now + interval '{check_dedupe}') FROM judged j WHERE j.judged AND j.free
            ON CONFLICT (queue_id, scope, key) DO UPDATE SET message_id = excluded.message_id, until = excluded.until, checked_at = excluded.checked_at
        )
        SELECT j.* FROM judged j ORDER BY j.n
    LOOP
        IF x.judged THEN
            IF x.free IS NULL THEN RAISE EXCEPTION USING ERRCODE = 'QO002', MESSAGE = 'a lease has run out', DETAIL = x.first; END IF;
            IF NOT x.free THEN v_firsts[x.n] := x.first; END IF;
        ELSE
            IF q.id IS DISTINCT FROM x.queue THEN SELECT * INTO STRICT q FROM qo.queues WHERE id = x.queue; END IF;
            v_firsts[x.n] := qo.holder(q, x.dedupe, x.scope, x.id, v_on_the_way, p_now);
            IF v_firsts[x.n] IS NULL AND p_known[x.n] IS NULL THEN v_on_the_way := v_on_the_way || x.id; END IF;
        END IF;
    END LOOP;
    RETURN v_firsts;
END $$;

-- Push anything, in a few statements for all of it. Lanes are created in the order of first arrivals, and locked by id before offsets
-- are given out. A column that is the same for all has one value. Answers for each message: 'stored', 'duplicate' and the first one's id, 'too large' and the limit, or 'known',
-- if its id is that of another message. Raises, and nothing is done: QO001, if a queue is missing that the caller wants to
-- create itself (`p_own`); QO003, if a queue's payloads must be sealed and one is not; QO004, if a queue is full; a unique
-- violation, if an id is known and that was not to be looked for first (`p_look`).
CREATE FUNCTION qo.push_any(p_queues text[], p_keys text[], p_kinds text[], p_priorities integer[], p_ids uuid[], p_payloads bytea[],
                        p_headers text[], p_dues timestamptz[], p_delays double precision[], p_ttls double precision[], p_dedupes jsonb[],
                        p_own text[], p_look boolean, p_now timestamptz)
RETURNS TABLE (answer text, other text) LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_due timestamptz := v_now;     -- whose keys are locked
    v_count integer := cardinality(p_ids);
    v_name text;
    v_queues bigint[];          -- by message, as the following
    v_dues timestamptz[];
    v_limits text[];            -- how large it may be, if it is larger
    v_windows double precision[];   -- seconds that its dedupe key holds; NULL: until it is finished
    v_lives double precision[];     -- seconds from its due time; NULL: for ever
    v_noted boolean[];          -- whether its queue's history is full
    v_scopes text[];
    v_firsts uuid[];            -- who holds its dedupe key, if it is another
    v_taken boolean;            -- whether all took their dedupe keys at once; NULL if they have none
    v_known boolean[];          -- whether its id is there, and is its own
    v_comes boolean[];
    v_numbers integer[];        -- of those that enter now: their lanes'
    v_lanes bigint[];
    v_waited integer[];         -- numbers of lanes whose intake is due
    v_hint boolean := false;
    x record;
    q qo.queues;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN PERFORM qo.refuse_isolation(); END IF;
    IF p_now IS NOT NULL THEN PERFORM qo.check_clock(); END IF;
    p_queues := qo.filled(p_queues, v_count);
    p_keys := qo.filled(p_keys, v_count);
    p_kinds := qo.filled(p_kinds, v_count);
    p_priorities := qo.filled(p_priorities, v_count);
    p_headers := qo.filled(p_headers, v_count);
    p_dues := qo.filled(p_dues, v_count);
    p_delays := qo.filled(p_delays, v_count);
    p_ttls := qo.filled(p_ttls, v_count);
    p_dedupes := qo.filled(p_dedupes, v_count);
    IF cardinality(p_own) > 0 THEN
        SELECT n INTO v_name FROM unnest(p_own) n WHERE NOT EXISTS (SELECT FROM qo.queues k WHERE k.name = n) LIMIT 1;
        IF FOUND THEN RAISE EXCEPTION USING ERRCODE = 'QO001', MESSAGE = 'a queue is new', DETAIL = v_name; END IF;
    END IF;
    -- One push at a time is weighed against a queue's size.
    PERFORM FROM qo.queues k WHERE k.name = ANY (p_queues) AND k.rules ->> 'max_size' IS NOT NULL ORDER BY k.id FOR NO KEY UPDATE;
    PERFORM qo.queue_to_use(u.name, v_now) FROM (SELECT name FROM unnest(p_queues) WITH ORDINALITY AS n (name, n) GROUP BY name ORDER BY min(n)) u;
    SELECT array_agg(k.id ORDER BY m.n),
           array_agg(coalesce(m.due, v_now + make_interval(secs => coalesce(m.delay, nullif((k.rules ->> 'delay')::double precision, 0)))) ORDER BY m.n),
           array_agg(CASE WHEN octet_length(m.payload) > (k.rules ->> 'max_payload')::bigint THEN k.rules ->> 'max_payload' END ORDER BY m.n),
           array_agg((CASE WHEN m.dedupe ? 'as_queue' THEN k.rules ->> 'dedupe_window' ELSE m.dedupe ->> 'window' END)::double precision ORDER BY m.n),
           array_agg(coalesce(m.ttl, (k.rules ->> 'ttl')::double precision) ORDER BY m.n), array_agg(k.rules ->> 'history' = 'full' ORDER BY m.n),
           min(k.name) FILTER (WHERE k.rules ->> 'encrypt' = 'true' AND NOT coalesce(m.headers::jsonb ? 'qo-sealed', false))
    INTO v_queues, v_dues, v_limits, v_windows, v_lives, v_noted, v_name
    FROM unnest(p_queues, p_dues, p_delays, p_payloads, p_headers, p_dedupes, p_ttls) WITH ORDINALITY
        AS m (queue, due, delay, payload, headers, dedupe, ttl, n)
    CROSS JOIN LATERAL (SELECT y.id, y.name, y.rules FROM qo.queues y WHERE y.name = m.queue LIMIT 1) k;
    IF v_name IS NOT NULL THEN RAISE EXCEPTION USING ERRCODE = 'QO003', MESSAGE = 'a queue seals its payloads', DETAIL = v_name; END IF;
    v_firsts := array_fill(NULL::uuid, ARRAY[v_count]);
    IF EXISTS (SELECT FROM unnest(p_dedupes) d WHERE d IS NOT NULL) THEN
        v_scopes := ARRAY(SELECT qo.scope_of(m.dedupe, m.key, m.kind, m.priority) FROM unnest(p_dedupes, p_keys, p_kinds, p_priorities)
                          WITH ORDINALITY AS m (dedupe, key, kind, priority, n) ORDER BY m.n);
        v_taken := NOT p_look AND array_remove(v_limits, NULL) = '{}' AND qo.take_keys(v_queues, v_scopes, p_ids, p_dedupes, v_windows, v_now);
    END IF;
    IF v_count > 1 OR p_keys[1] IS NOT NULL THEN
        PERFORM qo.lock_keys_of(p_queues, p_keys, p_kinds, p_priorities, CASE WHEN v_taken THEN '{}' ELSE p_dedupes END, v_now);
    END IF;
    v_known := array_fill(NULL::boolean, ARRAY[v_count]);
    -- Without `p_look`, one that is in a lane is met where it is written; but not if it is delayed now.
    FOR x IN SELECT m.* FROM unnest(p_ids, p_queues, p_keys, p_payloads, v_dues) WITH ORDINALITY AS m (id, queue, key, payload, due, n)
             WHERE EXISTS (SELECT FROM qo.intake i WHERE i.id = m.id) OR ((p_look OR m.due > v_now) AND (
                 EXISTS (SELECT FROM qo.messages k WHERE k.id = m.id AND k.alone)
                 OR EXISTS (SELECT FROM (SELECT i.last FROM qo.id_runs i WHERE i.first <= m.id ORDER BY i.first DESC LIMIT 1) b WHERE b.last >= m.id))) LOOP
        v_known[x.n] := qo.is_repeat(x.id, x.queue, x.key, x.payload);
    END LOOP;
    IF NOT v_taken THEN
        v_firsts := qo.judge_keys(v_queues, v_scopes, p_ids,
            ARRAY(SELECT CASE WHEN m.large IS NULL THEN m.dedupe END FROM unnest(p_dedupes, v_limits) WITH ORDINALITY AS m (dedupe, large, n) ORDER BY m.n),
            v_windows, v_known, v_now);
    END IF;
    v_comes := ARRAY(SELECT m.large IS NULL AND m.first IS NULL AND m.known IS NULL FROM unnest(v_limits, v_firsts, v_known)
                     WITH ORDINALITY AS m (large, first, known, n) ORDER BY m.n);
    INSERT INTO qo.intake (id, queue, key, kind, priority, payload, headers, created_at, due_at, ttl)
    SELECT m.id, m.queue, m.key, m.kind, m.priority, m.payload, m.headers, v_now, m.due, m.ttl
    FROM unnest(p_ids, p_queues, p_keys, p_kinds, p_priorities, p_payloads, p_headers, v_dues, p_ttls, v_comes)
        AS m (id, queue, key, kind, priority, payload, headers, due, ttl, comes) WHERE m.comes AND m.due > v_now;
    v_hint := FOUND;
    -- The lanes of those that enter now, in the order of first arrivals.
    WITH entering AS MATERIALIZED (
        SELECT m.*, min(m.n) OVER (PARTITION BY m.queue, m.key, CASE WHEN m.key IS NULL THEN m.kind END, CASE WHEN m.key IS NULL THEN m.priority END) AS first
        FROM unnest(p_queues, v_queues, p_keys, p_kinds, p_priorities, v_dues, v_comes) WITH ORDINALITY AS m (name, queue, key, kind, priority, due, comes, n)
        WHERE m.comes AND NOT coalesce(m.due > v_now, false)
    )
    SELECT qo.lanes_to_use(array_agg(e.queue ORDER BY e.n) FILTER (WHERE e.n = e.first), array_agg(e.key ORDER BY e.n) FILTER (WHERE e.n = e.first),
                           array_agg(e.kind ORDER BY e.n) FILTER (WHERE e.n = e.first), array_agg(e.priority ORDER BY e.n) FILTER (WHERE e.n = e.first)),
           array_agg(e.d ORDER BY e.n), array_agg(e.d) FILTER (WHERE e.n = e.first AND EXISTS (
               SELECT FROM qo.intake i WHERE i.queue = e.name AND i.key = e.key AND e.key IS NOT NULL AND i.canceled_at IS NULL AND i.due_at <= v_due))
    INTO v_lanes, v_numbers, v_waited FROM (SELECT e.*, (dense_rank() OVER (ORDER BY e.first))::integer AS d FROM entering e) e HAVING count(*) > 0;
    IF v_numbers IS NOT NULL THEN
        PERFORM qo.lock_by_id(v_lanes);
        v_comes := ARRAY(SELECT m.comes AND NOT coalesce(m.due > v_now, false) FROM unnest(v_comes, v_dues) WITH ORDINALITY AS m (comes, due, n) ORDER BY m.n);
        v_now := coalesce(p_now, clock_timestamp());
        IF v_waited IS NOT NULL THEN
            PERFORM qo.lock_idle(v_lanes, '{}');    -- all, by id, before some are woken
            FOR x IN SELECT l.id, l.queue_id, l.key FROM unnest(v_waited) u CROSS JOIN LATERAL (SELECT * FROM qo.lanes y WHERE y.id = v_lanes[u] LIMIT 1) l LOOP
                IF q.id IS DISTINCT FROM x.queue_id THEN SELECT * INTO STRICT q FROM qo.queues WHERE id = x.queue_id; END IF;
                v_hint := qo.enter_of_key(q, x.id, x.key, v_due, v_now) OR v_hint;
            END LOOP;
        END IF;
        SELECT qo.append(array_agg(m.lane ORDER BY m.n), array_agg(m.key IS NOT NULL ORDER BY m.n), array_agg(m.id ORDER BY m.n),
                         array_agg(m.kind ORDER BY m.n), array_agg(m.priority ORDER BY m.n), array_agg(m.payload ORDER BY m.n),
                         array_agg(m.headers ORDER BY m.n), array_agg(v_now ORDER BY m.n), array_agg(m.due ORDER BY m.n),
                         array_agg(greatest(v_now, m.due) + make_interval(secs => m.life) ORDER BY m.n), NULL, NULL,
                         array_agg(m.noted ORDER BY m.n), v_now) OR v_hint INTO v_hint
        FROM (SELECT u.*, v_lanes[v_numbers[row_number() OVER (ORDER BY u.n)]] AS lane
              FROM unnest(v_comes, p_keys, p_ids, p_kinds, p_priorities, p_payloads, p_headers, v_dues, v_lives, v_noted)
                  WITH ORDINALITY AS u (comes, key, id, kind, priority, payload, headers, due, life, noted, n) WHERE u.comes) m;
        IF EXISTS (SELECT FROM qo.cursors k WHERE k.lane_id = ANY (v_lanes) AND k.hold > 0) THEN PERFORM qo.wake_full(v_lanes); v_hint := true; END IF;
        PERFORM qo.to_tidy(v_lanes, v_now);
    END IF;
    FOR q IN SELECT * FROM qo.queues k WHERE k.id = ANY (v_queues) AND k.rules ->> 'max_size' IS NOT NULL LOOP
        IF qo.unsettled(q, v_now) > (q.rules ->> 'max_size')::bigint AND EXISTS (
                SELECT FROM unnest(v_queues, v_limits, v_firsts, v_known) AS m (queue, large, first, known)
                WHERE m.queue = q.id AND m.large IS NULL AND m.first IS NULL AND m.known IS NULL) THEN
            RAISE EXCEPTION USING ERRCODE = 'QO004', MESSAGE = 'a queue is full', DETAIL = q.name;
        END IF;
    END LOOP;
    IF v_hint THEN PERFORM qo.hint(ARRAY(SELECT DISTINCT unnest(p_queues))); END IF;
    RETURN QUERY SELECT CASE WHEN m.large IS NOT NULL THEN 'too large' WHEN m.first IS NOT NULL THEN 'duplicate' WHEN NOT m.known THEN 'known' ELSE 'stored' END,
                        coalesce(m.large, m.first::text)
    FROM unnest(v_limits, v_firsts, v_known) WITH ORDINALITY AS m (large, first, known, n) ORDER BY m.n;
END $$;

-- Move all that is due for one key into its lane, which the caller has locked, so that a push comes after it.
CREATE FUNCTION qo.enter_of_key(q qo.queues, p_lane bigint, p_key text, p_due timestamptz, p_now timestamptz) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_ids uuid[] := ARRAY(SELECT t.id FROM qo.intake t WHERE t.queue = q.name AND t.key = p_key AND t.canceled_at IS NULL AND t.due_at <= p_due
                          ORDER BY t.due_at, t.id FOR UPDATE);
BEGIN
    RETURN qo.enter(q, v_ids, array_fill(p_lane, ARRAY[cardinality(v_ids)]), p_now);
END $$;

-- Move intake rows, which the caller has locked, into their lanes, which it has locked, in the order given. Whether that woke somebody.
CREATE FUNCTION qo.enter(q qo.queues, p_ids uuid[], p_lanes bigint[], p_now timestamptz) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_twice uuid[] := '{}';     -- of which another holds the dedupe key
    v_first uuid;
    v_hint boolean;
    i qo.intake;
BEGIN
    IF cardinality(p_ids) = 0 THEN RETURN false; END IF;
    FOR i IN SELECT t.* FROM unnest(p_ids) WITH ORDINALITY AS u (id, n) CROSS JOIN LATERAL (SELECT * FROM qo.intake y WHERE y.id = u.id LIMIT 1) t
             WHERE t.dedupe IS NOT NULL ORDER BY u.n LOOP
        v_first := qo.holder(q, i.dedupe, qo.scope_of(i.dedupe, i.key, i.kind, i.priority), i.id, p_ids, p_now);
        IF v_first IS NOT NULL THEN
            v_twice := v_twice || i.id;
            UPDATE qo.intake SET canceled_at = p_now, reason = 'duplicate', duplicate_of = v_first WHERE id = i.id;
            DELETE FROM qo.watched WHERE message_id = i.id;
            IF FOUND THEN PERFORM qo.tell_finished(ARRAY[i.id]); END IF;
        END IF;
    END LOOP;
    SELECT qo.append(array_agg(u.lane ORDER BY u.n), array_agg(t.key IS NOT NULL ORDER BY u.n), array_agg(t.id ORDER BY u.n),
                     array_agg(t.kind ORDER BY u.n), array_agg(t.priority ORDER BY u.n), array_agg(t.payload ORDER BY u.n),
                     array_agg(t.headers ORDER BY u.n), array_agg(t.created_at ORDER BY u.n), array_agg(t.due_at ORDER BY u.n),
                     array_agg(qo.life(q, t.ttl, t.due_at, least(p_now, t.due_at)) ORDER BY u.n), NULL, NULL,
                     array_agg(q.rules ->> 'history' = 'full' ORDER BY u.n), p_now) INTO v_hint
    FROM unnest(p_ids, p_lanes) WITH ORDINALITY AS u (id, lane, n) CROSS JOIN LATERAL (SELECT * FROM qo.intake y WHERE y.id = u.id LIMIT 1) t
    WHERE t.canceled_at IS NULL HAVING count(*) > 0;
    DELETE FROM qo.intake t WHERE t.id = ANY (p_ids) AND t.canceled_at IS NULL;
    RETURN coalesce(v_hint, false);
END $$;

-- Move what is due in a queue into its lanes, in (due, id) order, up to a limit. One mover per queue at a time. Answers whether
-- more is due, or others are at it.
CREATE FUNCTION qo.enter_due(p_queue text, p_limit integer, p_now timestamptz) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_rows qo.intake[];
    v_lanes bigint[];
    v_ids uuid[];
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
    -- Lanes before intake, as a push does; a row may have been canceled, or have entered with a push, meanwhile.
    v_ids := ARRAY(SELECT r.id FROM unnest(v_rows) r);
    PERFORM FROM qo.intake t WHERE t.id = ANY (v_ids) AND t.canceled_at IS NULL ORDER BY t.due_at, t.id FOR UPDATE;
    SELECT qo.enter(q, array_agg(u.id ORDER BY u.n), array_agg(u.lane ORDER BY u.n), v_now) INTO v_hint
    FROM unnest(v_ids, v_lanes) WITH ORDINALITY AS u (id, lane, n)
    WHERE EXISTS (SELECT FROM qo.intake t WHERE t.id = u.id AND t.canceled_at IS NULL) HAVING count(*) > 0;
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
