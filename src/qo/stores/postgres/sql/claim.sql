-- claim: lease ready messages, higher priority first, then oldest head.

-- A row of an answer: something that was taken; or a want that got nothing, and how long to wait before asking again (a
-- length, because the asker's clock may not be ours); or, in the first row of a settle, how its items were taken.
-- Of a want with many tokens there may be both.
-- `signal` says what must be done before the claim can be made: join a group, move intake, let leases lapse.
CREATE TYPE qo.claim_row AS (
    batch qo.batch,
    want integer,
    wait interval,
    owner_limited boolean,
    signal text,
    numbers integer[],
    answers text[],
    verdicts text[],
    ended boolean[],
    contended boolean           -- of a want that got nothing: others were at it, or there is more to be done first
);

-- Whether a group's activity is to be noted: it need not be known to the second.
CREATE FUNCTION qo.is_unnoted(p_claimed timestamptz, p_now timestamptz) RETURNS boolean LANGUAGE sql IMMUTABLE
RETURN coalesce(p_claimed <= p_now - interval '{note_claimed}', true);

-- Resolve wants. `signal` as above; `more`: there was something to be done first, and enough of it was; `unnoted`: a group is
-- to be noted as active. Here as in all that every claim does, several small statements cost less than one that joins.
CREATE FUNCTION qo.read_wants(p_wants jsonb, p_now timestamptz, p_moved boolean, OUT wants qo.want[], OUT signal text, OUT more boolean,
                              OUT unnoted boolean) LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_want jsonb;
    w qo.want;
    v_name text;
    v_queue bigint;
    v_paused boolean;
    v_rank integer;
    v_group bigint;
    v_claimed timestamptz;
    v_intake boolean := false;
    v_lapse boolean := false;
BEGIN
    wants := '{}';
    unnoted := false;
    IF p_wants @? '$[*].filter' THEN
        IF qo.joins_by_filter(p_wants) THEN
            signal := 'join';
            RETURN;
        END IF;
        p_wants := (SELECT jsonb_agg(x || jsonb_build_object('queues', qo.queues_of(x)) ORDER BY n)
                    FROM jsonb_array_elements(p_wants) WITH ORDINALITY AS x (x, n));
    END IF;
    FOR i IN 0..jsonb_array_length(p_wants) - 1 LOOP
        v_want := p_wants -> i;
        w := (i, ARRAY(SELECT jsonb_array_elements_text(v_want -> 'tokens')), '{}', '{}', NULL, v_want ->> 'key', v_want ->> 'messages', v_want ->> 'lanes',
              v_want ->> 'lane_messages', v_want ->> 'lease', v_want ->> 'owner', v_want ? 'auto_settle', '{}',
              coalesce((v_want ->> 'max_bytes')::bigint, {claim_bytes}))::qo.want;
        IF cardinality(w.tokens) > 1 THEN   -- each takes one message, from wherever the best one is
            w.messages := cardinality(w.tokens); w.lanes := NULL; w.lane_messages := 1; w.bytes := w.bytes * least(w.messages, {budgets_at_once});
        END IF;
        IF v_want ? 'kinds' THEN w.kinds := ARRAY(SELECT jsonb_array_elements_text(v_want -> 'kinds')); END IF;
        FOR v_name IN SELECT jsonb_array_elements_text(v_want -> 'queues') LOOP
            SELECT k.id, k.paused, (k.rules ->> 'priority')::integer INTO v_queue, v_paused, v_rank FROM qo.queues k WHERE k.name = v_name;
            SELECT g.id, g.claimed_at INTO v_group, v_claimed FROM qo.groups g WHERE g.queue_id = v_queue AND g.name = v_want ->> 'group';
            IF NOT FOUND AND v_want ->> 'group' <> 'default' THEN signal := 'join'; RETURN; END IF;
            CONTINUE WHEN v_paused;
            v_intake := v_intake OR EXISTS (SELECT FROM qo.intake t WHERE t.queue = v_name AND t.canceled_at IS NULL AND t.due_at <= p_now);
            CONTINUE WHEN v_group IS NULL;
            w.sources := w.sources || v_group;
            w.queues := w.queues || v_queue;
            w.ranks := w.ranks || v_rank;
            v_lapse := v_lapse OR EXISTS (SELECT FROM qo.leases e WHERE e.group_id = v_group AND e.ended_at IS NULL AND e.expires_at <= p_now);
            v_lapse := v_lapse OR EXISTS (SELECT FROM qo.cursors k WHERE k.group_id = v_group AND k.due_at <= p_now AND k.due_at IS NOT NULL);
            unnoted := unnoted OR qo.is_unnoted(v_claimed, p_now);
        END LOOP;
        wants := wants || w;
    END LOOP;
    more := p_moved AND (v_intake OR v_lapse);
    signal := CASE WHEN p_moved THEN NULL WHEN v_intake THEN 'intake' WHEN v_lapse THEN 'lapse' END;
END $$;

-- Whether a group that was named with a filter has not joined all the queues that it chooses, or is not known by that filter.
CREATE FUNCTION qo.joins_by_filter(p_wants jsonb) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (
        SELECT FROM jsonb_array_elements(p_wants) w WHERE w ? 'filter' AND w ->> 'group' <> 'default'
        AND NOT EXISTS (SELECT FROM qo.group_filters f WHERE f.name = w ->> 'group'
                        AND f.namespace IS NOT DISTINCT FROM w -> 'filter' ->> 'namespace'
                        AND f.task IS NOT DISTINCT FROM w -> 'filter' ->> 'task'));
$$;

-- The queues that a want names, or that its filter chooses.
CREATE FUNCTION qo.queues_of(p_want jsonb) RETURNS text[] LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_namespace text := p_want -> 'filter' ->> 'namespace';
    v_task text := p_want -> 'filter' ->> 'task';
BEGIN
    IF NOT p_want ? 'filter' THEN
        RETURN ARRAY(SELECT jsonb_array_elements_text(p_want -> 'queues'));
    ELSIF v_namespace IS NOT NULL THEN
        RETURN ARRAY(SELECT name FROM qo.queues WHERE namespace = v_namespace AND (v_task IS NULL OR task = v_task) ORDER BY id LIMIT {queues_limit});
    ELSE
        RETURN ARRAY(SELECT name FROM qo.queues WHERE task = v_task ORDER BY id LIMIT {queues_limit});
    END IF;
END $$;

-- The open cursors that wants may take from. Claims wait for these locks, so all are taken in one pass by id.
CREATE FUNCTION qo.open_cursors(p_wants qo.want[], p_now timestamptz) RETURNS bigint[] LANGUAGE plpgsql STABLE AS $$
DECLARE
    w qo.want;
    v_source bigint;
    v_found bigint[] := '{}';
BEGIN
    FOREACH w IN ARRAY p_wants LOOP
        CONTINUE WHEN w.key IS NOT NULL;
        FOREACH v_source IN ARRAY w.sources LOOP
            v_found := v_found || ARRAY(SELECT c.id FROM qo.cursors c WHERE c.group_id = v_source AND NOT c.keyed AND c.state = 'ready')
                || ARRAY(SELECT r.cursor_id FROM qo.retries r WHERE r.group_id = v_source AND r.token IS NULL AND r.due_at <= p_now);
        END LOOP;
    END LOOP;
    RETURN v_found;
END $$;

-- Serve one want. Open cursors were locked by the caller; keyed ones are locked here, those of others are skipped. `served`: how many
-- messages it got. `finished` are lanes in which messages were finished on the way.
CREATE FUNCTION qo.claim_from(w qo.want, p_now timestamptz, OUT batches qo.batch[], OUT served integer, OUT contended boolean, OUT met_fragile boolean,
                         OUT finished bigint[]) LANGUAGE plpgsql AS $$
DECLARE
    v_source bigint;
    v_keyed boolean := false;       -- whether keyed lanes are ready
    v_unsure boolean := false;
    v_blind boolean;
    v_fragile boolean;              -- whether this owner may take a message that was lost before: it holds one such at a time
    v_before boolean;
    v_passed bigint[] := '{}';
    v_ids bigint[];
    v_are_keyed boolean[];
    v_number integer;
    v_end integer;
    v_odd integer;                  -- one that must be taken from by itself
    v_lanes integer := 0;
    v_limit integer;                -- lanes that may yet be taken from
    v_many boolean := cardinality(w.tokens) > 1;
    v_again boolean := true;
    s record;
    t record;
BEGIN
    batches := '{}';
    served := 0;
    contended := false;
    met_fragile := false;
    finished := '{}';
    v_fragile := w.owner IS NULL OR NOT EXISTS (
        SELECT FROM qo.leases e WHERE e.owner = w.owner AND e.fragile IS NOT NULL AND e.ended_at IS NULL AND e.expires_at > p_now);
    FOREACH v_source IN ARRAY w.sources LOOP
        -- The index has cursors whose head nobody could look at first.
        SELECT c.head_kind IS NULL INTO v_blind FROM qo.cursors c WHERE c.group_id = v_source AND c.keyed AND c.state = 'ready'
        ORDER BY c.head_priority DESC, c.head_entered_at, c.lane_id LIMIT 1;
        v_keyed := v_keyed OR FOUND;
        v_unsure := v_unsure OR coalesce(v_blind, false);
    END LOOP;
    IF v_unsure THEN PERFORM qo.look_again(w, p_now); END IF;
    <<looking>>
    WHILE v_again LOOP
        v_limit := least(w.messages - served, w.lanes - v_lanes);
        EXIT WHEN v_limit <= 0;
        SELECT k.ids, k.keyed INTO v_ids, v_are_keyed FROM qo.candidates(w, v_limit, v_passed, v_keyed, v_fragile, p_now) k;
        IF NOT v_fragile AND w.key IS NULL THEN
            met_fragile := met_fragile OR EXISTS (
                SELECT FROM qo.retries r JOIN qo.cursors k ON k.id = r.cursor_id WHERE r.group_id = ANY (w.sources) AND r.token IS NULL
                AND r.due_at <= p_now AND r.losses >= {fragile_losses} AND (w.kinds IS NULL OR k.head_kind = ANY (w.kinds)));
        END IF;
        v_again := false;
        v_number := 1;
        v_odd := 0;
        WHILE v_number <= cardinality(v_ids) LOOP
            EXIT looking WHEN served >= w.messages OR v_lanes >= w.lanes OR w.bytes <= 0;
            IF v_are_keyed[v_number] AND v_number <> v_odd THEN
                v_end := least(coalesce(array_position(v_are_keyed, false, v_number) - 1, cardinality(v_ids)), v_number - 1 + w.lanes - v_lanes);
                s := qo.take_runs(w, v_ids[v_number : v_end], w.messages - served, served, p_now);
                -- One who settles at delivery may go on in the same lanes for the next tokens.
                v_passed := v_passed || CASE WHEN v_many THEN s.left_over ELSE v_ids[v_number : v_number + s.passed - 1] END;
                v_number := v_number + s.passed;
                v_again := v_again OR s.passed > 0;
                contended := contended OR s.contended;
                finished := finished || s.finished;
                IF s.odd THEN v_odd := v_number; END IF;
                IF s.filled THEN w.bytes := 0; END IF;
                IF (s.got).ids IS NOT NULL THEN
                    batches := batches || s.got;
                    served := served + cardinality((s.got).ids);
                    v_lanes := v_lanes + cardinality((s.got).lanes);
                    w.bytes := w.bytes - (s.got).bytes;
                END IF;
                CONTINUE;
            END IF;
            v_before := v_fragile;
            t := qo.take(w, w.tokens[CASE WHEN v_many THEN served ELSE 0 END + 1], v_ids[v_number], CASE WHEN v_many THEN 1 ELSE w.messages - served END,
                         v_fragile, p_now);
            v_passed := v_passed || v_ids[v_number];
            v_number := v_number + 1;
            v_fragile := t.fragile;
            IF t.outcome = 'busy' THEN
                contended := true;
                CONTINUE;
            END IF;
            v_again := true;
            IF t.finished THEN finished := finished || (t.got).lane_id; END IF;
            met_fragile := met_fragile OR t.outcome = 'fragile';
            IF t.outcome = 'taken' THEN
                batches := batches || t.got;
                served := served + cardinality((t.got).ids);
                v_lanes := v_lanes + 1;
                w.bytes := w.bytes - (t.got).bytes;
                IF v_many THEN v_passed := trim_array(v_passed, 1); END IF;     -- the next token may be for the same lane
            END IF;
            -- Lanes look different now; or one gave nothing, and a better one may not be listed.
            EXIT WHEN v_before <> v_fragile OR t.outcome <> 'taken' OR v_many;
        END LOOP;
    END LOOP;
    IF v_many AND w.bytes <= 0 THEN
        contended := true;      -- the others are to ask again
    ELSIF served = 0 AND NOT contended THEN
        contended := qo.left_unsure(w);
    END IF;
END $$;

-- Look at keyed cursors that were left ready by a transaction that could not lock their lane.
CREATE FUNCTION qo.look_again(w qo.want, p_now timestamptz) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    c qo.cursors;
BEGIN
    FOR c IN SELECT * FROM qo.cursors k WHERE k.group_id = ANY (w.sources) AND k.keyed AND k.state = 'ready' AND k.head_kind IS NULL
             ORDER BY k.id LIMIT 100 FOR UPDATE SKIP LOCKED LOOP
        PERFORM qo.rest(c, c.position, c.attempts, c.losses, NULL, p_now);
    END LOOP;
END $$;

-- Whether something may be there that could not be seen: a cursor that is ready though its lane shows nothing.
CREATE FUNCTION qo.left_unsure(w qo.want) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN EXISTS (SELECT FROM qo.cursors k WHERE k.group_id = ANY (w.sources) AND k.keyed AND k.state = 'ready' AND k.head_kind IS NULL)
        OR w.key IS NULL AND EXISTS (SELECT FROM qo.cursors k WHERE k.group_id = ANY (w.sources) AND NOT k.keyed AND k.state = 'ready'
            AND (w.kinds IS NULL OR k.head_kind = ANY (w.kinds)));
END $$;

-- Cursors to take from, best first: those that were not passed, and of keyed ones no more than the limit.
CREATE FUNCTION qo.candidates(w qo.want, p_limit integer, p_passed bigint[], p_keyed boolean, p_fragile boolean, p_now timestamptz,
                              OUT ids bigint[], OUT keyed boolean[]) LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_limit integer := p_limit + cardinality(p_passed);
BEGIN
    IF w.key IS NULL AND NOT p_keyed THEN
        ids := qo.only_open(w, p_now);
        IF ids IS NOT NULL THEN
            IF ids <@ p_passed THEN ids := '{}'; END IF;
            RETURN;
        END IF;
    END IF;
    IF w.key IS NOT NULL THEN
        SELECT array_agg(c.id ORDER BY f.rank DESC, c.head_priority DESC, c.head_entered_at, c.lane_id), array_agg(true) INTO ids, keyed
        FROM unnest(w.queues, w.sources, w.ranks) AS f (queue, grp, rank)
        JOIN qo.lanes l ON l.queue_id = f.queue AND l.key = w.key JOIN qo.cursors c ON c.lane_id = l.id AND c.group_id = f.grp
        WHERE c.state = 'ready' AND c.head_kind IS NOT NULL AND (w.kinds IS NULL OR c.head_kind = ANY (w.kinds)) AND c.id <> ALL (p_passed);
    ELSIF NOT p_keyed THEN
        SELECT array_agg(o.id ORDER BY o.rank DESC, o.priority DESC, o.entered_at, o.lane_id) INTO ids
        FROM qo.open_heads(w, p_fragile, p_now) o WHERE o.id <> ALL (p_passed);
    ELSE
        SELECT array_agg(k.id ORDER BY k.rank DESC, k.priority DESC, k.entered_at, k.lane_id),
               array_agg(k.keyed ORDER BY k.rank DESC, k.priority DESC, k.entered_at, k.lane_id)
        INTO ids, keyed FROM (
            SELECT c.id, f.rank, c.head_priority AS priority, c.head_entered_at AS entered_at, c.lane_id, true AS keyed
            FROM unnest(w.sources, w.ranks) AS f (g, rank) CROSS JOIN LATERAL (
                SELECT * FROM qo.cursors o WHERE w.kinds IS NULL AND o.group_id = f.g AND o.keyed AND o.state = 'ready' AND o.head_kind IS NOT NULL
                ORDER BY o.head_priority DESC, o.head_entered_at, o.lane_id LIMIT v_limit) c
            UNION ALL
            SELECT c.id, f.rank, c.head_priority, c.head_entered_at, c.lane_id, true
            FROM unnest(w.sources, w.ranks) AS f (g, rank) CROSS JOIN unnest(w.kinds) kind CROSS JOIN LATERAL (
                SELECT * FROM qo.cursors o WHERE o.group_id = f.g AND o.head_kind = kind AND o.keyed AND o.state = 'ready'
                ORDER BY o.head_priority DESC, o.head_entered_at, o.lane_id LIMIT v_limit) c
            UNION ALL
            SELECT o.id, o.rank, o.priority, o.entered_at, o.lane_id, false FROM qo.open_heads(w, p_fragile, p_now) o
        ) k WHERE k.id <> ALL (p_passed);
    END IF;
    ids := coalesce(ids, '{}');
END $$;

-- The open lane to take from, if there is no other to compare it with; none at all is {}.
CREATE FUNCTION qo.only_open(w qo.want, p_now timestamptz) RETURNS bigint[] LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_source bigint;
    v_found bigint[] := '{}';
BEGIN
    FOREACH v_source IN ARRAY w.sources LOOP
        IF EXISTS (SELECT FROM qo.retries r WHERE r.group_id = v_source AND r.token IS NULL AND r.due_at <= p_now) THEN RETURN NULL; END IF;
        v_found := v_found || ARRAY(SELECT c.id FROM qo.cursors c WHERE c.group_id = v_source AND NOT c.keyed AND c.state = 'ready'
                                    AND (w.kinds IS NULL OR c.head_kind = ANY (w.kinds)) LIMIT 2);
        IF cardinality(v_found) > 1 THEN RETURN NULL; END IF;
    END LOOP;
    RETURN v_found;
END $$;

-- Open lanes to take from, with their heads. A head is the first due retry, else the first fresh message; a lane that has
-- only messages to be passed is listed too, so that they are; so is one that has none, left ready by someone who could not look.
CREATE FUNCTION qo.open_heads(w qo.want, p_fragile boolean, p_now timestamptz)
RETURNS TABLE (id bigint, rank integer, priority integer, entered_at timestamptz, lane_id bigint) LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT c.id, f.rank, c.head_priority, coalesce(r.entered_at, m.entered_at, p.entered_at), c.lane_id
    FROM unnest(w.sources, w.ranks) AS f (g, rank)
    CROSS JOIN LATERAL (SELECT o.* FROM qo.cursors o WHERE o.group_id = f.g AND NOT o.keyed AND o.state = 'ready'
                        UNION SELECT o.* FROM qo.cursors o WHERE o.id IN (SELECT t.cursor_id FROM qo.retries t
                            WHERE t.group_id = f.g AND t.token IS NULL AND t.due_at <= p_now AND (t.losses < {fragile_losses} OR p_fragile))) c
    CROSS JOIN LATERAL (SELECT greatest(c.position, (SELECT e.last FROM qo.leases e WHERE e.cursor_id = c.id AND e.epoch = c.epoch
                                                     ORDER BY e.last DESC LIMIT 1)) AS position) at
    LEFT JOIN LATERAL (SELECT t.entered_at FROM qo.retries t WHERE t.cursor_id = c.id AND t.token IS NULL AND t.due_at <= p_now
                       AND (t.losses < {fragile_losses} OR p_fragile) ORDER BY t.due_at, t."offset" LIMIT 1) r ON true
    LEFT JOIN LATERAL (SELECT t.entered_at FROM qo.messages t WHERE r.entered_at IS NULL AND t.lane_id = c.lane_id
                       AND t."offset" >= at.position AND (t.group_id IS NULL OR t.group_id = c.group_id)
                       AND NOT EXISTS (SELECT FROM qo.skips s WHERE s.cursor_id = c.id AND s."offset" = t."offset")
                       ORDER BY t."offset" LIMIT 1) m ON true
    LEFT JOIN LATERAL (SELECT t.entered_at FROM qo.messages t WHERE r.entered_at IS NULL AND m.entered_at IS NULL
                       AND t.lane_id = c.lane_id AND t."offset" >= at.position ORDER BY t."offset" LIMIT 1) p ON true
    WHERE w.kinds IS NULL OR c.head_kind = ANY (w.kinds);
END;

-- When time may next bring these groups something; NULL: never. It may be early for a want of few kinds; never late. What ran
-- out while the claim waited for a lock lies in the past: it is to be asked again at once.
CREATE FUNCTION qo.next_moment(w qo.want, p_names text[], p_met_fragile boolean, p_now timestamptz) RETURNS timestamptz LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT min(t) FROM (
        SELECT (SELECT i.due_at FROM qo.intake i WHERE i.queue = n AND i.canceled_at IS NULL ORDER BY i.due_at LIMIT 1) AS t FROM unnest(p_names) n
        UNION ALL SELECT (SELECT e.expires_at FROM qo.leases e WHERE e.group_id = g AND e.ended_at IS NULL ORDER BY e.expires_at LIMIT 1) FROM unnest(w.sources) g
        UNION ALL SELECT (SELECT c.due_at FROM qo.cursors c WHERE c.group_id = g AND c.due_at IS NOT NULL ORDER BY c.due_at LIMIT 1) FROM unnest(w.sources) g
        UNION ALL SELECT (SELECT r.due_at FROM qo.retries r WHERE r.group_id = g AND r.token IS NULL AND r.due_at > p_now ORDER BY r.due_at LIMIT 1) FROM unnest(w.sources) g
        UNION ALL SELECT max(e.expires_at) FROM qo.leases e WHERE p_met_fragile AND e.owner = w.owner AND e.fragile IS NOT NULL
            AND e.ended_at IS NULL AND e.expires_at > p_now
    ) moments);
END $$;

CREATE FUNCTION qo.unpaused(p_want jsonb) RETURNS text[] LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN ARRAY(SELECT n FROM unnest(qo.queues_of(p_want)) n WHERE NOT EXISTS (SELECT FROM qo.queues k WHERE k.name = n AND k.paused));
END $$;

-- Serve wants whose open cursors are locked.
CREATE FUNCTION qo.serve_all(p_wants jsonb, p_resolved qo.want[], p_more boolean, p_unnoted boolean, p_now timestamptz)
RETURNS SETOF qo.claim_row LANGUAGE plpgsql AS $$
DECLARE
    w qo.want;
    s record;
    r qo.claim_row;
    v_groups bigint[];
    v_finished bigint[] := '{}';    -- lanes in which messages were finished
BEGIN
    FOREACH w IN ARRAY p_resolved LOOP
        s := qo.claim_from(w, p_now);
        v_finished := v_finished || s.finished;
        r.want := w.number;
        r.batch := NULL;
        r.wait := NULL;
        r.contended := p_more OR s.contended;
        r.owner_limited := s.met_fragile;
        FOR n IN 1..cardinality(s.batches) LOOP
            r.batch := s.batches[n];
            RETURN NEXT r;
        END LOOP;
        CONTINUE WHEN s.served > 0 AND s.served >= cardinality(w.tokens);
        r.batch := NULL;
        r.wait := CASE WHEN p_more THEN interval '0'  -- there is more to bring up to date
                       WHEN s.contended THEN make_interval(secs => 0.005 + 0.015 * random())
                       ELSE qo.next_moment(w, qo.unpaused(p_wants -> w.number), s.met_fragile, p_now) - p_now END;
        RETURN NEXT r;
    END LOOP;
    IF p_unnoted THEN
        v_groups := ARRAY(SELECT DISTINCT g.id FROM unnest(p_resolved) x CROSS JOIN unnest(x.sources) f JOIN qo.groups g ON g.id = f
                          WHERE qo.is_unnoted(g.claimed_at, p_now) ORDER BY g.id);
        -- The default group claims: from now on it holds messages back, if it did not.
        UPDATE qo.queues q SET rules = q.rules || '{"default_group": true}', settings = q.settings - 'default_group'
        WHERE q.id IN (SELECT k.id FROM unnest(v_groups) g JOIN qo.groups o ON o.id = g AND o.name = 'default' JOIN qo.queues k ON k.id = o.queue_id
                       WHERE k.rules ->> 'default_group' = 'false' ORDER BY k.id FOR UPDATE OF k SKIP LOCKED);
        UPDATE qo.groups g SET claimed_at = p_now WHERE g.id IN (SELECT l.id FROM qo.groups l WHERE l.id = ANY (v_groups) ORDER BY l.id FOR UPDATE SKIP LOCKED);
    END IF;
    IF cardinality(v_finished) > 0 THEN PERFORM qo.to_tidy(v_finished, p_now); END IF;
END $$;

-- The common case, in fewer and simpler steps: wants of one queue each, where open lanes alone have something, of each want
-- at most one, and that of a kind that it takes. A transaction prepares every expression of a function anew, so that a short
-- function is a fast one.

CREATE TYPE qo.short_claims AS (
    tokens text[],          -- each a JSON list; of many, each is for one message
    queues text[],
    groups text[],
    messages integer[],
    leases double precision[],
    owners text[],
    fresh boolean,          -- what time has changed was looked for a moment ago
    kinds text[],           -- each a JSON list; NULL: all
    bytes bigint[]
);

-- Whether each group's messages are to be had from one open lane, and nothing must be done first. What time has changed is not
-- looked for if the caller did so a moment ago and every group has something fresh: these indexes are read from their low end, where
-- under an old snapshot dead entries pile up.
CREATE FUNCTION qo.are_plain(p_queues text[], p_groups bigint[], p_fresh boolean, p_now timestamptz) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF EXISTS (SELECT FROM qo.cursors k WHERE k.group_id = ANY (p_groups) AND k.keyed AND k.state = 'ready')
        OR EXISTS (SELECT FROM qo.cursors k WHERE k.group_id = ANY (p_groups) AND NOT k.keyed AND k.state = 'ready'
                   GROUP BY k.group_id HAVING count(*) > 1) THEN
        RETURN false;
    END IF;
    IF p_fresh AND NOT EXISTS (SELECT FROM unnest(p_groups) g WHERE NOT EXISTS (
            SELECT FROM qo.cursors k WHERE k.group_id = g AND NOT k.keyed AND k.state = 'ready')) THEN
        RETURN true;
    END IF;
    RETURN NOT (EXISTS (SELECT FROM qo.intake t WHERE t.queue = ANY (p_queues) AND t.canceled_at IS NULL AND t.due_at <= p_now)
        OR EXISTS (SELECT FROM qo.leases e WHERE e.group_id = ANY (p_groups) AND e.ended_at IS NULL AND e.expires_at <= p_now)
        OR EXISTS (SELECT FROM qo.retries r WHERE r.group_id = ANY (p_groups) AND r.token IS NULL AND r.due_at <= p_now)
        OR EXISTS (SELECT FROM qo.cursors k WHERE k.group_id = ANY (p_groups) AND k.due_at <= p_now AND k.due_at IS NOT NULL));
END $$;

-- The groups of plain wants; NULL if they are none, or not in that case.
CREATE FUNCTION qo.plain_groups(p qo.short_claims, p_now timestamptz) RETURNS bigint[] LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_found bigint[] := '{}';
    v_group bigint;
BEGIN
    IF p.queues IS NULL THEN RETURN NULL; END IF;
    FOR i IN 1..cardinality(p.queues) LOOP
        SELECT g.id INTO v_group FROM qo.queues q JOIN qo.groups g ON g.queue_id = q.id
        WHERE q.name = p.queues[i] AND NOT q.paused AND q.rules ->> 'history' <> 'full' AND q.rules ->> 'encrypt' = 'false' AND q.rules ->> 'max_age' IS NULL
          AND g.name = p.groups[i]
          AND NOT qo.is_unnoted(g.claimed_at, p_now);
        IF NOT FOUND OR p.kinds[i] IS NOT NULL AND EXISTS (SELECT FROM qo.cursors k WHERE k.group_id = v_group AND NOT k.keyed
                AND k.state = 'ready' AND NOT p.kinds[i]::jsonb ? k.head_kind) THEN
            RETURN NULL;
        END IF;
        v_found := v_found || v_group;
    END LOOP;
    RETURN CASE WHEN qo.are_plain(p.queues, v_found, p.fresh, p_now) THEN v_found END;
END $$;

-- Take from an open lane, whose cursor is locked. No `ids`, and nothing done, if there is something among the messages that
-- calls for more than that. A cursor that has nothing beyond is marked idle, under the lane's lock alone; if that is taken, it
-- stays ready, and whoever claims next looks again.
CREATE FUNCTION qo.take_plain(c qo.cursors, p_queue text, p_tokens text[], p_messages integer, p_bytes bigint, p_lease double precision,
                              p_owner text, p_now timestamptz) RETURNS qo.batch LANGUAGE plpgsql AS $$
DECLARE
    v_until timestamptz := p_now + make_interval(secs => p_lease);
    v_position bigint;
    v_first bigint;
    v_last bigint;
    v_ids uuid[];
    v_payloads bytea[];
    v_created timestamptz[];
    v_plain boolean;
    v_more boolean;
BEGIN
    SELECT e.last INTO v_position FROM qo.leases e WHERE e.cursor_id = c.id AND e.epoch = c.epoch ORDER BY e.last DESC LIMIT 1;
    SELECT min(t."offset"), max(t."offset"), array_agg(t.id), array_agg(t.payload), array_agg(t.created_at),
           NOT bool_or(num_nonnulls(t.headers, t.due_at, t.expires_at, t.group_id, t.retry_of) > 0 OR t.entered_at <> t.created_at)
               AND NOT EXISTS (SELECT FROM qo.skips k WHERE k.cursor_id = c.id AND k."offset" >= min(t."offset") AND k."offset" <= max(t."offset")),
           EXISTS (SELECT FROM qo.messages n WHERE n.lane_id = c.lane_id AND n."offset" > max(t."offset"))
    INTO v_first, v_last, v_ids, v_payloads, v_created, v_plain, v_more
    FROM (SELECT * FROM (SELECT x.*, sum(octet_length(x.payload)) OVER (ORDER BY x."offset" ROWS UNBOUNDED PRECEDING) AS size
                         FROM qo.messages x WHERE x.lane_id = c.lane_id AND x."offset" >= greatest(c.position, v_position)
                         ORDER BY x."offset" LIMIT p_messages) y
          WHERE y.size <= p_bytes OR y.size = octet_length(y.payload)) t;
    IF v_plain IS NOT true THEN RETURN NULL; END IF;
    IF cardinality(p_tokens) = 1 THEN
        INSERT INTO qo.leases (token, lane_id, cursor_id, group_id, epoch, first, last, from_offset, to_offset, owner, claimed_at, expires_at)
        VALUES (p_tokens[1], c.lane_id, c.id, c.group_id, c.epoch, v_first, v_last + 1, v_first, v_last + 1, p_owner, p_now, v_until);
    ELSE
        INSERT INTO qo.leases (token, lane_id, cursor_id, group_id, epoch, first, last, from_offset, to_offset, owner, claimed_at, expires_at)
        SELECT t.token, c.lane_id, c.id, c.group_id, c.epoch, v_first + t.n - 1, v_first + t.n, v_first + t.n - 1, v_first + t.n, p_owner, p_now, v_until
        FROM unnest(p_tokens) WITH ORDINALITY AS t (token, n) WHERE v_first + t.n - 1 <= v_last;
    END IF;
    IF NOT v_more THEN
        PERFORM FROM qo.lanes WHERE id = c.lane_id FOR UPDATE SKIP LOCKED;
        IF FOUND THEN
            UPDATE qo.cursors SET state = 'idle' WHERE id = c.id
                AND NOT EXISTS (SELECT FROM qo.messages m WHERE m.lane_id = c.lane_id AND m."offset" > v_last);
        END IF;
    END IF;
    RETURN (c.lane_id, p_queue, NULL, c.head_kind, c.head_priority, v_until, v_first, NULL, v_ids, v_payloads, v_created, NULL, NULL, NULL, NULL,
            NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)::qo.batch;
END $$;

-- Refuse tokens that callers chose, if they were used before: whoever comes again with a token must not get another claim's
-- messages under it. A call with the same token at the same time waits.
CREATE FUNCTION qo.check_tokens(p_wants jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_tokens text[] := ARRAY(SELECT t FROM jsonb_array_elements(p_wants) w CROSS JOIN jsonb_array_elements_text(w -> 'tokens') t WHERE w ? 'named' ORDER BY 1);
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('qo token ' || t, 0)) FROM unnest(v_tokens) t;
    IF EXISTS (SELECT FROM qo.leases e WHERE e.token = ANY (v_tokens))
            OR cardinality(v_tokens) > (SELECT count(DISTINCT t) FROM unnest(v_tokens) t) THEN
        RAISE unique_violation USING MESSAGE = 'qo: a token was used before';
    END IF;
END $$;

-- Serve one want of a call in which others may hold locks for us already: what is not ours is passed over, not waited for.
CREATE FUNCTION qo.claim_locked(p_wants jsonb, p_number integer, p_now timestamptz) RETURNS SETOF qo.claim_row LANGUAGE plpgsql AS $$
DECLARE
    r record := qo.read_wants(jsonb_build_array(p_wants -> p_number), p_now, true);
    w qo.want := r.wants[1];
BEGIN
    w.number := p_number;
    w.sources := coalesce(w.sources, '{}');   -- its group is gone
    w.queues := coalesce(w.queues, '{}');
    RETURN QUERY SELECT * FROM qo.serve_all(p_wants, ARRAY[w], r.more OR r.signal IS NOT NULL, false, p_now);
END $$;

-- Serve plain wants. The open cursors of their groups are locked.
CREATE FUNCTION qo.claim_plain(p_wants jsonb, p qo.short_claims, p_groups bigint[], p_now timestamptz) RETURNS SETOF qo.claim_row LANGUAGE plpgsql AS $$
DECLARE
    r qo.claim_row;
    h qo.batch;
    c qo.cursors;
    v_queue text;
    v_tokens text[];
    v_lease double precision;
BEGIN
    r.owner_limited := false;
    FOR i IN 1..cardinality(p_groups) LOOP
        -- One that became ready after the others were locked is not ours yet.
        SELECT * INTO c FROM qo.cursors k WHERE k.group_id = p_groups[i] AND NOT k.keyed AND k.state = 'ready'
            AND (p.kinds[i] IS NULL OR p.kinds[i]::jsonb ? k.head_kind) ORDER BY k.id LIMIT 1 FOR UPDATE SKIP LOCKED;
        h := NULL;
        IF FOUND THEN
            IF v_queue IS DISTINCT FROM p.queues[i] THEN
                SELECT k.name, (k.rules ->> 'lease')::double precision INTO v_queue, v_lease FROM qo.queues k WHERE k.name = p.queues[i];
            END IF;
            v_tokens := ARRAY(SELECT jsonb_array_elements_text(p.tokens[i]::jsonb));
            h := qo.take_plain(c, v_queue, v_tokens, p.messages[i], p.bytes[i], coalesce(p.leases[i], v_lease), p.owners[i], p_now);
        END IF;
        IF h.ids IS NOT NULL THEN
            r.want := i - 1;
            r.batch := h;
            RETURN NEXT r;
            CONTINUE WHEN cardinality(v_tokens) <= cardinality(h.ids);
            p_wants := jsonb_set(p_wants, ARRAY[(i - 1)::text, 'tokens'], to_jsonb(v_tokens[cardinality(h.ids) + 1 :]));
        END IF;
        RETURN QUERY SELECT * FROM qo.claim_locked(p_wants, i - 1, p_now);
    END LOOP;
END $$;

-- Claim for one plain want.
CREATE FUNCTION qo.claim_one(p_wants jsonb, p_token text, p_queue text, p_group text, p_messages integer, p_lease double precision,
                             p_owner text, p_fresh boolean, p_kinds text, p_bytes bigint, p_moved boolean, p_now timestamptz) RETURNS SETOF qo.claim_row LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    r qo.claim_row;
    c qo.cursors;
    v_group bigint;
    v_lease double precision;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN PERFORM qo.refuse_isolation(); END IF;
    IF p_now IS NOT NULL THEN PERFORM qo.check_clock(); END IF;
    IF jsonb_path_exists(p_wants, '$[*].named') THEN PERFORM qo.check_tokens(p_wants); END IF;
    SELECT g.id, coalesce(p_lease, (q.rules ->> 'lease')::double precision) INTO v_group, v_lease
    FROM qo.queues q JOIN qo.groups g ON g.queue_id = q.id
    WHERE q.name = p_queue AND NOT q.paused AND q.rules ->> 'history' <> 'full' AND q.rules ->> 'encrypt' = 'false' AND q.rules ->> 'max_age' IS NULL
      AND g.name = p_group
      AND NOT qo.is_unnoted(g.claimed_at, v_now);
    IF FOUND AND qo.are_plain(ARRAY[p_queue], ARRAY[v_group], p_fresh, v_now) THEN
        SELECT * INTO c FROM qo.cursors k WHERE k.group_id = v_group AND NOT k.keyed AND k.state = 'ready'
            AND (p_kinds IS NULL OR p_kinds::jsonb ? k.head_kind) ORDER BY k.id LIMIT 1 FOR UPDATE;
        IF FOUND THEN
            r.batch := qo.take_plain(c, p_queue, ARRAY[p_token], p_messages, p_bytes, v_lease, p_owner, coalesce(p_now, clock_timestamp()));
            IF (r.batch).ids IS NOT NULL THEN
                r.want := 0;
                RETURN NEXT r;
                RETURN;
            END IF;
            RETURN QUERY SELECT * FROM qo.claim_locked(p_wants, 0, coalesce(p_now, clock_timestamp()));
            RETURN;
        END IF;
    END IF;
    RETURN QUERY SELECT * FROM qo.claim(p_wants, NULL::qo.short_claims, p_moved, p_now);
END $$;

-- Claim.
CREATE FUNCTION qo.claim(p_wants jsonb, p_plain qo.short_claims, p_moved boolean, p_now timestamptz) RETURNS SETOF qo.claim_row LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_groups bigint[] := qo.plain_groups(p_plain, v_now);
    r record;
    v_answer qo.claim_row;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN PERFORM qo.refuse_isolation(); END IF;
    IF p_now IS NOT NULL THEN PERFORM qo.check_clock(); END IF;
    IF jsonb_path_exists(p_wants, '$[*].named') THEN PERFORM qo.check_tokens(p_wants); END IF;
    IF v_groups IS NOT NULL THEN
        PERFORM FROM qo.cursors WHERE group_id = ANY (v_groups) AND NOT keyed AND state = 'ready' ORDER BY id FOR UPDATE;
        RETURN QUERY SELECT * FROM qo.claim_plain(p_wants, p_plain, v_groups, coalesce(p_now, clock_timestamp()));
        RETURN;
    END IF;
    r := qo.read_wants(p_wants, v_now, p_moved);
    IF r.signal IS NOT NULL THEN
        v_answer.signal := r.signal;
        RETURN NEXT v_answer;
        RETURN;
    END IF;
    PERFORM FROM qo.cursors WHERE id = ANY (qo.open_cursors(r.wants, v_now)) ORDER BY id FOR UPDATE;
    RETURN QUERY SELECT * FROM qo.serve_all(p_wants, r.wants, r.more, r.unnoted, coalesce(p_now, clock_timestamp()));
END $$;

-- What a token holds, as the answer to its claim.
CREATE FUNCTION qo.claimed(p_token text, p_number integer) RETURNS SETOF qo.claim_row LANGUAGE plpgsql STABLE AS $$
DECLARE
    r qo.claim_row;
    h qo.batch;
    e qo.leases;
    c qo.cursors;
BEGIN
    r.want := p_number;
    r.owner_limited := false;
    FOR e IN SELECT * FROM qo.leases l WHERE l.token = p_token AND l.ended_at IS NULL ORDER BY l.claimed_at, l.lane_id LOOP
        SELECT * INTO STRICT c FROM qo.cursors k WHERE k.id = e.cursor_id;
        SELECT e.lane_id, q.name, l.key, l.kind, l.priority, e.expires_at INTO h.lane_id, h.queue, h.key, h.kind, h.priority, h.expires_at
        FROM qo.lanes l JOIN qo.queues q ON q.id = l.queue_id WHERE l.id = e.lane_id;
        SELECT array_agg(t."offset" ORDER BY t.place, t."offset"),
               array_agg(coalesce(t.attempts, CASE WHEN c.keyed AND t."offset" = e.from_offset THEN c.attempts ELSE 0 END) ORDER BY t.place, t."offset")
        INTO h.offsets, h.attempts FROM (
            SELECT n."offset", 0 AS place, n.attempts FROM qo.retries n WHERE n.cursor_id = c.id AND n.token = e.token
            UNION ALL SELECT o, 1, NULL FROM unnest(int8multirange(int8range(e.from_offset, e.to_offset)) - e.settled) gap,
                generate_series(lower(gap), upper(gap) - 1) o
            WHERE NOT EXISTS (SELECT FROM qo.skips s WHERE s.cursor_id = c.id AND s."offset" = o)) t;
        CONTINUE WHEN h.offsets IS NULL;
        h.sealed_since := (SELECT (q.rules ->> 'sealed_since')::timestamptz FROM qo.queues q WHERE q.name = h.queue);
        r.batch := qo.load(h);
        RETURN NEXT r;
    END LOOP;
END $$;
