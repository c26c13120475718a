-- take: what a claim gets of a lane.

-- A want as the functions use it: its sources are groups in queues that are not paused.
CREATE TYPE qo.want AS (
    number integer,
    token text,
    sources bigint[],        -- ids of groups
    queues bigint[],        -- of which queue each is
    kinds text[],
    key text,
    messages integer,
    lanes integer,
    lane_messages integer,
    lease double precision,
    owner text,
    at_delivery boolean,
    ranks integer[],        -- of which priority each queue is
    bytes bigint            -- how many more it may take: a lane gives no more, but one message at least, as long as some are left
);

-- What a claim took, in the order in which it is delivered: of one lane, or the heads of many. Lists are as long as
-- `ids`; NULL stands for one that would say nothing.
CREATE TYPE qo.batch AS (
    lane_id bigint,
    queue text,
    key text,
    kind text,
    priority integer,
    expires_at timestamptz,         -- of the lease
    first bigint,                   -- the first offset, and no `offsets`: they count up from there
    offsets bigint[],
    ids uuid[],
    payloads bytea[],
    created timestamptz[],
    entered timestamptz[],          -- NULL: when they were created
    attempts integer[],             -- that each had before; NULL: none
    kinds text[],                   -- of a keyed lane's messages
    priorities integer[],
    headers text[],
    dues timestamptz[],
    retries_of uuid[],
    lanes bigint[],                 -- heads of many lanes: their places, and what goes with them
    queues text[],
    keys text[],
    expiries timestamptz[],
    bytes bigint,                   -- of payloads and headers
    sealed_since timestamptz        -- all that was created from then on must be sealed
);

-- How much of an answer a message takes.
CREATE FUNCTION qo.size_of(p_payload bytea, p_headers text) RETURNS bigint LANGUAGE sql IMMUTABLE
RETURN octet_length(p_payload)::bigint + coalesce(octet_length(p_headers), 0);

-- The messages at the offsets of a batch, which are all of one lane.
CREATE FUNCTION qo.load(h qo.batch) RETURNS qo.batch LANGUAGE plpgsql STABLE AS $$
BEGIN
    SELECT array_agg(m.id ORDER BY o.n), array_agg(m.payload ORDER BY o.n), array_agg(m.created_at ORDER BY o.n),
           array_agg(m.entered_at ORDER BY o.n), array_agg(m.kind ORDER BY o.n), array_agg(m.priority ORDER BY o.n),
           array_agg(m.headers ORDER BY o.n), array_agg(m.due_at ORDER BY o.n), array_agg(m.retry_of ORDER BY o.n),
           sum(qo.size_of(m.payload, m.headers))
    INTO h.ids, h.payloads, h.created, h.entered, h.kinds, h.priorities, h.headers, h.dues, h.retries_of, h.bytes
    FROM unnest(h.offsets) WITH ORDINALITY AS o ("offset", n)
    CROSS JOIN LATERAL (SELECT * FROM qo.messages x WHERE x.lane_id = h.lane_id AND x."offset" = o."offset" LIMIT 1) m;
    IF h.key IS NULL THEN h.kinds := NULL; h.priorities := NULL; END IF;
    RETURN h;
END $$;

-- The messages of a lane from a position on, up to so many and so many bytes, if they stand in a row, none among them is to be
-- passed, and none has more to say than its payload. `last` is the end of the row; NULL if it is not that simple.
CREATE FUNCTION qo.load_row(h qo.batch, c qo.cursors, p_kinds text[], p_position bigint, p_room integer, p_bytes bigint, p_now timestamptz,
                            OUT got qo.batch, OUT last bigint) LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_count integer;
    v_odd boolean;
    v_late boolean;
BEGIN
    got := h;
    SELECT max(t."offset"), count(*), array_agg(t.id), array_agg(t.payload), array_agg(t.created_at),
           bool_or(t.entered_at <> t.created_at), bool_or(num_nonnulls(t.headers, t.due_at, t.expires_at, t.group_id, t.retry_of) > 0),
           max(t.size)
    INTO last, v_count, got.ids, got.payloads, got.created, v_late, v_odd, got.bytes
    FROM (SELECT * FROM (SELECT x.*, sum(octet_length(x.payload)) OVER (ORDER BY x."offset" ROWS UNBOUNDED PRECEDING) AS size
                         FROM qo.messages x WHERE x.lane_id = c.lane_id AND x."offset" >= p_position ORDER BY x."offset" LIMIT p_room) y
          WHERE y.size <= p_bytes OR y.size = octet_length(y.payload)) t;
    IF v_odd OR last IS NULL OR EXISTS (SELECT FROM qo.skips s WHERE s.cursor_id = c.id AND s."offset" > last - v_count AND s."offset" <= last) THEN
        last := NULL;
        RETURN;
    END IF;
    got.first := last - v_count + 1;
    IF v_late OR c.keyed THEN
        SELECT array_agg(t.entered_at), array_agg(t.kind), array_agg(t.priority) INTO got.entered, got.kinds, got.priorities
        FROM (SELECT * FROM qo.messages x WHERE x.lane_id = c.lane_id AND x."offset" >= got.first AND x."offset" <= load_row.last ORDER BY x."offset") t;
        IF NOT c.keyed THEN got.kinds := NULL; got.priorities := NULL; END IF;
        IF NOT got.kinds <@ p_kinds THEN last := NULL; END IF;
    END IF;
END $$;

-- Take what a lane has for a want. An open lane's cursor was locked by the caller; a keyed one's is locked here.
-- How it went: 'taken'; 'nothing'; 'busy', others are at it; 'fragile', it must not be taken by this owner now. `finished`:
-- messages were finished on the way.
CREATE FUNCTION qo.take(w qo.want, p_cursor bigint, p_room integer, p_fragile boolean, p_now timestamptz,
                        OUT got qo.batch, OUT outcome text, OUT fragile boolean, OUT finished boolean) LANGUAGE plpgsql AS $$
DECLARE
    c qo.cursors;
    l qo.lanes;
    q qo.queues;
    v_offsets bigint[] := '{}';     -- what is delivered, in order
    v_attempts integer[] := '{}';   -- attempts that each had before
    v_retried bigint[] := '{}';
    v_passed int8multirange := '{}';
    v_room integer := p_room;
    v_bytes bigint := 0;
    v_start bigint;
    v_position bigint;
    v_fragile_at bigint;
    v_count integer;
    v_seen integer;
    v_more boolean;
    v_simple boolean := false;
    v_since timestamptz;            -- what entered before is older than the queue keeps anything
    v_row record;
    m record;
BEGIN
    fragile := p_fragile;
    finished := false;
    SELECT * INTO c FROM qo.cursors k WHERE k.id = p_cursor AND (NOT k.keyed OR k.state = 'ready') FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN outcome := 'busy'; RETURN; END IF;
    IF c.keyed AND c.losses >= {fragile_losses} AND NOT p_fragile THEN outcome := 'fragile'; RETURN; END IF;
    SELECT * INTO STRICT l FROM qo.lanes x WHERE x.id = c.lane_id;
    SELECT * INTO STRICT q FROM qo.queues x WHERE x.id = l.queue_id;
    v_since := p_now - make_interval(secs => (q.rules ->> 'max_age')::double precision);
    got.lane_id := c.lane_id;
    got.queue := q.name;
    got.key := l.key;
    got.kind := l.kind;
    got.priority := l.priority;
    got.expires_at := p_now + make_interval(secs => coalesce(w.lease, (q.rules ->> 'lease')::double precision));
    got.sealed_since := (q.rules ->> 'sealed_since')::timestamptz;
    IF c.keyed THEN v_room := CASE WHEN c.losses > 0 THEN 1 ELSE least(v_room, coalesce(w.lane_messages, v_room)) END; END IF;
    IF NOT c.keyed AND EXISTS (SELECT FROM qo.retries r WHERE r.cursor_id = c.id AND r.token IS NULL AND r.due_at <= p_now) THEN
        -- Due retries first.
        FOR m IN SELECT r."offset", r.attempts, r.losses, t.expires_at, t.entered_at, qo.size_of(t.payload, t.headers) AS size
                 FROM qo.retries r LEFT JOIN LATERAL (
                     SELECT * FROM qo.messages x WHERE x.lane_id = c.lane_id AND x."offset" = r."offset" LIMIT 1) t ON true
                 WHERE r.cursor_id = c.id AND r.token IS NULL AND r.due_at <= p_now ORDER BY r.due_at, r."offset" LOOP
            EXIT WHEN cardinality(v_offsets) >= v_room;
            CONTINUE WHEN m.losses >= {fragile_losses} AND NOT p_fragile;
            IF cardinality(v_offsets) > 0 AND v_bytes + m.size > w.bytes THEN
                v_room := cardinality(v_offsets);
                EXIT;
            END IF;
            IF m.expires_at <= p_now OR m.entered_at <= v_since THEN
                finished := true;
                DELETE FROM qo.retries WHERE cursor_id = c.id AND "offset" = m."offset";
                PERFORM qo.finish(q, c.group_id, c.lane_id, ARRAY[m."offset"], ARRAY['canceled'], ARRAY[m.attempts], ARRAY['expired'],
                                  '{}', '{}', NULL, '{}', p_now);
            ELSIF m.losses < {fragile_losses} OR fragile THEN
                IF m.losses >= {fragile_losses} THEN
                    fragile := false;
                    v_fragile_at := m."offset";
                END IF;
                v_bytes := v_bytes + m.size;
                v_offsets := v_offsets || m."offset";
                v_attempts := v_attempts || m.attempts;
                v_retried := v_retried || m."offset";
            END IF;
        END LOOP;
    END IF;
    v_position := c.position;
    IF NOT c.keyed THEN
        v_position := greatest(v_position, (SELECT e.last FROM qo.leases e WHERE e.cursor_id = c.id AND e.epoch = c.epoch ORDER BY e.last DESC LIMIT 1));
    END IF;
    v_start := v_position;
    IF cardinality(v_retried) = 0 AND v_since IS NULL THEN
        v_row := qo.load_row(got, c, w.kinds, v_position, v_room, w.bytes, p_now);
        v_simple := v_row.last IS NOT NULL;
    END IF;
    IF v_simple THEN
        got := v_row.got;
        v_start := got.first;
        v_count := v_row.last + 1 - v_start;
        v_position := v_row.last + 1;
        v_more := EXISTS (SELECT FROM qo.messages t WHERE t.lane_id = c.lane_id AND t."offset" >= v_position);
        IF c.keyed AND v_start = c.position AND c.attempts > 0 THEN
            got.attempts := c.attempts || array_fill(0, ARRAY[v_count - 1]);
        END IF;
    ELSE
        <<filling>>
        WHILE cardinality(v_offsets) < v_room LOOP
            v_seen := 0;
            FOR m IN SELECT t."offset", t.kind, t.expires_at <= p_now OR t.entered_at <= v_since AS expired, qo.size_of(t.payload, t.headers) AS size,
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
                        finished := true;
                        PERFORM qo.finish(q, c.group_id, c.lane_id, ARRAY[m."offset"], ARRAY['canceled'],
                            ARRAY[CASE WHEN c.keyed AND m."offset" = c.position THEN c.attempts ELSE 0 END], ARRAY['expired'],
                            '{}', '{}', NULL, '{}', p_now);
                    END IF;
                ELSIF c.keyed AND w.kinds IS NOT NULL AND m.kind <> ALL (w.kinds) THEN
                    EXIT filling;
                ELSIF cardinality(v_offsets) > 0 AND v_bytes + m.size > w.bytes THEN
                    EXIT filling;
                ELSE
                    v_bytes := v_bytes + m.size;
                    v_offsets := v_offsets || m."offset";
                    v_attempts := v_attempts || CASE WHEN c.keyed AND m."offset" = c.position THEN c.attempts ELSE 0 END;
                END IF;
                v_position := m."offset" + 1;
            END LOOP;
            EXIT WHEN v_seen = 0;
        END LOOP;
        v_more := EXISTS (SELECT FROM qo.messages t WHERE t.lane_id = c.lane_id AND t."offset" >= v_position);
        v_count := cardinality(v_offsets);
        got.offsets := v_offsets;
        got.attempts := v_attempts;
        IF v_count > 0 THEN
            IF c.keyed THEN v_start := v_offsets[1]; END IF;
            got := qo.load(got);
        END IF;
    END IF;
    IF c.keyed THEN
        PERFORM qo.hold_run(w, q, c, v_start, v_count, coalesce(v_offsets[v_count] + 1, v_position), got.expires_at, p_now);
        IF v_count > 0 AND c.losses >= {fragile_losses} AND v_start = c.position THEN fragile := false; END IF;
    ELSE
        PERFORM qo.hold_open(w, c, v_start, v_position, v_passed, v_retried, v_fragile_at, v_count, v_more, got.expires_at, p_now);
    END IF;
    outcome := CASE WHEN v_count > 0 THEN 'taken' ELSE 'nothing' END;
    IF v_count = 0 THEN RETURN; END IF;
    IF w.at_delivery THEN
        finished := true;
        IF v_simple THEN v_offsets := ARRAY(SELECT generate_series(v_start, v_position - 1)); END IF;
        PERFORM qo.finish(q, c.group_id, c.lane_id, v_offsets, array_fill('succeeded'::text, ARRAY[v_count]),
                          ARRAY(SELECT coalesce(got.attempts[n], 0) + 1 FROM generate_series(1, v_count) n),
                          '{}', '{}', '{}', w.owner, '{}', p_now);
    ELSIF q.rules ->> 'history' = 'full' AND c.group_id = q.default_group_id THEN
        PERFORM qo.record_events(got.ids, 'assigned', coalesce(w.owner, ''), p_now);
        IF qo.starts_at_once(w.owner) THEN
            PERFORM qo.record_events(CASE WHEN c.keyed THEN got.ids[1:1] ELSE got.ids END, 'running', w.owner, p_now);
        END IF;
    END IF;
END $$;

-- Lease a run of a keyed lane, [p_start, p_end), or move to its end past what was not deliverable.
CREATE FUNCTION qo.hold_run(w qo.want, q qo.queues, c qo.cursors, p_start bigint, p_count integer, p_end bigint, p_expires timestamptz,
                            p_now timestamptz) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF p_count = 0 THEN
        -- A head that was not passed, because its kind is not wanted, keeps what it has.
        PERFORM qo.rest(c, p_end, CASE WHEN p_end = c.position THEN c.attempts ELSE 0 END,
                        CASE WHEN p_end = c.position THEN c.losses ELSE 0 END, NULL, p_now);
        PERFORM qo.hint(ARRAY[q.name]);
    ELSIF w.at_delivery THEN
        PERFORM qo.rest(c, p_end, 0, 0, NULL, p_now);
        PERFORM qo.tell_of_head(q, c);
    ELSE
        INSERT INTO qo.leases (token, lane_id, cursor_id, group_id, epoch, first, last, from_offset, to_offset, fragile, owner,
                               claimed_at, expires_at)
        VALUES (w.token, c.lane_id, c.id, c.group_id, c.epoch, p_start, p_end, p_start, p_end,
                CASE WHEN c.losses >= {fragile_losses} AND p_start = c.position THEN c.position END, w.owner, p_now, p_expires);
        UPDATE qo.cursors SET state = 'leased', position = p_end, due_at = NULL,
            attempts = CASE WHEN p_start = c.position THEN attempts ELSE 0 END,
            losses = CASE WHEN p_start = c.position THEN losses ELSE 0 END
        WHERE id = c.id;
    END IF;
END $$;

-- Lease a range of an open lane and the retries that were taken with it.
CREATE FUNCTION qo.hold_open(w qo.want, c qo.cursors, p_start bigint, p_end bigint, p_passed int8multirange, p_retried bigint[],
                             p_fragile bigint, p_count integer, p_more boolean, p_expires timestamptz, p_now timestamptz)
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
    IF c.state = 'ready' AND NOT p_more THEN PERFORM qo.rest(c, p_end, 0, 0, NULL, p_now); END IF;
    IF cardinality(p_retried) = 0 THEN RETURN; END IF;
    IF w.at_delivery THEN
        DELETE FROM qo.retries r WHERE r.cursor_id = c.id AND r."offset" = ANY (p_retried);
    ELSE
        UPDATE qo.retries r SET token = w.token WHERE r.cursor_id = c.id AND r."offset" = ANY (p_retried);
    END IF;
END $$;

-- Take the heads of keyed lanes, one message each, in one go, as far as the want's bytes go. The cursors are locked and ready.
-- NULL, and nothing done, if one of them is not that simple: lost before, to be passed, sealed, its claim to be recorded.
CREATE FUNCTION qo.take_heads(w qo.want, p_cursors bigint[], p_now timestamptz) RETURNS qo.batch LANGUAGE plpgsql AS $$
DECLARE
    got qo.batch;
BEGIN
    WITH found AS MATERIALIZED (
        SELECT c.id AS cursor_id, c.group_id, c.epoch, c.attempts, c.head_priority, c.head_entered_at, l.key, q.name AS queue, m.*,
               p_now + make_interval(secs => coalesce(w.lease, (q.rules ->> 'lease')::double precision)) AS until
        FROM unnest(p_cursors) u CROSS JOIN LATERAL (SELECT * FROM qo.cursors x WHERE x.id = u LIMIT 1) c
        CROSS JOIN LATERAL (SELECT * FROM qo.lanes x WHERE x.id = c.lane_id LIMIT 1) l
        CROSS JOIN LATERAL (SELECT * FROM qo.queues x WHERE x.id = l.queue_id LIMIT 1) q
        CROSS JOIN LATERAL (SELECT x.lane_id, x."offset", x.id, x.kind, x.priority, x.payload, x.headers, x.created_at, x.due_at,
                                   x.entered_at, x.retry_of
                            FROM qo.messages x WHERE x.lane_id = c.lane_id AND x."offset" = c.position
                            AND (x.group_id IS NULL OR x.group_id = c.group_id) AND coalesce(x.expires_at > p_now, true)
                            AND (w.kinds IS NULL OR x.kind = ANY (w.kinds)) LIMIT 1) m
        WHERE c.losses = 0 AND q.rules ->> 'history' <> 'full' AND q.rules ->> 'encrypt' = 'false' AND q.rules ->> 'max_age' IS NULL
          AND NOT EXISTS (SELECT FROM qo.skips s WHERE s.cursor_id = c.id AND s."offset" = c.position)
    ), heads AS MATERIALIZED (
        SELECT * FROM (SELECT f.*, qo.size_of(f.payload, f.headers) AS own,
                              sum(qo.size_of(f.payload, f.headers)) OVER (ORDER BY f.head_priority DESC, f.head_entered_at, f.lane_id
                                                                          ROWS UNBOUNDED PRECEDING) AS size
                       FROM found f WHERE (SELECT count(*) FROM found) = cardinality(p_cursors)) s
        WHERE s.size - s.own < w.bytes
    ), leased AS (
        INSERT INTO qo.leases (token, lane_id, cursor_id, group_id, epoch, first, last, from_offset, to_offset, owner, claimed_at, expires_at)
        SELECT w.token, h.lane_id, h.cursor_id, h.group_id, h.epoch, h."offset", h."offset" + 1, h."offset", h."offset" + 1, w.owner,
               p_now, h.until FROM heads h
    ), moved AS (
        UPDATE qo.cursors k SET state = 'leased', position = h."offset" + 1, due_at = NULL FROM heads h WHERE k.id = h.cursor_id
    )
    SELECT array_agg(h."offset"), array_agg(h.id), array_agg(h.payload), array_agg(h.created_at), array_agg(h.entered_at),
           array_agg(h.attempts), array_agg(h.kind), array_agg(h.priority),
           CASE WHEN count(h.headers) > 0 THEN array_agg(h.headers) END, CASE WHEN count(h.due_at) > 0 THEN array_agg(h.due_at) END,
           CASE WHEN count(h.retry_of) > 0 THEN array_agg(h.retry_of) END, array_agg(h.lane_id), array_agg(h.queue), array_agg(h.key),
           array_agg(h.until), max(h.size)
    INTO got.offsets, got.ids, got.payloads, got.created, got.entered, got.attempts, got.kinds, got.priorities, got.headers, got.dues,
         got.retries_of, got.lanes, got.queues, got.keys, got.expiries, got.bytes
    FROM (SELECT * FROM heads ORDER BY head_priority DESC, head_entered_at, lane_id) h;
    RETURN got;
END $$;
