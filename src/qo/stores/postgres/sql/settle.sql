-- settle: what became of claimed messages. The items of one call are judged lease by lease; on a keyed lane together, as
-- one report on a run, on an open lane one by one.

-- What is said about messages, and how it was taken.
CREATE TYPE qo.report AS (
    number integer,
    "offset" bigint,
    what text,                      -- complete, fail, snooze (a failure that uses no attempt), release, retry (what is before it is done, this is given back), bury,
                                    -- fail N (the same, with so many attempts in all),
                                    -- unreadable (it must not be tried again, because its payload cannot be opened)
    error text,
    after double precision,         -- seconds; NULL: as the queue's policy says
    result bytea,
    started_at timestamptz
);
CREATE TYPE qo.taken AS (number integer, answer text, verdict text, ended boolean);

-- The verdict that a token's lease gave a message before. A keyed lane's lease that ended with the completion of all says so itself.
CREATE FUNCTION qo.first_verdict(p_token text, p_lane bigint, p_offset bigint) RETURNS text LANGUAGE sql STABLE
RETURN coalesce((SELECT verdict FROM qo.settlements WHERE token = p_token AND lane_id = p_lane AND offsets @> p_offset LIMIT 1),
                (SELECT 'completed' FROM qo.leases WHERE token = p_token AND lane_id = p_lane AND epoch IS NULL AND settled @> p_offset));

-- How an item about a message that the lease does not hold unsettled is answered.
CREATE FUNCTION qo.answer_late(e qo.leases, p_offset bigint, OUT answer text, OUT verdict text) LANGUAGE plpgsql STABLE AS $$
BEGIN
    verdict := qo.first_verdict(e.token, e.lane_id, p_offset);
    answer := CASE WHEN verdict IS NOT NULL THEN 'repeated'
                   WHEN p_offset >= e.first AND p_offset < e.last OR p_offset = ANY (e.retried) THEN 'lost'
                   ELSE 'unknown' END;
END $$;

-- Settle the items of many leases. The caller has locked their cursors.
CREATE FUNCTION qo.settle_all(p_tokens text[], p_lanes bigint[], p_offsets bigint[], p_whats text[], p_errors text[],
                              p_afters double precision[], p_results bytea[], p_started timestamptz[], p_draw double precision,
                              p_now timestamptz) RETURNS qo.taken[] LANGUAGE plpgsql AS $$
DECLARE
    v_taken qo.taken[] := '{}';
    v_token text;
    v_lane bigint;
    v_items qo.report[];
    i qo.report;
    e qo.leases;
    c qo.cursors;
    q qo.queues;
    v_late record;
BEGIN
    FOR v_token, v_lane, v_items IN
        SELECT s.token, s.lane, array_agg((s.number, s."offset", s.what, s.error, s.after, s.result, s.started)::qo.report ORDER BY s.number)
        FROM unnest(p_tokens, p_lanes, p_offsets, p_whats, p_errors, p_afters, p_results, p_started) WITH ORDINALITY
            AS s (token, lane, "offset", what, error, after, result, started, number)
        GROUP BY s.token, s.lane ORDER BY min(s.number)
    LOOP
        SELECT * INTO e FROM qo.leases WHERE token = v_token AND lane_id = v_lane AND NOT at_delivery FOR UPDATE;
        IF NOT FOUND THEN
            FOREACH i IN ARRAY v_items LOOP v_taken := v_taken || (i.number, 'unknown', NULL, true)::qo.taken; END LOOP;
        ELSIF e.ended_at IS NOT NULL OR e.expires_at <= p_now THEN
            FOREACH i IN ARRAY v_items LOOP
                v_late := qo.answer_late(e, i."offset");
                v_taken := v_taken || (i.number, v_late.answer, v_late.verdict, true)::qo.taken;
            END LOOP;
        ELSE
            SELECT * INTO STRICT c FROM qo.cursors WHERE id = e.cursor_id;
            SELECT k.* INTO STRICT q FROM qo.queues k JOIN qo.lanes l ON l.queue_id = k.id WHERE l.id = v_lane;
            FOREACH i IN ARRAY v_items LOOP
                IF i.started_at IS NOT NULL THEN
                    e.started := coalesce(e.started, '{}') || jsonb_build_object(i."offset"::text, i.started_at);
                END IF;
            END LOOP;
            IF c.keyed THEN
                v_taken := v_taken || qo.settle_run(q, c, e, v_items, p_draw, p_now);
            ELSE
                v_taken := v_taken || qo.settle_open(q, c, e, v_items, p_draw, p_now);
            END IF;
        END IF;
    END LOOP;
    RETURN v_taken;
END $$;

-- What a report that is not a completion makes of a message.
CREATE FUNCTION qo.fate_of_report(q qo.queues, e qo.leases, i qo.report, p_attempts integer, p_losses integer,
                                  p_draw double precision, p_now timestamptz,
                                  OUT verdict text, OUT at timestamptz, OUT reason text, OUT attempts integer, OUT losses integer)
LANGUAGE plpgsql AS $$
DECLARE
    v_expired boolean := EXISTS (SELECT FROM qo.messages m WHERE m.lane_id = e.lane_id AND m."offset" = i."offset" AND m.expires_at <= p_now);
    v_fails boolean := i.what = 'fail' OR i.what LIKE 'fail %';
    v_limit integer := coalesce(CASE WHEN i.what LIKE 'fail %' THEN substr(i.what, 6)::integer END, (q.rules -> 'retry' ->> 'attempts')::integer);
BEGIN
    attempts := p_attempts;
    losses := p_losses;
    IF i."offset" = ANY (e.canceled) THEN
        verdict := 'canceled'; reason := 'canceled';
    ELSIF i.what = 'bury' THEN
        verdict := 'buried'; reason := 'buried'; attempts := p_attempts + 1;
    ELSIF i.what = 'unreadable' THEN
        verdict := 'buried'; reason := 'unreadable';
    ELSIF v_fails AND p_attempts + 1 >= v_limit THEN
        verdict := CASE WHEN (q.rules ->> 'dead_letters')::boolean THEN 'buried' ELSE 'dropped' END;
        reason := 'failed'; attempts := p_attempts + 1;
    ELSIF v_expired THEN
        verdict := 'canceled'; reason := 'expired';
    ELSIF i.what = 'snooze' THEN
        verdict := 'retrying'; losses := 0;
        at := p_now + make_interval(secs => i.after);
    ELSIF v_fails THEN
        verdict := 'retrying'; attempts := p_attempts + 1; losses := 0;
        at := p_now + coalesce(make_interval(secs => i.after), qo.rest_after(q.rules, attempts, p_draw));
    ELSE
        verdict := 'released'; at := p_now;
    END IF;
END $$;

-- Write the end of a message that a report ended otherwise than by completion.
CREATE FUNCTION qo.end_reported(q qo.queues, c qo.cursors, e qo.leases, i qo.report, p_attempts integer, f record, p_now timestamptz)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF f.verdict = 'buried' THEN
        PERFORM qo.bury(q.id, c.group_id, c.lane_id, i."offset", f.attempts, f.losses, f.reason, coalesce(i.error, ''), p_now);
    END IF;
    PERFORM qo.finish(q, c.group_id, c.lane_id, ARRAY[i."offset"], ARRAY[CASE WHEN f.verdict = 'canceled' THEN 'canceled' ELSE 'failed' END],
                      ARRAY[CASE WHEN f.verdict = 'canceled' THEN p_attempts + 1 ELSE greatest(f.attempts, 1) END], ARRAY[f.reason],
                      ARRAY[CASE WHEN f.verdict <> 'canceled' THEN coalesce(i.error, '') END], '{}', e.owner,
                      ARRAY[(e.started ->> i."offset"::text)::timestamptz], p_now);
END $$;

-- Keep what a call settled under a lease.
CREATE FUNCTION qo.keep_verdicts(e qo.leases, p_offsets bigint[], p_verdicts text[]) RETURNS void LANGUAGE sql AS $$
    INSERT INTO qo.settlements (token, lane_id, verdict, offsets)
    SELECT e.token, e.lane_id, v.verdict, range_agg(int8range(v."offset", v."offset" + 1))
    FROM unnest(p_offsets, p_verdicts) AS v ("offset", verdict) GROUP BY v.verdict;
$$;

-- Judge an open lane's messages one by one, in any order.
CREATE FUNCTION qo.settle_open(q qo.queues, c qo.cursors, e qo.leases, p_items qo.report[], p_draw double precision, p_now timestamptz)
RETURNS qo.taken[] LANGUAGE plpgsql AS $$
DECLARE
    v_count integer := cardinality(p_items);
    v_hint boolean := false;
    v_offsets bigint[];
    v_verdicts text[];
    v_done bigint[];
    v_results bytea[];
    v_started timestamptz[];
    v_attempts integer[];
    v_fragile bigint := e.fragile;
    v_ended boolean;
    v_settled int8multirange;
    v_all int8multirange := int8multirange(int8range(e.from_offset, e.to_offset));
    v_fresh boolean;
    r qo.retries;
    i qo.report;
    f record;
BEGIN
    -- The common case in a few statements: fresh messages, each named once, all of them completed.
    SELECT array_agg(x."offset"), array_agg(x.result), array_agg((e.started ->> x."offset"::text)::timestamptz),
           range_agg(int8range(x."offset", x."offset" + 1))
    INTO v_offsets, v_results, v_started, v_settled FROM unnest(p_items) x
    HAVING bool_and(x.what = 'complete' AND x."offset" >= e.from_offset AND x."offset" < e.to_offset)
       AND count(DISTINCT x."offset") = count(*);
    IF v_offsets IS NOT NULL AND NOT v_settled && e.settled THEN
        v_settled := v_settled + e.settled;
        v_verdicts := array_fill('completed'::text, ARRAY[v_count]);
        v_done := v_offsets;
        v_attempts := array_fill(1, ARRAY[v_count]);
    ELSE
        v_settled := e.settled;
        v_offsets := '{}'; v_verdicts := '{}'; v_done := '{}'; v_results := '{}'; v_started := '{}'; v_attempts := '{}';
        FOREACH i IN ARRAY p_items LOOP
            CONTINUE WHEN i."offset" = ANY (v_offsets);
            SELECT * INTO r FROM qo.retries t WHERE t.cursor_id = c.id AND t."offset" = i."offset" AND t.token = e.token;
            v_fresh := NOT FOUND;
            CONTINUE WHEN v_fresh AND (NOT v_all @> i."offset" OR v_settled @> i."offset");
            IF v_fresh THEN
                v_settled := v_settled + int8multirange(int8range(i."offset", i."offset" + 1));
                r.attempts := 0; r.losses := 0;
            END IF;
            IF v_fragile = i."offset" THEN v_fragile := NULL; END IF;
            v_offsets := v_offsets || i."offset";
            IF i.what = 'complete' THEN
                v_verdicts := v_verdicts || 'completed'::text;
                v_done := v_done || i."offset";
                v_results := v_results || i.result;
                v_started := v_started || (e.started ->> i."offset"::text)::timestamptz;
                v_attempts := v_attempts || r.attempts + 1;
                IF NOT v_fresh THEN DELETE FROM qo.retries t WHERE t.cursor_id = c.id AND t."offset" = i."offset"; END IF;
                CONTINUE;
            END IF;
            f := qo.fate_of_report(q, e, i, r.attempts, r.losses, p_draw, p_now);
            v_verdicts := v_verdicts || f.verdict;
            IF f.at IS NOT NULL THEN
                v_hint := true;
                PERFORM qo.wait(c, i."offset", f.attempts, f.losses, f.at, v_fresh);
                IF f.verdict = 'retrying' THEN
                    PERFORM qo.note_failure(q, e, i."offset", f.attempts, i.error, p_now);
                END IF;
            ELSE
                IF NOT v_fresh THEN DELETE FROM qo.retries t WHERE t.cursor_id = c.id AND t."offset" = i."offset"; END IF;
                PERFORM qo.end_reported(q, c, e, i, r.attempts, f, p_now);
            END IF;
        END LOOP;
    END IF;
    v_ended := v_settled @> int8range(e.from_offset, e.to_offset)
        AND NOT (cardinality(e.retried) > 0 AND EXISTS (SELECT FROM qo.retries t WHERE t.cursor_id = c.id AND t.token = e.token));
    IF cardinality(v_offsets) > 0 THEN
        PERFORM qo.finish(q, c.group_id, c.lane_id, v_done, array_fill('succeeded'::text, ARRAY[cardinality(v_done)]), v_attempts,
                          '{}', '{}', v_results, e.owner, v_started, p_now);
        PERFORM qo.keep_verdicts(e, v_offsets, v_verdicts);
        UPDATE qo.leases SET settled = v_settled, fragile = CASE WHEN NOT v_ended THEN v_fragile END,
            started = e.started, ended_at = CASE WHEN v_ended THEN p_now END
        WHERE token = e.token AND lane_id = e.lane_id;
        IF e.fragile IS NOT NULL AND (v_ended OR v_fragile IS NULL) THEN
            PERFORM qo.hint(NULL);  -- its owner may now take another such message, in any queue
        ELSIF v_hint THEN
            PERFORM qo.hint(ARRAY[q.name]);
        END IF;
    END IF;
    RETURN qo.answer_items(e, p_items, v_offsets, v_verdicts, '{}', v_ended);
END $$;

-- Answer the items of one lease. `p_given_back` lists messages of a run that lay beyond its stop.
CREATE FUNCTION qo.answer_items(e qo.leases, p_items qo.report[], p_offsets bigint[], p_verdicts text[], p_given_back bigint[], p_ended boolean)
RETURNS qo.taken[] LANGUAGE plpgsql AS $$
DECLARE
    v_taken qo.taken[] := '{}';
    v_seen bigint[] := '{}';
    v_at integer;
    v_late record;
    i qo.report;
BEGIN
    IF p_offsets = ARRAY(SELECT x."offset" FROM unnest(p_items) x) THEN
        RETURN ARRAY(SELECT (x.number, 'settled', p_verdicts[x.n], p_ended)::qo.taken
                     FROM unnest(p_items) WITH ORDINALITY AS x (number, "offset", what, error, after, result, started_at, n));
    END IF;
    FOREACH i IN ARRAY p_items LOOP
        v_at := array_position(p_offsets, i."offset");
        IF v_at IS NOT NULL THEN
            v_taken := v_taken || (i.number, CASE WHEN i."offset" = ANY (v_seen) THEN 'repeated' ELSE 'settled' END, p_verdicts[v_at], p_ended)::qo.taken;
        ELSIF i."offset" = ANY (p_given_back) THEN
            v_taken := v_taken || (i.number, 'given_back', NULL, p_ended)::qo.taken;
        ELSE
            v_late := qo.answer_late(e, i."offset");
            -- An offset that is still inside the lease, and was not its to settle, is a skip: unknown.
            IF v_late.answer = 'lost' AND i."offset" >= e.from_offset AND i."offset" < e.to_offset THEN
                v_late.answer := 'unknown';
            ELSIF v_late.answer = 'lost' AND cardinality(e.retried) > 0 AND i."offset" = ANY (e.retried) THEN
                v_late.answer := 'unknown';
            END IF;
            v_taken := v_taken || (i.number, v_late.answer, v_late.verdict, p_ended)::qo.taken;
        END IF;
        v_seen := v_seen || i."offset";
    END LOOP;
    RETURN v_taken;
END $$;

-- Judge a keyed lane's run as a whole: the lowest report that is not a completion decides.
CREATE FUNCTION qo.settle_run(q qo.queues, c qo.cursors, e qo.leases, p_items qo.report[], p_draw double precision, p_now timestamptz)
RETURNS qo.taken[] LANGUAGE plpgsql AS $$
DECLARE
    v_skips bigint[] := ARRAY(SELECT s."offset" FROM qo.skips s WHERE s.cursor_id = c.id AND s."offset" >= e.from_offset AND s."offset" < e.to_offset);
    v_reports qo.report[];
    v_stop qo.report;
    v_completed_to bigint;
    v_offsets bigint[] := '{}';
    v_verdicts text[] := '{}';
    v_given_back bigint[] := '{}';
    v_done bigint[];
    v_attempts integer := 0;
    v_losses integer := 0;
    v_ended boolean := false;
    f record;
BEGIN
    v_reports := ARRAY(SELECT x FROM (SELECT DISTINCT ON (y."offset") y AS x, y."offset" AS o FROM unnest(p_items) y
                       WHERE y."offset" >= e.from_offset AND y."offset" < e.to_offset AND y."offset" <> ALL (v_skips)
                       ORDER BY y."offset", y.number) z ORDER BY o);
    IF cardinality(v_reports) = 0 THEN
        RETURN qo.answer_items(e, p_items, '{}', '{}', '{}', false);
    END IF;
    SELECT x.* INTO v_stop FROM unnest(v_reports) x WHERE x.what <> 'complete' ORDER BY x."offset" LIMIT 1;
    IF v_stop."offset" IS NOT NULL AND v_stop.what <> 'release' THEN
        v_completed_to := v_stop."offset";
    ELSE
        SELECT coalesce(max(x."offset") + 1, e.from_offset) INTO v_completed_to FROM unnest(v_reports) x
        WHERE v_stop."offset" IS NULL OR x."offset" < v_stop."offset";
    END IF;
    v_done := ARRAY(SELECT o FROM generate_series(e.from_offset, v_completed_to - 1) o WHERE o <> ALL (v_skips) ORDER BY o);
    v_offsets := v_done;
    v_verdicts := array_fill('completed'::text, ARRAY[cardinality(v_done)]);
    IF cardinality(v_done) > 0 THEN
        PERFORM qo.finish(q, c.group_id, c.lane_id, v_done, array_fill('succeeded'::text, ARRAY[cardinality(v_done)]),
            ARRAY(SELECT CASE WHEN o = e.from_offset THEN c.attempts + 1 ELSE 1 END FROM unnest(v_done) WITH ORDINALITY u (o, n) ORDER BY n),
            '{}', '{}',
            ARRAY(SELECT (SELECT x.result FROM unnest(v_reports) x WHERE x."offset" = u.o AND x.what = 'complete') FROM unnest(v_done) WITH ORDINALITY u (o, n) ORDER BY n),
            e.owner, ARRAY(SELECT (e.started ->> u.o::text)::timestamptz FROM unnest(v_done) WITH ORDINALITY u (o, n) ORDER BY n), p_now);
    END IF;
    IF v_stop."offset" IS NULL THEN
        SELECT m.ended INTO v_ended FROM qo.move_run(q, c, e, v_completed_to, e.to_offset, p_now) m;
    ELSE
        IF v_stop."offset" = e.from_offset THEN
            v_attempts := c.attempts;
            v_losses := c.losses;
        END IF;
        f := qo.fate_of_report(q, e, v_stop, v_attempts, v_losses, p_draw, p_now);
        v_offsets := v_offsets || v_stop."offset";
        v_verdicts := v_verdicts || f.verdict;
        v_given_back := ARRAY(SELECT x."offset" FROM unnest(v_reports) x WHERE x."offset" > v_stop."offset");
        PERFORM qo.skip_canceled(q, c, e, v_stop."offset" + 1, e.to_offset, p_now);
        IF f.at IS NULL THEN PERFORM qo.end_reported(q, c, e, v_stop, v_attempts, f, p_now); END IF;
        IF v_stop.what = 'release' AND v_completed_to < v_stop."offset" THEN
            IF f.verdict <> 'released' THEN
                INSERT INTO qo.skips (cursor_id, "offset") VALUES (c.id, v_stop."offset") ON CONFLICT DO NOTHING;
            END IF;
            SELECT m.ended INTO v_ended FROM qo.move_run(q, c, e, v_completed_to, v_stop."offset", p_now) m;
        ELSE
            v_ended := true;
            IF f.verdict = 'retrying' THEN
                PERFORM qo.rest(c, v_stop."offset", f.attempts, f.losses, f.at, p_now);
                PERFORM qo.note_failure(q, e, v_stop."offset", f.attempts, v_stop.error, p_now);
            ELSIF f.verdict = 'released' THEN
                PERFORM qo.rest(c, v_stop."offset", v_attempts, v_losses, NULL, p_now);
            ELSE
                PERFORM qo.rest(c, v_stop."offset" + 1, 0, 0, NULL, p_now);
            END IF;
            PERFORM qo.tell_of_head(q, c);
        END IF;
    END IF;
    PERFORM qo.keep_verdicts(e, v_offsets, v_verdicts);
    IF v_ended THEN
        UPDATE qo.leases SET ended_at = p_now, fragile = NULL, started = e.started WHERE token = e.token AND lane_id = e.lane_id;
        IF e.fragile IS NOT NULL THEN PERFORM qo.hint(NULL); END IF;
    END IF;
    RETURN qo.answer_items(e, p_items, v_offsets, v_verdicts, v_given_back, v_ended);
END $$;

-- What is left of a run is [p_from, p_to); nothing left, the lease ends.
CREATE FUNCTION qo.move_run(q qo.queues, c qo.cursors, e qo.leases, p_from bigint, p_to bigint, p_now timestamptz, OUT ended boolean)
LANGUAGE plpgsql AS $$
DECLARE
    v_remaining bigint;
BEGIN
    SELECT min(o) INTO v_remaining FROM generate_series(p_from, p_to - 1) o
    WHERE NOT EXISTS (SELECT FROM qo.skips s WHERE s.cursor_id = c.id AND s."offset" = o);
    ended := v_remaining IS NULL;
    IF ended THEN
        PERFORM qo.rest(c, p_to, 0, 0, NULL, p_now);
        PERFORM qo.tell_of_head(q, c);
        RETURN;
    END IF;
    UPDATE qo.cursors SET position = p_to,
        attempts = CASE WHEN p_from > e.from_offset THEN 0 ELSE attempts END,
        losses = CASE WHEN p_from > e.from_offset THEN 0 ELSE losses END
    WHERE id = c.id;
    UPDATE qo.leases SET from_offset = v_remaining, to_offset = p_to, started = e.started,
        fragile = CASE WHEN p_from > e.from_offset THEN NULL ELSE fragile END
    WHERE token = e.token AND lane_id = e.lane_id;
END $$;

-- Tell others that a keyed lane has a claimable head of another kind than the last, or one that nobody could look at.
-- The consumer that held the lane claims on by itself; other waiters may want the kind of this head.
CREATE FUNCTION qo.tell_of_head(q qo.queues, c qo.cursors) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM qo.cursors n WHERE n.id = c.id AND n.state = 'ready' AND n.head_kind IS DISTINCT FROM c.head_kind) THEN
        PERFORM qo.hint(ARRAY[q.name]);
    END IF;
END $$;

-- The common case of `settle`: all is completed, as ranges by lease; of a keyed lane its whole run. The messages follow, each with the number of
-- its lease, when it was started (in microseconds from `p_base`) and its result. A list of what none has is empty, as that of numbers is where
-- there is one lease; one of what all have in common has one value. Signal 'items': it is not that case, nothing was done, say it item by item.
-- Else `ended` tells which leases are over.
CREATE FUNCTION qo.settle_done(p_tokens text[], p_lanes bigint[], p_done int8multirange[], p_numbers integer[], p_offsets bigint[], p_began bigint[],
                               p_results bytea[], p_base timestamptz, p_wants jsonb, p_plain qo.short_claims, p_now timestamptz)
RETURNS SETOF qo.claim_row LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    r record;
    v_answer qo.claim_row;
    v_groups bigint[];
    v_open bigint[] := '{}';
    v_count integer;
    v_fragile boolean;
    v_tokens text[] := qo.filled(p_tokens, cardinality(p_lanes));
    v_skips boolean := EXISTS (SELECT FROM qo.skips);
    v_cursors bigint[];         -- of keyed lanes, with these and their groups, and where they then stand
    v_lanes bigint[];
    v_in_groups bigint[];
    v_positions bigint[];
    v_keyed boolean[];          -- by lease, as the following
    v_ended boolean[];
    v_recorded boolean[];
    v_all_recorded boolean;
    v_awaited boolean[];        -- whether it is the default group's, whose outcomes somebody may await
    v_attempts integer[];       -- before this one; NULL: none
    v_froms bigint[];
    v_owners text[];
    v_owner text;               -- of all, if `v_owners` are not needed
    v_started jsonb[];          -- if any was said to have started before
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN PERFORM qo.refuse_isolation(); END IF;
    IF p_now IS NOT NULL THEN PERFORM qo.check_clock(); END IF;
    IF jsonb_path_exists(p_wants, '$[*].named') THEN PERFORM qo.check_tokens(p_wants); END IF;
    IF p_wants IS NOT NULL THEN
        v_groups := qo.plain_groups(p_plain, v_now);
        IF v_groups IS NOT NULL THEN
            v_open := ARRAY(SELECT k.id FROM qo.cursors k WHERE k.group_id = ANY (v_groups) AND NOT k.keyed AND k.state = 'ready');
        ELSE
            r := qo.read_wants(p_wants, v_now, false);
            v_answer.signal := r.signal;
            IF r.signal IS NULL THEN v_open := qo.open_cursors(r.wants, v_now); END IF;
        END IF;
    END IF;
    PERFORM FROM qo.cursors WHERE id = ANY (v_open || ARRAY(
        SELECT (SELECT x.cursor_id FROM qo.leases x WHERE x.token = i.token AND x.lane_id = i.lane)
        FROM unnest(v_tokens, p_lanes) AS i (token, lane))) ORDER BY id FOR UPDATE;
    PERFORM qo.lock_leases(v_tokens, p_lanes);
    v_now := coalesce(p_now, clock_timestamp());
    SELECT count(*), bool_or(e.over AND e.fragile IS NOT NULL), array_agg(e.cursor_id) FILTER (WHERE e.keyed), array_agg(e.lane_id) FILTER (WHERE e.keyed),
           array_agg(e.group_id) FILTER (WHERE e.keyed), array_agg(e.to_offset) FILTER (WHERE e.keyed), array_agg(e.keyed ORDER BY e.n),
           array_agg(e.over ORDER BY e.n), array_agg(e.awaited AND e.history <> 'none' ORDER BY e.n), array_agg(e.awaited ORDER BY e.n),
           CASE WHEN bool_or(e.keyed AND e.attempts > 0) THEN array_agg(CASE WHEN e.keyed THEN e.attempts ELSE 0 END ORDER BY e.n) END,
           array_agg(e.from_offset ORDER BY e.n),
           CASE WHEN count(DISTINCT coalesce(e.owner, '')) > 1 THEN array_agg(e.owner ORDER BY e.n) END, min(e.owner),
           CASE WHEN count(e.started) > 0 THEN array_agg(e.started ORDER BY e.n) END
    INTO v_count, v_fragile, v_cursors, v_lanes, v_in_groups, v_positions, v_keyed, v_ended, v_recorded, v_awaited, v_attempts, v_froms, v_owners, v_owner,
         v_started
    FROM (
        SELECT i.n, x.cursor_id, x.lane_id, x.group_id, x.from_offset, x.to_offset, x.owner, x.started, x.fragile, c.keyed, c.attempts, q.history,
               x.group_id = q.default_group_id AS awaited,
               x.settled + i.done @> int8range(x.from_offset, x.to_offset) AND NOT (cardinality(x.retried) > 0
                   AND EXISTS (SELECT FROM qo.retries t WHERE t.cursor_id = x.cursor_id AND t.token = x.token)) AS over
        FROM unnest(v_tokens, p_lanes, p_done) WITH ORDINALITY AS i (token, lane, done, n)
        CROSS JOIN LATERAL (SELECT * FROM qo.leases y WHERE y.token = i.token AND y.lane_id = i.lane LIMIT 1) x
        CROSS JOIN LATERAL (SELECT y.keyed, y.attempts, y.hold FROM qo.cursors y WHERE y.id = x.cursor_id LIMIT 1) c
        CROSS JOIN LATERAL (SELECT y.default_group_id, y.rules ->> 'history' AS history FROM qo.queues y
                            WHERE y.id = (SELECT l.queue_id FROM qo.lanes l WHERE l.id = x.lane_id) LIMIT 1) q
        WHERE NOT x.at_delivery AND x.ended_at IS NULL AND x.expires_at > v_now AND i.done <@ int8range(x.from_offset, x.to_offset)
          AND NOT i.done && x.settled AND (q.history <> 'full' OR x.group_id <> q.default_group_id)
          AND (NOT c.keyed OR (c.hold = 0 AND i.done = int8multirange(int8range(x.from_offset, x.to_offset)) AND NOT (v_skips AND EXISTS (
              SELECT FROM qo.skips k WHERE k.cursor_id = x.cursor_id AND k."offset" >= x.from_offset AND k."offset" < x.to_offset))))
    ) e;
    IF v_count < cardinality(v_tokens) THEN
        v_answer.signal := 'items';
        RETURN NEXT v_answer;
        RETURN;
    END IF;
    v_all_recorded := array_position(v_recorded, false) IS NULL;
    IF true = ANY (v_recorded) THEN
        INSERT INTO qo.outcomes (lane_id, "offset", finished_at, state, attempt, result, owner, started_at)
        SELECT p_lanes[i.n], i."offset", v_now, 'succeeded',
               CASE WHEN v_attempts IS NULL OR i."offset" <> v_froms[i.n] THEN 1 ELSE v_attempts[i.n] + 1 END, i.result,
               CASE WHEN v_owners IS NULL THEN v_owner ELSE v_owners[i.n] END,
               coalesce(p_base + i.began * interval '1 microsecond',
                        CASE WHEN v_started IS NOT NULL THEN (v_started[i.n] ->> i."offset"::text)::timestamptz END)
        FROM (SELECT coalesce(n, 1) AS n, "offset", began, result FROM unnest(p_numbers, p_offsets, p_began, p_results) AS m (n, "offset", began, result)) i
        WHERE v_all_recorded OR v_recorded[i.n]
        ON CONFLICT (lane_id, "offset", finished_at) DO UPDATE SET state = excluded.state, attempt = excluded.attempt,
            reason = NULL, error = NULL, result = excluded.result, owner = excluded.owner, started_at = excluded.started_at;
    END IF;
    IF false = ANY (v_keyed) THEN
        INSERT INTO qo.settlements (token, lane_id, verdict, offsets)
        SELECT i.token, i.lane, 'completed', i.done FROM unnest(v_tokens, p_lanes, p_done, v_keyed) AS i (token, lane, done, keyed) WHERE NOT i.keyed;
    END IF;
    UPDATE qo.leases x SET settled = x.settled + i.done, ended_at = CASE WHEN i.over THEN v_now END, fragile = CASE WHEN NOT i.over THEN x.fragile END
    FROM unnest(v_tokens, p_lanes, p_done, v_ended) AS i (token, lane, done, over) WHERE x.token = i.token AND x.lane_id = i.lane;
    IF v_cursors IS NOT NULL THEN PERFORM qo.rest_all(v_cursors, v_lanes, v_in_groups, v_positions); END IF;
    IF v_fragile THEN PERFORM qo.hint(NULL); END IF;
    IF EXISTS (SELECT FROM qo.watched) THEN
        PERFORM qo.tell_watchers(array_agg(p_lanes[i.n]), array_agg(i."offset")) 
        FROM (SELECT coalesce(n, 1) AS n, "offset" FROM unnest(p_numbers, p_offsets) AS m (n, "offset")) i WHERE v_awaited[i.n];
    END IF;
    PERFORM qo.to_tidy(p_lanes, v_now);
    v_answer.ended := v_ended;
    -- Behind a run there may be one whose time is over: that must go before lanes are ranked by their heads.
    IF p_wants IS NOT NULL AND EXISTS (SELECT FROM qo.cursors k WHERE k.id = ANY (v_cursors) AND k.state = 'ready' AND k.due_at <= v_now) THEN
        v_answer.signal := 'apart';
    END IF;
    RETURN NEXT v_answer;
    IF v_answer.signal IS NOT NULL THEN
        RETURN;
    ELSIF v_groups IS NOT NULL AND v_cursors IS NULL THEN
        RETURN QUERY SELECT * FROM qo.claim_plain(p_wants, p_plain, v_groups, v_now);
    ELSIF v_groups IS NOT NULL THEN     -- keyed lanes have become ready
        r := qo.read_wants(p_wants, v_now, true);
        RETURN QUERY SELECT * FROM qo.serve_all(p_wants, r.wants, r.more, false, v_now);
    ELSIF p_wants IS NOT NULL THEN
        RETURN QUERY SELECT * FROM qo.serve_all(p_wants, r.wants, r.more, r.unnoted, v_now);
    END IF;
END $$;

-- Lock leases, in the order in which all do.
CREATE FUNCTION qo.lock_leases(p_tokens text[], p_lanes bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM (SELECT DISTINCT * FROM unnest(p_tokens, p_lanes)) AS i (token, lane) JOIN qo.leases e ON e.token = i.token AND e.lane_id = i.lane
    ORDER BY e.token, e.lane_id FOR UPDATE OF e;
END $$;

-- Bring keyed cursors, which the caller has locked, to rest behind runs that were completed; as `rest` does, for many. Given are their lanes and
-- groups, too.
CREATE FUNCTION qo.rest_all(p_cursors bigint[], p_lanes bigint[], p_groups bigint[], p_positions bigint[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_tails bigint[] := array_fill(NULL::bigint, ARRAY[cardinality(p_cursors)]);    -- of lanes that have nothing more, and are locked: idle is
    v_dry record;                                                                   -- decided under that lock alone
    v_changed bigint[];
BEGIN
    FOR v_dry IN SELECT p.n FROM unnest(p_cursors, p_lanes, p_groups, p_positions) WITH ORDINALITY AS p (id, lane, grp, position, n)
            JOIN qo.lanes l ON l.id = p.lane WHERE NOT EXISTS (SELECT FROM qo.heads(p.id, p.lane, p.grp, p.position)) FOR UPDATE OF l SKIP LOCKED LOOP
        v_tails[v_dry.n] := p_positions[v_dry.n];
    END LOOP;
    WITH rested AS (
        UPDATE qo.cursors k SET state = CASE WHEN h.id IS NULL AND p.tail IS NOT NULL THEN 'idle' ELSE 'ready' END,
            position = coalesce(h."offset", greatest(p.tail, (SELECT m."offset" + 1 FROM qo.messages m WHERE p.tail IS NOT NULL AND h.id IS NULL
                                                              AND m.lane_id = p.lane ORDER BY m."offset" DESC LIMIT 1)), p.position),
            attempts = 0, losses = 0, head_kind = h.kind, head_priority = h.priority, head_entered_at = h.entered_at, due_at = h.expires_at
        FROM unnest(p_cursors, p_lanes, p_groups, p_positions, v_tails) AS p (id, lane, grp, position, tail)
        LEFT JOIN LATERAL qo.heads(p.id, p.lane, p.grp, p.position) h ON true
        JOIN LATERAL (SELECT x.head_kind FROM qo.cursors x WHERE x.id = p.id LIMIT 1) c ON true
        WHERE k.id = p.id
        RETURNING CASE WHEN k.state = 'ready' AND k.head_kind IS DISTINCT FROM c.head_kind THEN k.lane_id END AS changed
    )
    SELECT array_agg(changed) FILTER (WHERE changed IS NOT NULL) INTO v_changed FROM rested;
    IF EXISTS (SELECT FROM qo.skips) THEN
        DELETE FROM qo.skips s USING qo.cursors c WHERE c.id = ANY (p_cursors) AND s.cursor_id = c.id AND s."offset" < c.position;
    END IF;
    IF v_changed IS NOT NULL THEN
        PERFORM qo.hint(ARRAY(SELECT DISTINCT q.name FROM qo.lanes l JOIN qo.queues q ON q.id = l.queue_id WHERE l.id = ANY (v_changed)));
    END IF;
END $$;

-- Settle, then claim on, in one commit. All cursors that either may wait for are locked in one pass by id. The settles'
-- answers come in the first row.
CREATE FUNCTION qo.settle(p_tokens text[], p_lanes bigint[], p_offsets bigint[], p_whats text[], p_errors text[],
                          p_afters double precision[], p_results bytea[], p_started timestamptz[], p_wants jsonb, p_draw double precision,
                          p_now timestamptz) RETURNS SETOF qo.claim_row LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    r record;
    v_answer qo.claim_row;
    v_open bigint[] := '{}';
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN PERFORM qo.refuse_isolation(); END IF;
    IF p_now IS NOT NULL THEN PERFORM qo.check_clock(); END IF;
    IF jsonb_path_exists(p_wants, '$[*].named') THEN PERFORM qo.check_tokens(p_wants); END IF;
    IF p_wants IS NOT NULL THEN
        r := qo.read_wants(p_wants, v_now, false);
        v_answer.signal := r.signal;
        IF r.signal IS NULL THEN v_open := qo.open_cursors(r.wants, v_now); END IF;
    END IF;
    PERFORM FROM qo.cursors WHERE id = ANY (v_open || ARRAY(
        SELECT e.cursor_id FROM qo.leases e JOIN (SELECT DISTINCT token, lane FROM unnest(p_tokens, p_lanes) AS i (token, lane)) i
        ON e.token = i.token AND e.lane_id = i.lane)) ORDER BY id FOR UPDATE;
    PERFORM qo.lock_leases(p_tokens, p_lanes);
    v_now := coalesce(p_now, clock_timestamp());
    SELECT array_agg(t.number), array_agg(t.answer), array_agg(t.verdict), array_agg(t.ended)
    INTO v_answer.numbers, v_answer.answers, v_answer.verdicts, v_answer.ended
    FROM unnest(qo.settle_all(p_tokens, p_lanes, p_offsets, p_whats, p_errors, p_afters, p_results, p_started, p_draw, v_now)) t;
    PERFORM qo.to_tidy(p_lanes, v_now);
    IF p_wants IS NOT NULL AND EXISTS (SELECT FROM (SELECT DISTINCT l FROM unnest(p_lanes) l) x
            JOIN qo.cursors k ON k.lane_id = x.l AND k.keyed AND k.state = 'ready' AND k.due_at <= v_now) THEN
        v_answer.signal := 'apart';
    END IF;
    RETURN NEXT v_answer;
    IF p_wants IS NOT NULL AND v_answer.signal IS NULL THEN
        RETURN QUERY SELECT * FROM qo.serve_all(p_wants, r.wants, r.more, r.unnoted, v_now);
    END IF;
END $$;

-- Hold leases for longer, say what has started, learn what was canceled. A token of which nothing is held has no row.
CREATE FUNCTION qo.extend(p_tokens text[], p_seconds double precision[], p_started_tokens text[], p_started_lanes bigint[],
                          p_started_offsets bigint[], p_now timestamptz)
RETURNS TABLE (number integer, expires_at timestamptz, held integer, canceled_lanes bigint[], canceled_offsets bigint[]) LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz;
    v_token text;
    v_seconds double precision;
    v_starts jsonb := (SELECT jsonb_object_agg(g.place, g.offsets) FROM (     -- what has started, by token and lane
        SELECT s.t || ' ' || s.l AS place, jsonb_agg(s.o) AS offsets
        FROM unnest(p_started_tokens, p_started_lanes, p_started_offsets) AS s (t, l, o) GROUP BY 1) g);
    v_started jsonb;
    v_offset bigint;
    q qo.queues;
    e qo.leases;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN PERFORM qo.refuse_isolation(); END IF;
    IF p_now IS NOT NULL THEN PERFORM qo.check_clock(); END IF;
    PERFORM FROM qo.leases l WHERE l.token = ANY (p_tokens) ORDER BY l.token, l.lane_id FOR UPDATE;
    v_now := coalesce(p_now, clock_timestamp());
    FOR number, v_token, v_seconds IN SELECT x.n, x.t, x.s FROM unnest(p_tokens, p_seconds) WITH ORDINALITY AS x (t, s, n) LOOP
        SELECT greatest(max(l.expires_at), v_now + make_interval(secs => v_seconds)), count(*)::integer INTO expires_at, held
        -- By the token first: an index on all live leases would be read for each.
        FROM (SELECT * FROM qo.leases x WHERE x.token = v_token OFFSET 0) l WHERE l.ended_at IS NULL AND l.expires_at > v_now;
        CONTINUE WHEN held = 0;
        canceled_lanes := '{}'; canceled_offsets := '{}';
        FOR e IN SELECT * FROM (SELECT * FROM qo.leases x WHERE x.token = v_token OFFSET 0) l
                WHERE l.ended_at IS NULL AND l.expires_at > v_now ORDER BY l.lane_id LOOP
            v_started := e.started;
            FOR v_offset IN SELECT o::bigint FROM jsonb_array_elements_text(v_starts -> (v_token || ' ' || e.lane_id)) o
                    WHERE NOT coalesce(e.started ? o, false) LOOP
                v_started := coalesce(v_started, '{}') || jsonb_build_object(v_offset::text, v_now);
                SELECT k.* INTO STRICT q FROM qo.queues k JOIN qo.lanes l ON l.queue_id = k.id WHERE l.id = e.lane_id;
                IF NOT qo.starts_at_once(e.owner) THEN  -- else the claim has noted it
                    PERFORM qo.note_event(q, e.group_id, e.lane_id, v_offset, 'running', coalesce(e.owner, ''), v_now);
                END IF;
            END LOOP;
            UPDATE qo.leases l SET expires_at = extend.expires_at, heartbeat_at = v_now, started = v_started
            WHERE l.token = e.token AND l.lane_id = e.lane_id;
            SELECT canceled_lanes || array_agg(e.lane_id ORDER BY o), canceled_offsets || array_agg(o ORDER BY o)
            INTO canceled_lanes, canceled_offsets FROM (SELECT DISTINCT unnest(e.canceled) AS o) u
            WHERE (o >= e.from_offset AND o < e.to_offset AND NOT e.settled @> o)
               OR EXISTS (SELECT FROM qo.retries r WHERE r.cursor_id = e.cursor_id AND r.token = e.token AND r."offset" = o);
        END LOOP;
        RETURN NEXT;
    END LOOP;
END $$;
