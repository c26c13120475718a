-- claim: lease ready messages, higher priority first, then oldest head.

-- A want as the functions use it: its fronts are groups in queues that are not paused.
CREATE TYPE qo.want AS (
    number integer,
    token text,
    fronts bigint[],        -- ids of groups
    queues bigint[],        -- of which queue each is
    kinds text[],
    key text,
    messages integer,
    lanes integer,
    lane_messages integer,
    lease double precision,
    owner text,
    at_delivery boolean
);

-- What a claim took of one lane, in the order in which it is delivered.
CREATE TYPE qo.haul AS (
    want integer,
    lane_id bigint,
    offsets bigint[],
    attempts integer[],             -- that each had before
    expires_at timestamptz
);

-- Resolve wants. `signal` says what must be done first, in a transaction of its own: join a group, move intake, let
-- leases lapse.
CREATE FUNCTION qo.read_wants(p_wants jsonb, p_now timestamptz, p_moved boolean, OUT wants qo.want[], OUT signal text, OUT more boolean)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_want jsonb;
    w qo.want;
    v_names text[];
    v_known integer;
    v_all text[] := '{}';
    v_groups bigint[] := '{}';
BEGIN
    wants := '{}';
    more := false;
    FOR v_want IN SELECT value FROM jsonb_array_elements(p_wants) LOOP
        v_names := qo.queues_of(v_want);
        SELECT coalesce(array_agg(g.id ORDER BY q.ordinality) FILTER (WHERE NOT k.paused), '{}'),
               coalesce(array_agg(k.id ORDER BY q.ordinality) FILTER (WHERE NOT k.paused), '{}'),
               count(g.id)
        INTO w.fronts, w.queues, v_known
        FROM unnest(v_names) WITH ORDINALITY q (name, ordinality)
        JOIN qo.queues k ON k.name = q.name JOIN qo.groups g ON g.queue_id = k.id AND g.name = v_want ->> 'group';
        IF v_want ->> 'group' <> 'default' AND (v_known < cardinality(v_names) OR (v_want -> 'filter' <> 'null'
                AND NOT EXISTS (SELECT FROM qo.group_filters f WHERE f.name = v_want ->> 'group'
                    AND f.namespace IS NOT DISTINCT FROM v_want -> 'filter' ->> 'namespace'
                    AND f.task IS NOT DISTINCT FROM v_want -> 'filter' ->> 'task'))) THEN
            signal := 'join';
            RETURN;
        END IF;
        w.number := cardinality(wants);
        w.token := v_want ->> 'token';
        w.kinds := CASE WHEN v_want -> 'kinds' <> 'null' THEN ARRAY(SELECT jsonb_array_elements_text(v_want -> 'kinds')) END;
        w.key := v_want ->> 'key';
        w.messages := (v_want ->> 'messages')::integer;
        w.lanes := (v_want ->> 'lanes')::integer;
        w.lane_messages := (v_want ->> 'lane_messages')::integer;
        w.lease := (v_want ->> 'lease')::double precision;
        w.owner := v_want ->> 'owner';
        w.at_delivery := (v_want ->> 'auto_settle')::boolean;
        wants := wants || w;
        v_groups := v_groups || w.fronts;
        v_all := v_all || ARRAY(SELECT n FROM unnest(v_names) n WHERE NOT EXISTS (SELECT FROM qo.queues k WHERE k.name = n AND k.paused));
    END LOOP;
    IF EXISTS (SELECT FROM unnest(v_all) n WHERE EXISTS (SELECT FROM qo.intake i WHERE i.queue = n AND i.canceled_at IS NULL AND i.due_at <= p_now)) THEN
        IF p_moved THEN more := true; ELSE signal := 'intake'; END IF;
    ELSIF EXISTS (SELECT FROM unnest(v_groups) g WHERE EXISTS (SELECT FROM qo.leases e WHERE e.group_id = g AND e.ended_at IS NULL AND e.expires_at <= p_now)
              OR EXISTS (SELECT FROM qo.cursors c WHERE c.group_id = g AND c.due_at <= p_now AND c.due_at IS NOT NULL)) THEN
        IF p_moved THEN more := true; ELSE signal := 'lapse'; END IF;
    END IF;
END $$;

-- The queues that a want names, or that its filter chooses.
CREATE FUNCTION qo.queues_of(p_want jsonb) RETURNS text[] LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_namespace text := p_want -> 'filter' ->> 'namespace';
    v_task text := p_want -> 'filter' ->> 'task';
BEGIN
    IF p_want -> 'filter' = 'null' THEN
        RETURN ARRAY(SELECT name FROM jsonb_array_elements_text(p_want -> 'queues') WITH ORDINALITY q (name, n) GROUP BY name ORDER BY min(n));
    ELSIF v_namespace IS NOT NULL THEN
        RETURN ARRAY(SELECT name FROM qo.queues WHERE namespace = v_namespace AND (v_task IS NULL OR task = v_task) ORDER BY id LIMIT 1000);
    ELSE
        RETURN ARRAY(SELECT name FROM qo.queues WHERE task = v_task ORDER BY id LIMIT 1000);
    END IF;
END $$;

-- The open cursors that wants may take from. Claims wait for these locks, so all are taken in one pass by id.
CREATE FUNCTION qo.open_cursors(p_wants qo.want[], p_now timestamptz) RETURNS bigint[] LANGUAGE sql STABLE AS $$
    SELECT coalesce(array_agg(DISTINCT c.id), '{}') FROM unnest(p_wants) w CROSS JOIN unnest(w.fronts) g
    CROSS JOIN LATERAL (
        SELECT o.id FROM qo.cursors o WHERE o.group_id = g AND NOT o.keyed AND o.state = 'ready'
        UNION ALL
        SELECT r.cursor_id FROM qo.retries r WHERE r.group_id = g AND r.token IS NULL AND r.due_at <= p_now
    ) c WHERE w.key IS NULL;
$$;

-- Whether this owner may take a message that was lost before: an owner holds at most one such at a time.
CREATE FUNCTION qo.may_take_fragile(p_owner text, p_now timestamptz) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT p_owner IS NULL OR NOT EXISTS (
        SELECT FROM qo.leases WHERE owner = p_owner AND fragile IS NOT NULL AND ended_at IS NULL AND expires_at > p_now);
$$;

-- Serve one want. Open cursors were locked by the caller; keyed ones are locked here, those of others are skipped.
CREATE FUNCTION qo.serve(w qo.want, p_draw double precision, p_now timestamptz,
                         OUT hauls qo.haul[], OUT contended boolean, OUT met_fragile boolean) LANGUAGE plpgsql AS $$
DECLARE
    v_passed bigint[] := '{}';
    v_lanes integer := 0;
    v_fragile boolean := qo.may_take_fragile(w.owner, p_now);
    v_before boolean;
    v_haul qo.haul;
    v_count integer := 0;
    v_took boolean;
    v_limit integer;
    v_room integer;
    v_candidates bigint[];
    v_again boolean := true;
    v_id bigint;
    c qo.cursors;
BEGIN
    hauls := '{}';
    contended := false;
    met_fragile := false;
    PERFORM qo.look_again(w, p_now);
    WHILE v_again LOOP
        v_room := w.messages - v_count;
        v_limit := least(v_room, coalesce(w.lanes - v_lanes, v_room));
        EXIT WHEN v_limit <= 0;
        v_candidates := qo.candidates(w, v_limit + cardinality(v_passed), v_passed, v_fragile, p_now);
        IF NOT v_fragile AND w.key IS NULL THEN
            met_fragile := met_fragile OR EXISTS (
                SELECT FROM qo.retries r JOIN qo.cursors k ON k.id = r.cursor_id WHERE r.group_id = ANY (w.fronts) AND r.token IS NULL
                AND r.due_at <= p_now AND r.losses >= 2 AND (w.kinds IS NULL OR k.head_kind = ANY (w.kinds)));
        END IF;
        v_again := false;
        FOREACH v_id IN ARRAY v_candidates LOOP
            SELECT * INTO c FROM qo.cursors WHERE id = v_id AND (NOT keyed OR state = 'ready') FOR UPDATE SKIP LOCKED;
            v_passed := v_passed || v_id;
            IF NOT FOUND THEN
                contended := true;
                CONTINUE;
            END IF;
            v_again := true;
            v_before := v_fragile;
            v_room := w.messages - v_count;
            IF c.keyed AND c.losses >= 2 AND NOT v_fragile THEN
                met_fragile := true;
                v_took := false;
            ELSE
                SELECT (t.got).*, t.fragile INTO v_haul.want, v_haul.lane_id, v_haul.offsets, v_haul.attempts, v_haul.expires_at, v_fragile
                FROM qo.take(w, c, v_room, v_fragile, p_draw, p_now) t;
                v_took := v_haul.lane_id IS NOT NULL;
                IF v_took THEN
                    hauls := hauls || v_haul;
                    v_count := v_count + cardinality(v_haul.offsets);
                    v_lanes := v_lanes + 1;
                END IF;
            END IF;
            -- Full; or lanes look different now; or one gave nothing, and a better one may not be listed.
            EXIT WHEN v_count >= w.messages OR v_lanes >= w.lanes OR v_before <> v_fragile OR NOT v_took;
        END LOOP;
    END LOOP;
    IF v_count = 0 AND NOT contended THEN
        contended := qo.left_unsure(w);
    END IF;
END $$;

-- Look at keyed cursors that were left ready by someone who could not look at their lane.
CREATE FUNCTION qo.look_again(w qo.want, p_now timestamptz) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    c qo.cursors;
BEGIN
    FOR c IN SELECT * FROM qo.cursors k WHERE k.group_id = ANY (w.fronts) AND k.keyed AND k.state = 'ready' AND k.head_kind IS NULL
             ORDER BY k.id LIMIT 100 FOR UPDATE SKIP LOCKED LOOP
        PERFORM qo.rest(c, c.position, c.attempts, c.losses, NULL, p_now);
    END LOOP;
END $$;

-- Whether something may be there that could not be seen: a cursor that is ready though its lane shows nothing.
CREATE FUNCTION qo.left_unsure(w qo.want) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM qo.cursors k WHERE k.group_id = ANY (w.fronts) AND k.keyed AND k.state = 'ready' AND k.head_kind IS NULL)
        OR w.key IS NULL AND EXISTS (SELECT FROM qo.cursors k WHERE k.group_id = ANY (w.fronts) AND NOT k.keyed AND k.state = 'ready'
            AND (w.kinds IS NULL OR k.head_kind = ANY (w.kinds)));
$$;

-- Cursors to take from, best first.
CREATE FUNCTION qo.candidates(w qo.want, p_limit integer, p_passed bigint[], p_fragile boolean, p_now timestamptz)
RETURNS bigint[] LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF w.key IS NOT NULL THEN
        RETURN ARRAY(SELECT c.id FROM unnest(w.queues, w.fronts) AS f (queue, grp)
            JOIN qo.lanes l ON l.queue_id = f.queue AND l.key = w.key JOIN qo.cursors c ON c.lane_id = l.id AND c.group_id = f.grp
            WHERE c.state = 'ready' AND c.head_kind IS NOT NULL AND (w.kinds IS NULL OR c.head_kind = ANY (w.kinds)) AND c.id <> ALL (p_passed)
            ORDER BY c.head_priority DESC, c.head_entered_at, c.lane_id);
    END IF;
    RETURN ARRAY(
        SELECT k.id FROM (
            SELECT c.id, c.head_priority, c.head_entered_at, c.lane_id FROM unnest(w.fronts) g CROSS JOIN LATERAL (
                SELECT * FROM qo.cursors o WHERE w.kinds IS NULL AND o.group_id = g AND o.keyed AND o.state = 'ready' AND o.head_kind IS NOT NULL
                ORDER BY o.head_priority DESC, o.head_entered_at, o.lane_id LIMIT p_limit) c
            UNION ALL
            SELECT c.id, c.head_priority, c.head_entered_at, c.lane_id FROM unnest(w.fronts) g CROSS JOIN unnest(w.kinds) kind CROSS JOIN LATERAL (
                SELECT * FROM qo.cursors o WHERE o.group_id = g AND o.head_kind = kind AND o.keyed AND o.state = 'ready'
                ORDER BY o.head_priority DESC, o.head_entered_at, o.lane_id LIMIT p_limit) c
            UNION ALL
            -- An open lane's head is its first due retry, else its first fresh message; one that has only messages to be passed
            -- is taken too, so that they are; so is one that has none, left ready by someone who could not look.
            SELECT c.id, l.priority, coalesce(r.entered_at, m.entered_at, p.entered_at), c.lane_id
            FROM unnest(w.fronts) g
            CROSS JOIN LATERAL (SELECT o.* FROM qo.cursors o WHERE o.group_id = g AND NOT o.keyed AND o.state = 'ready'
                                UNION SELECT o.* FROM qo.cursors o WHERE o.id IN (SELECT t.cursor_id FROM qo.retries t
                                    WHERE t.group_id = g AND t.token IS NULL AND t.due_at <= p_now AND (t.losses < 2 OR p_fragile))) c
            JOIN qo.lanes l ON l.id = c.lane_id AND (w.kinds IS NULL OR l.kind = ANY (w.kinds))
            CROSS JOIN LATERAL (SELECT qo.position_of((SELECT x FROM qo.cursors x WHERE x.id = c.id)) AS position) at
            LEFT JOIN LATERAL (SELECT t.entered_at FROM qo.retries t WHERE t.cursor_id = c.id AND t.token IS NULL AND t.due_at <= p_now
                               AND (t.losses < 2 OR p_fragile) ORDER BY t.due_at, t."offset" LIMIT 1) r ON true
            LEFT JOIN LATERAL (SELECT t.entered_at FROM qo.messages t WHERE r.entered_at IS NULL AND t.lane_id = c.lane_id
                               AND t."offset" >= at.position AND (t.group_id IS NULL OR t.group_id = c.group_id)
                               AND NOT EXISTS (SELECT FROM qo.skips s WHERE s.cursor_id = c.id AND s."offset" = t."offset")
                               ORDER BY t."offset" LIMIT 1) m ON true
            LEFT JOIN LATERAL (SELECT t.entered_at FROM qo.messages t WHERE r.entered_at IS NULL AND m.entered_at IS NULL
                               AND t.lane_id = c.lane_id AND t."offset" >= at.position ORDER BY t."offset" LIMIT 1) p ON true
        ) k WHERE k.id <> ALL (p_passed) ORDER BY k.head_priority DESC, k.head_entered_at, k.lane_id);
END $$;

-- Take what a lane, whose cursor is locked, has for a want.
CREATE FUNCTION qo.take(w qo.want, c qo.cursors, p_room integer, p_fragile boolean, p_draw double precision, p_now timestamptz,
                        OUT got qo.haul, OUT fragile boolean) LANGUAGE plpgsql AS $$
DECLARE
    q qo.queues;
    l qo.lanes;
    v_offsets bigint[] := '{}';     -- what is delivered, in order
    v_attempts integer[] := '{}';   -- attempts that each had before
    v_retried bigint[] := '{}';
    v_passed int8multirange := '{}';
    v_room integer := p_room;
    v_position bigint;
    v_start bigint;
    v_kind text;
    v_offset bigint;
    v_losses integer;
    v_fragile_at bigint;
    v_seen integer;
    v_more boolean;
    v_first bigint;
    v_last bigint;
    v_expires timestamptz;
    m record;
BEGIN
    fragile := p_fragile;
    SELECT * INTO STRICT l FROM qo.lanes WHERE id = c.lane_id;
    SELECT * INTO STRICT q FROM qo.queues WHERE id = l.queue_id;
    v_expires := p_now + make_interval(secs => coalesce(w.lease, (q.rules ->> 'lease')::double precision));
    IF c.keyed THEN
        IF c.losses > 0 THEN v_room := 1; END IF;
        v_room := least(v_room, coalesce(w.lane_messages, v_room));
    ELSE
        -- Due retries first.
        FOR m IN SELECT r."offset", r.attempts, r.losses,
                        (SELECT t.expires_at FROM qo.messages t WHERE t.lane_id = c.lane_id AND t."offset" = r."offset") AS expires_at
                 FROM qo.retries r WHERE r.cursor_id = c.id AND r.token IS NULL AND r.due_at <= p_now ORDER BY r.due_at, r."offset" LOOP
            EXIT WHEN cardinality(v_offsets) >= v_room;
            CONTINUE WHEN m.losses >= 2 AND NOT p_fragile;
            IF m.expires_at <= p_now THEN
                DELETE FROM qo.retries WHERE cursor_id = c.id AND "offset" = m."offset";
                PERFORM qo.finish(q, c.group_id, c.lane_id, ARRAY[m."offset"], ARRAY['canceled'], ARRAY[m.attempts], ARRAY['expired'],
                                  '{}', '{}', NULL, '{}', p_now);
            ELSIF m.losses < 2 OR fragile THEN
                IF m.losses >= 2 THEN
                    fragile := false;
                    v_fragile_at := m."offset";
                END IF;
                v_offsets := v_offsets || m."offset";
                v_attempts := v_attempts || m.attempts;
                v_retried := v_retried || m."offset";
            END IF;
        END LOOP;
    END IF;
    v_position := CASE WHEN c.keyed THEN c.position ELSE qo.position_of(c) END;
    v_start := v_position;
    v_more := cardinality(v_offsets) < v_room;
    IF v_more THEN
        -- The common case in one statement: messages in a row, nothing among them to be passed.
        SELECT min(t."offset"), max(t."offset") INTO v_first, v_last FROM (
            SELECT * FROM qo.messages x WHERE x.lane_id = c.lane_id AND x."offset" >= v_position
            ORDER BY x."offset" LIMIT v_room - cardinality(v_offsets)) t
        HAVING max(t."offset") - min(t."offset") + 1 = count(*)
           AND NOT bool_or(coalesce(t.expires_at <= p_now, false) OR coalesce(t.group_id <> c.group_id, false)
                           OR (c.keyed AND w.kinds IS NOT NULL AND t.kind <> ALL (w.kinds)));
        IF v_first IS NOT NULL AND NOT EXISTS (SELECT FROM qo.skips s WHERE s.cursor_id = c.id AND s."offset" >= v_first AND s."offset" <= v_last) THEN
            v_start := v_first;
            v_position := v_last + 1;
            v_offsets := v_offsets || ARRAY(SELECT generate_series(v_first, v_last));
            v_attempts := v_attempts || CASE WHEN c.keyed AND v_first = c.position THEN c.attempts ELSE 0 END
                || array_fill(0, ARRAY[(v_last - v_first)::integer]);
            v_more := false;
        END IF;
    END IF;
    <<filling>>
    WHILE v_more AND cardinality(v_offsets) < v_room LOOP
        v_seen := 0;
        FOR m IN SELECT t."offset", t.kind, t.expires_at <= p_now AS expired,
                        t.group_id IS NOT NULL AND t.group_id <> c.group_id AS elsewhere,
                        EXISTS (SELECT FROM qo.skips s WHERE s.cursor_id = c.id AND s."offset" = t."offset") AS skipped
                 FROM qo.messages t WHERE t.lane_id = c.lane_id AND t."offset" >= v_position
                 ORDER BY t."offset" LIMIT v_room - cardinality(v_offsets) LOOP
            v_seen := v_seen + 1;
            IF cardinality(v_offsets) = cardinality(v_retried) AND isempty(v_passed) THEN v_start := m."offset"; END IF;
            IF m.skipped OR m.elsewhere OR m.expired THEN
                v_passed := v_passed + int8multirange(int8range(m."offset", m."offset" + 1));
                IF c.keyed AND NOT m.skipped THEN
                    INSERT INTO qo.skips (cursor_id, "offset") VALUES (c.id, m."offset") ON CONFLICT DO NOTHING;
                END IF;
                IF m.expired AND NOT m.elsewhere AND NOT m.skipped THEN
                    PERFORM qo.finish(q, c.group_id, c.lane_id, ARRAY[m."offset"], ARRAY['canceled'],
                        ARRAY[CASE WHEN c.keyed AND m."offset" = c.position THEN c.attempts ELSE 0 END], ARRAY['expired'],
                        '{}', '{}', NULL, '{}', p_now);
                END IF;
            ELSIF c.keyed AND w.kinds IS NOT NULL AND m.kind <> ALL (w.kinds) THEN
                EXIT filling;
            ELSE
                v_offsets := v_offsets || m."offset";
                v_attempts := v_attempts || CASE WHEN c.keyed AND m."offset" = c.position THEN c.attempts ELSE 0 END;
            END IF;
            v_position := m."offset" + 1;
        END LOOP;
        EXIT WHEN v_seen = 0;
    END LOOP;
    IF c.keyed THEN
        PERFORM qo.hold_run(w, q, c, v_offsets, v_position, v_expires, p_now);
        IF cardinality(v_offsets) > 0 AND c.losses >= 2 AND v_offsets[1] = c.position THEN fragile := false; END IF;
    ELSE
        PERFORM qo.hold_open(w, c, v_start, v_position, v_passed, v_retried, v_fragile_at, cardinality(v_offsets), v_expires, p_now);
        IF cardinality(v_retried) > 0 AND w.at_delivery THEN
            DELETE FROM qo.retries r WHERE r.cursor_id = c.id AND r."offset" = ANY (v_retried);
        ELSIF cardinality(v_retried) > 0 THEN
            UPDATE qo.retries r SET token = w.token WHERE r.cursor_id = c.id AND r."offset" = ANY (v_retried);
        END IF;
    END IF;
    IF cardinality(v_offsets) = 0 THEN RETURN; END IF;
    got := (w.number, c.lane_id, v_offsets, v_attempts, v_expires);
    IF w.at_delivery THEN
        PERFORM qo.finish(q, c.group_id, c.lane_id, v_offsets, array_fill('succeeded'::text, ARRAY[cardinality(v_offsets)]),
                          ARRAY(SELECT a + 1 FROM unnest(v_attempts) WITH ORDINALITY x (a, n) ORDER BY n), '{}', '{}', '{}', w.owner, '{}', p_now);
    ELSIF q.rules ->> 'history' = 'full' AND c.group_id = q.default_group_id THEN
        PERFORM qo.record_events(ARRAY(SELECT (SELECT t.id FROM qo.messages t WHERE t.lane_id = c.lane_id AND t."offset" = o) FROM unnest(v_offsets) o),
                                 'assigned', coalesce(w.owner, ''), p_now);
    END IF;
END $$;

-- Lease a run of a keyed lane, or move past what was not deliverable.
CREATE FUNCTION qo.hold_run(w qo.want, q qo.queues, c qo.cursors, p_offsets bigint[], p_position bigint, p_expires timestamptz,
                            p_now timestamptz) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_count integer := cardinality(p_offsets);
    v_end bigint := p_offsets[cardinality(p_offsets)] + 1;
BEGIN
    IF v_count = 0 THEN
        PERFORM qo.rest(c, p_position, 0, 0, NULL, p_now);
        PERFORM qo.tell(ARRAY[q.name]);
    ELSIF w.at_delivery THEN
        PERFORM qo.rest(c, v_end, 0, 0, NULL, p_now);
        PERFORM qo.tell_of_head(q, c);
    ELSE
        INSERT INTO qo.leases (token, lane_id, cursor_id, group_id, epoch, first, last, from_offset, to_offset, fragile, owner,
                               claimed_at, expires_at)
        VALUES (w.token, c.lane_id, c.id, c.group_id, c.epoch, p_offsets[1], v_end, p_offsets[1], v_end,
                CASE WHEN c.losses >= 2 AND p_offsets[1] = c.position THEN c.position END, w.owner, p_now, p_expires);
        UPDATE qo.cursors SET state = 'leased', position = v_end, due_at = NULL,
            attempts = CASE WHEN p_offsets[1] = c.position THEN attempts ELSE 0 END,
            losses = CASE WHEN p_offsets[1] = c.position THEN losses ELSE 0 END
        WHERE id = c.id;
    END IF;
END $$;

-- Lease a range of an open lane and the retries that were taken with it.
CREATE FUNCTION qo.hold_open(w qo.want, c qo.cursors, p_start bigint, p_end bigint, p_passed int8multirange, p_retried bigint[],
                             p_fragile bigint, p_count integer, p_expires timestamptz, p_now timestamptz)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF p_count = 0 THEN
        -- Messages that were only passed leave no lease: its token may yet be used.
        UPDATE qo.cursors SET position = greatest(position, p_end) WHERE id = c.id AND p_end > p_start;
    ELSE
        -- A claim that settled at delivery has a row to move the cursor, and answers no settle.
        INSERT INTO qo.leases (token, lane_id, cursor_id, group_id, epoch, first, last, from_offset, to_offset, settled, retried,
                               fragile, owner, at_delivery, claimed_at, expires_at, ended_at)
        VALUES (w.token || CASE WHEN w.at_delivery THEN ' ' || gen_random_uuid() ELSE '' END, c.lane_id, c.id, c.group_id, c.epoch,
                p_start, p_end, p_start, p_end, p_passed, p_retried, CASE WHEN NOT w.at_delivery THEN p_fragile END, w.owner,
                w.at_delivery, p_now, p_expires, CASE WHEN w.at_delivery THEN p_now END);
    END IF;
    IF c.state = 'ready' AND NOT EXISTS (SELECT FROM qo.messages m WHERE m.lane_id = c.lane_id AND m."offset" >= p_end) THEN
        PERFORM qo.rest(c, p_end, 0, 0, NULL, p_now);
    END IF;
END $$;

-- When time may next bring these groups something; NULL: never. It may be early for a want of few kinds; never late.
CREATE FUNCTION qo.next_moment(w qo.want, p_names text[], p_met_fragile boolean, p_now timestamptz) RETURNS timestamptz LANGUAGE sql STABLE AS $$
    SELECT min(t) FROM (
        SELECT (SELECT i.due_at FROM qo.intake i WHERE i.queue = n AND i.canceled_at IS NULL ORDER BY i.due_at LIMIT 1) AS t FROM unnest(p_names) n
        UNION ALL SELECT (SELECT e.expires_at FROM qo.leases e WHERE e.group_id = g AND e.ended_at IS NULL AND e.expires_at > p_now ORDER BY e.expires_at LIMIT 1) FROM unnest(w.fronts) g
        UNION ALL SELECT (SELECT c.due_at FROM qo.cursors c WHERE c.group_id = g AND c.due_at IS NOT NULL AND c.due_at > p_now ORDER BY c.due_at LIMIT 1) FROM unnest(w.fronts) g
        UNION ALL SELECT (SELECT r.due_at FROM qo.retries r WHERE r.group_id = g AND r.token IS NULL AND r.due_at > p_now ORDER BY r.due_at LIMIT 1) FROM unnest(w.fronts) g
        UNION ALL SELECT max(e.expires_at) FROM qo.leases e WHERE p_met_fragile AND e.owner = w.owner AND e.fragile IS NOT NULL
            AND e.ended_at IS NULL AND e.expires_at > p_now
    ) moments;
$$;

-- Serve wants whose open cursors are locked. A want that got nothing has one row, with how long to wait before asking
-- again: a length, because the asker's clock may not be ours.
CREATE FUNCTION qo.serve_all(p_wants jsonb, p_resolved qo.want[], p_more boolean, p_draw double precision, p_now timestamptz)
RETURNS TABLE (want integer, lane_id bigint, "offset" bigint, id uuid, queue text, key text, kind text, payload bytea, headers text,
               priority integer, attempt integer, created_at timestamptz, due_at timestamptz, entered_at timestamptz,
               expires_at timestamptz, retry_of uuid, wait interval, owner_limited boolean) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    w qo.want;
    s record;
    v_groups bigint[];
BEGIN
    FOREACH w IN ARRAY p_resolved LOOP
        s := qo.serve(w, p_draw, p_now);
        IF cardinality(s.hauls) > 0 THEN
            RETURN QUERY SELECT h.want, h.lane_id, m."offset", m.id, q.name, l.key, coalesce(m.kind, l.kind), m.payload, m.headers,
                   coalesce(m.priority, l.priority), o.attempts + 1, m.created_at, m.due_at, m.entered_at, h.expires_at, m.retry_of,
                   NULL::interval, false
            FROM unnest(s.hauls) WITH ORDINALITY AS h (want, lane_id, offsets, attempts, expires_at, number)
            CROSS JOIN LATERAL (SELECT * FROM qo.lanes x WHERE x.id = h.lane_id LIMIT 1) l
            CROSS JOIN LATERAL (SELECT * FROM qo.queues x WHERE x.id = l.queue_id LIMIT 1) q
            CROSS JOIN LATERAL unnest(h.offsets, h.attempts) WITH ORDINALITY AS o ("offset", attempts, number)
            CROSS JOIN LATERAL (SELECT * FROM qo.messages x WHERE x.lane_id = h.lane_id AND x."offset" = o."offset" LIMIT 1) m
            ORDER BY h.number, o.number;
        ELSE
            RETURN QUERY SELECT w.number, NULL::bigint, NULL::bigint, NULL::uuid, NULL::text, NULL::text, NULL::text, NULL::bytea, NULL::text,
                NULL::integer, NULL::integer, NULL::timestamptz, NULL::timestamptz, NULL::timestamptz, NULL::timestamptz, NULL::uuid,
                CASE WHEN p_more THEN interval '0'  -- there is more to bring up to date
                     WHEN s.contended THEN make_interval(secs => 0.005 + 0.015 * random())
                     ELSE qo.next_moment(w, qo.unpaused(p_wants -> w.number), s.met_fragile, p_now) - p_now END, s.met_fragile;
        END IF;
    END LOOP;
    v_groups := ARRAY(SELECT DISTINCT g.id FROM unnest(p_resolved) x CROSS JOIN unnest(x.fronts) f JOIN qo.groups g ON g.id = f
                      WHERE g.claimed_at IS NULL OR g.claimed_at <= p_now - interval '1 hour' ORDER BY g.id);
    IF cardinality(v_groups) > 0 THEN
        UPDATE qo.groups g SET claimed_at = p_now WHERE g.id IN (SELECT l.id FROM qo.groups l WHERE l.id = ANY (v_groups) ORDER BY l.id FOR UPDATE SKIP LOCKED);
    END IF;
END $$;

CREATE FUNCTION qo.unpaused(p_want jsonb) RETURNS text[] LANGUAGE sql STABLE AS $$
    SELECT ARRAY(SELECT n FROM unnest(qo.queues_of(p_want)) n WHERE NOT EXISTS (SELECT FROM qo.queues k WHERE k.name = n AND k.paused));
$$;

-- Claim. `signal` in the one row that comes back says what must be done first.
CREATE FUNCTION qo.claim(p_wants jsonb, p_moved boolean, p_draw double precision, p_now timestamptz)
RETURNS TABLE (want integer, lane_id bigint, "offset" bigint, id uuid, queue text, key text, kind text, payload bytea, headers text,
               priority integer, attempt integer, created_at timestamptz, due_at timestamptz, entered_at timestamptz,
               expires_at timestamptz, retry_of uuid, wait interval, owner_limited boolean, signal text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    r record := qo.read_wants(p_wants, v_now, p_moved);
BEGIN
    IF r.signal IS NOT NULL THEN
        signal := r.signal;
        RETURN NEXT;
        RETURN;
    END IF;
    PERFORM FROM qo.cursors WHERE id = ANY (qo.open_cursors(r.wants, v_now)) ORDER BY id FOR UPDATE;
    RETURN QUERY SELECT s.*, NULL::text FROM qo.serve_all(p_wants, r.wants, r.more, p_draw, coalesce(p_now, clock_timestamp())) s;
END $$;
