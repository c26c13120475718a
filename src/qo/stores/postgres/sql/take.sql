-- take: what a claim gets of a lane.

-- A want as the functions use it: its sources are groups in queues that are not paused.
CREATE TYPE qo.want AS (
    number integer,
    tokens text[],          -- one; or those of many that want one message each
    sources bigint[],       -- ids of groups
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

-- What a claim took, in the order in which it is delivered: of one lane, or runs of many. Lists are as long as
-- `ids`; NULL stands for one that would say nothing, or the same of all: that is said once, above. Of a want with many tokens,
-- each message is under the next token.
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
    lanes bigint[],                 -- of runs of many lanes: where each is, its first offset, its length, attempts that its first message
    firsts bigint[],                -- had before, and what else goes with it
    counts integer[],
    tried integer[],
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

-- The messages of an open lane from a position on, up to so many and so many bytes, if they stand in a row, none among them is to be
-- passed, and none has more to say than its payload. `last` is the end of the row; NULL if it is not that simple.
CREATE FUNCTION qo.load_row(h qo.batch, c qo.cursors, p_position bigint, p_room integer, p_bytes bigint, OUT got qo.batch, OUT last bigint)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_odd boolean;
    v_late boolean;
BEGIN
    got := h;
    SELECT min(t."offset"), max(t."offset"), array_agg(t.id), array_agg(t.payload), array_agg(t.created_at), array_agg(t.entered_at),
           bool_or(t.entered_at <> t.created_at), bool_or(num_nonnulls(t.headers, t.due_at, t.expires_at, t.group_id, t.retry_of) > 0),
           max(t.size)
    INTO got.first, last, got.ids, got.payloads, got.created, got.entered, v_late, v_odd, got.bytes
    FROM (SELECT * FROM (SELECT x.*, sum(octet_length(x.payload)) OVER (ORDER BY x."offset" ROWS UNBOUNDED PRECEDING) AS size
                         FROM qo.messages x WHERE x.lane_id = c.lane_id AND x."offset" >= p_position ORDER BY x."offset" LIMIT p_room) y
          WHERE y.size <= p_bytes OR y.size = octet_length(y.payload)) t;
    IF v_odd OR EXISTS (SELECT FROM qo.skips s WHERE s.cursor_id = c.id AND s."offset" >= got.first AND s."offset" <= last) THEN
        last := NULL;
    ELSIF NOT v_late THEN
        got.entered := NULL;
    END IF;
END $$;

-- Take what a lane has for a want, under one of its tokens. An open lane's cursor was locked by the caller; a keyed one's is locked here.
-- How it went: 'taken'; 'nothing'; 'busy', others are at it; 'fragile', it must not be taken by this owner now. `finished`:
-- messages were finished on the way.
CREATE FUNCTION qo.take(w qo.want, p_token text, p_cursor bigint, p_room integer, p_fragile boolean, p_now timestamptz,
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
    IF NOT c.keyed AND cardinality(v_retried) = 0 AND v_since IS NULL THEN
        v_row := qo.load_row(got, c, v_position, v_room, w.bytes);
        v_simple := v_row.last IS NOT NULL;
    END IF;
    IF v_simple THEN
        got := v_row.got;
        v_start := got.first;
        v_count := v_row.last + 1 - v_start;
        v_position := v_row.last + 1;
        v_more := EXISTS (SELECT FROM qo.messages t WHERE t.lane_id = c.lane_id AND t."offset" >= v_position);
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
        PERFORM qo.hold_run(w, p_token, q, c, v_start, v_count, coalesce(v_offsets[v_count] + 1, v_position), got.expires_at, p_now);
        IF v_count > 0 AND c.losses >= {fragile_losses} AND v_start = c.position THEN fragile := false; END IF;
    ELSE
        PERFORM qo.hold_open(w, p_token, c, v_start, v_position, v_passed, v_retried, v_fragile_at, v_count, v_more, got.expires_at, p_now);
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
CREATE FUNCTION qo.hold_run(w qo.want, p_token text, q qo.queues, c qo.cursors, p_start bigint, p_count integer, p_end bigint, p_expires timestamptz,
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
        INSERT INTO qo.leases (token, lane_id, cursor_id, group_id, first, last, from_offset, to_offset, fragile, owner, claimed_at, expires_at)
        VALUES (p_token, c.lane_id, c.id, c.group_id, p_start, p_end, p_start, p_end,
                CASE WHEN c.losses >= {fragile_losses} AND p_start = c.position THEN c.position END, w.owner, p_now, p_expires);
        UPDATE qo.cursors SET state = 'leased', position = p_end, due_at = NULL,
            attempts = CASE WHEN p_start = c.position THEN attempts ELSE 0 END,
            losses = CASE WHEN p_start = c.position THEN losses ELSE 0 END
        WHERE id = c.id;
    END IF;
END $$;

-- Lease a range of an open lane and the retries that were taken with it.
CREATE FUNCTION qo.hold_open(w qo.want, p_token text, c qo.cursors, p_start bigint, p_end bigint, p_passed int8multirange, p_retried bigint[],
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
        VALUES (p_token || CASE WHEN w.at_delivery THEN ' ' || gen_random_uuid() ELSE '' END, c.lane_id, c.id, c.group_id, c.epoch,
                p_start, p_end, p_start, p_end, p_passed, p_retried, CASE WHEN NOT w.at_delivery THEN p_fragile END, w.owner,
                w.at_delivery, p_now, p_expires, CASE WHEN w.at_delivery THEN p_now END);
    END IF;
    IF c.state = 'ready' AND NOT p_more THEN PERFORM qo.rest(c, p_end, 0, 0, NULL, p_now); END IF;
    IF cardinality(p_retried) = 0 THEN RETURN; END IF;
    IF w.at_delivery THEN
        DELETE FROM qo.retries r WHERE r.cursor_id = c.id AND r."offset" = ANY (p_retried);
    ELSE
        UPDATE qo.retries r SET token = p_token WHERE r.cursor_id = c.id AND r."offset" = ANY (p_retried);
    END IF;
END $$;

-- Take runs of keyed lanes in a few statements for all of them: what the listed cursors have, in their order, as far as a number of
-- messages and the want's bytes go. Those that others have locked are passed over, and `contended` says so. The work ends before one that is not that
-- simple, `odd`: a message was lost there, is to be passed, or is not wanted; its claim is to be recorded; it is sealed. `passed` is how many were
-- dealt with, of which some were left; `filled`: the want's bytes are used up. `p_served`: how many of the want's tokens have been given out.
-- `finished`: lanes in which messages were finished on the way.
CREATE FUNCTION qo.take_runs(w qo.want, p_cursors bigint[], p_room integer, p_served integer, p_now timestamptz,
                             OUT got qo.batch, OUT passed integer, OUT left_over bigint[], OUT odd boolean, OUT filled boolean, OUT contended boolean,
                             OUT finished bigint[]) LANGUAGE plpgsql AS $$
DECLARE
    v_depths integer[];     -- how many messages each may give; so many cursors are looked at
    v_numbers integer[];    -- of those that are locked here
    v_skips boolean := EXISTS (SELECT FROM qo.skips);
    v_odd integer;
    v_cut integer;          -- the run in which the bytes run out
    v_cursors bigint[];     -- by run, as the following
    v_groups bigint[];
    v_recorded boolean[];
    v_ends bigint[];
    v_sizes bigint[];
    v_one_kind boolean;     -- whether all messages are alike in that, as the following
    v_one_priority boolean;
    v_prompt boolean;       -- and entered their lanes when they were created
    v_headers bigint;       -- how many messages have them, as the following
    v_dues bigint;
    v_retries bigint;
BEGIN
    finished := '{}';
    filled := false;
    IF w.lane_messages = 1 THEN
        v_depths := array_fill(1, ARRAY[least(cardinality(p_cursors), p_room)]);
    ELSE
        v_depths := ARRAY(SELECT x.depth FROM (
            SELECT u.n, d.depth, sum(d.depth) OVER (ORDER BY u.n ROWS UNBOUNDED PRECEDING) - d.depth AS before
            FROM unnest(p_cursors) WITH ORDINALITY AS u (id, n)
            CROSS JOIN LATERAL (SELECT x.lane_id, x.position, x.losses FROM qo.cursors x WHERE x.id = u.id LIMIT 1) c
            CROSS JOIN LATERAL (SELECT greatest(least(p_room, w.lane_messages, CASE WHEN c.losses > 0 THEN 1 END,
                (SELECT m."offset" FROM qo.messages m WHERE m.lane_id = c.lane_id ORDER BY m."offset" DESC LIMIT 1) + 1 - c.position), 1)::integer AS depth) d
        ) x WHERE x.before < p_room ORDER BY x.n);
    END IF;
    passed := cardinality(v_depths);
    v_numbers := ARRAY(SELECT u.n FROM unnest(p_cursors[1:passed]) WITH ORDINALITY AS u (id, n) JOIN qo.cursors c ON c.id = u.id
                       WHERE c.state = 'ready' FOR UPDATE OF c SKIP LOCKED);
    contended := cardinality(v_numbers) < passed;
    WITH found AS MATERIALIZED (
        SELECT u.n, c.id AS cursor_id, c.lane_id, c.group_id, c.position, c.attempts, l.key, q.name AS queue,
               p_now + make_interval(secs => coalesce(w.lease, (q.rules ->> 'lease')::double precision)) AS until,
               c.group_id = q.default_group_id AND q.rules ->> 'history' <> 'none' AS recorded, m.first, m.size,
               coalesce(m.cut, m.last + 1) AS last, m.first IS NULL OR coalesce(m.cut = m.first, false) OR m.odd
                   OR w.at_delivery AND c.hold > 0 OR c.losses >= {fragile_losses} OR c.losses > 0 AND v_depths[u.n] > 1
                   OR q.rules ->> 'history' = 'full' OR q.rules ->> 'encrypt' = 'true' OR q.rules ->> 'max_age' IS NOT NULL
                   OR v_skips AND EXISTS (SELECT FROM qo.skips s WHERE s.cursor_id = c.id AND s."offset" >= c.position) AS odd
        FROM unnest(v_numbers) AS u (n) CROSS JOIN LATERAL (SELECT * FROM qo.cursors x WHERE x.id = p_cursors[u.n] LIMIT 1) c
        CROSS JOIN LATERAL (SELECT * FROM qo.lanes x WHERE x.id = c.lane_id LIMIT 1) l
        CROSS JOIN LATERAL (SELECT * FROM qo.queues x WHERE x.id = l.queue_id LIMIT 1) q
        CROSS JOIN LATERAL (
            SELECT min(t."offset") AS first, max(t."offset") AS last, min(t."offset") FILTER (WHERE t.kind <> ALL (w.kinds)) AS cut,
                   sum(qo.size_of(t.payload, t.headers)) AS size, bool_or(t.group_id <> c.group_id OR t.expires_at <= p_now) IS true AS odd
            FROM (SELECT * FROM qo.messages x WHERE x.lane_id = c.lane_id AND x."offset" >= c.position ORDER BY x."offset" LIMIT v_depths[u.n]) t) m
    ), bound AS MATERIALIZED (
        SELECT min(x.n) AS n FROM found x WHERE x.odd
    ), fitting AS (
        SELECT x.*, (sum(x.last - x.first) OVER w - (x.last - x.first))::bigint AS before, sum(x.size) OVER w - x.size AS bytes_before FROM found x
        WHERE x.n < coalesce((SELECT b.n FROM bound b), 2147483647) WINDOW w AS (ORDER BY x.n ROWS UNBOUNDED PRECEDING)
    )
    SELECT (SELECT b.n FROM bound b), array_agg(x.cursor_id), array_agg(x.lane_id), array_agg(x.group_id), array_agg(x.recorded), array_agg(x.first),
           array_agg(least(x.last, x.first + p_room - x.before)), array_agg(x.size), array_agg(CASE WHEN x.first = x.position THEN x.attempts ELSE 0 END),
           array_agg(x.queue), array_agg(x.key), array_agg(x.until), min(x.place) FILTER (WHERE x.bytes_before + x.size > w.bytes)
    INTO v_odd, v_cursors, got.lanes, v_groups, v_recorded, got.firsts, v_ends, v_sizes, got.tried, got.queues, got.keys, got.expiries, v_cut
    FROM (SELECT f.*, row_number() OVER (ORDER BY f.n) AS place FROM fitting f WHERE f.before < p_room AND f.bytes_before < w.bytes ORDER BY f.n) x;
    odd := v_odd IS NOT NULL;
    IF odd THEN passed := v_odd - 1; END IF;
    left_over := ARRAY(SELECT c FROM unnest(p_cursors[1:passed]) c EXCEPT SELECT unnest(v_cursors));
    IF v_cursors IS NULL THEN RETURN; END IF;
    IF v_cut IS NOT NULL THEN   -- it is the last: of it, as much as fits, and one message at least
        filled := true;
        v_ends[v_cut] := (SELECT max(t."offset") + 1 FROM (
            SELECT x."offset", sum(qo.size_of(x.payload, x.headers)) OVER (ORDER BY x."offset" ROWS UNBOUNDED PRECEDING) AS size FROM qo.messages x
            WHERE x.lane_id = got.lanes[v_cut] AND x."offset" >= got.firsts[v_cut] AND x."offset" < v_ends[v_cut]) t
            WHERE t."offset" = got.firsts[v_cut] OR t.size <= w.bytes - (SELECT coalesce(sum(size), 0) FROM unnest(v_sizes[1 : v_cut - 1]) size));
    END IF;
    SELECT array_agg(m.id), array_agg(m.payload), array_agg(m.created_at), sum(qo.size_of(m.payload, m.headers)), min(m.kind), min(m.priority),
           array_agg(m.kind), array_agg(m.priority), array_agg(m.entered_at), array_agg(m.headers), array_agg(m.due_at), array_agg(m.retry_of),
           min(m.kind) = max(m.kind), min(m.priority) = max(m.priority), bool_and(m.entered_at = m.created_at), count(m.headers), count(m.due_at),
           count(m.retry_of)
    INTO got.ids, got.payloads, got.created, got.bytes, got.kind, got.priority,
         got.kinds, got.priorities, got.entered, got.headers, got.dues, got.retries_of,
         v_one_kind, v_one_priority, v_prompt, v_headers, v_dues, v_retries
    FROM unnest(got.lanes, got.firsts, v_ends) AS r (lane, first, last)
    CROSS JOIN LATERAL (SELECT * FROM qo.messages x WHERE x.lane_id = r.lane AND x."offset" >= r.first AND x."offset" < r.last ORDER BY x."offset") m;
    IF v_one_kind THEN got.kinds := NULL; END IF;
    IF v_one_priority THEN got.priorities := NULL; END IF;
    IF v_prompt THEN got.entered := NULL; END IF;
    IF v_headers = 0 THEN got.headers := NULL; END IF;
    IF v_dues = 0 THEN got.dues := NULL; END IF;
    IF v_retries = 0 THEN got.retries_of := NULL; END IF;
    got.counts := ARRAY(SELECT r.last - r.first FROM unnest(got.firsts, v_ends) AS r (first, last));
    IF w.at_delivery THEN
        PERFORM qo.write_outcomes(array_agg(r.lane), array_agg(o), '{}', array_agg(CASE WHEN o = r.first THEN r.attempts ELSE 0 END + 1), '{}', '{}', '{}',
                                  array_agg(w.owner), '{}', p_now)
        FROM unnest(got.lanes, got.firsts, v_ends, got.tried, v_recorded) AS r (lane, first, last, attempts, recorded)
        CROSS JOIN generate_series(r.first, r.last - 1) o WHERE r.recorded;
        PERFORM qo.tell_watchers(array_agg(r.lane), array_agg(o)) FROM unnest(got.lanes, got.firsts, v_ends) AS r (lane, first, last)
        CROSS JOIN generate_series(r.first, r.last - 1) o WHERE EXISTS (SELECT FROM qo.watched);
        PERFORM qo.rest_all(v_cursors, got.lanes, v_groups, v_ends);
        finished := got.lanes;
    ELSE
        INSERT INTO qo.leases (token, lane_id, cursor_id, group_id, first, last, from_offset, to_offset, owner, claimed_at, expires_at)
        SELECT coalesce(r.token, w.tokens[1]), r.lane, r.cursor, r.grp, r.first, r.last, r.first, r.last, w.owner, p_now, r.until
        FROM unnest(got.lanes, v_cursors, v_groups, got.firsts, v_ends, got.expiries,
                    CASE WHEN cardinality(w.tokens) > 1 THEN w.tokens[p_served + 1 : p_served + cardinality(v_cursors)] END)
            AS r (lane, cursor, grp, first, last, until, token);
        UPDATE qo.cursors k SET state = 'leased', position = r.last, due_at = NULL,
            attempts = CASE WHEN r.first = k.position THEN k.attempts ELSE 0 END, losses = CASE WHEN r.first = k.position THEN k.losses ELSE 0 END
        FROM unnest(v_cursors, got.firsts, v_ends) AS r (cursor, first, last) WHERE k.id = r.cursor;
    END IF;
END $$;
