-- name: push_one
SELECT qo.push_one($1, $2, $3, $4, $5, $6);

-- name: push_plain
SELECT qo.push_plain($1, $2, $3, $4, $5::text::integer[], $6::text::uuid[], $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17);

-- name: push_any
SELECT answer, other FROM qo.push_any($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14);

-- name: nonce
SELECT answer FROM qo.nonces WHERE nonce = $1;

-- name: keep_nonce
INSERT INTO qo.nonces (nonce, at, answer) VALUES ($1, coalesce($2, clock_timestamp()), $3);

-- name: claim
SELECT want, wait, owner_limited, contended, signal, (batch).* FROM qo.claim($1, ROW($2, $3, $4, $5, $6, $7, $8, $9, $10)::qo.short_claims, $11, $12);

-- name: claim_one
SELECT want, wait, owner_limited, contended, signal, (batch).* FROM qo.claim_one($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12);

-- name: claimed
-- What a token holds: after a claim whose answer was lost.
SELECT want, wait, owner_limited, contended, signal, (batch).* FROM qo.claimed($1, $2);

-- name: settle
SELECT want, wait, owner_limited, contended, signal, (batch).*, numbers, answers, verdicts, ended
FROM qo.settle($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11);

-- name: settle_done
SELECT want, wait, owner_limited, contended, signal, (batch).*, ended FROM qo.settle_done($1, $2, $3::text[]::int8multirange[], $4::text::integer[], $5::text::bigint[], $6::text::bigint[], $7, $8, $9,
    ROW($10, $11, $12, $13, $14, $15, $16, $17, $18)::qo.short_claims, $19);

-- name: extend
SELECT number, expires_at, held, canceled_lanes, canceled_offsets FROM qo.extend($1, $2, $3, $4, $5, $6);

-- name: lock_unit
-- A unit takes all that its pushes will need first.
SELECT qo.lock_unit($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, coalesce($13, clock_timestamp()));

-- name: names_of_wants
-- Those in which something is due.
SELECT array_agg(DISTINCT n) FROM jsonb_array_elements($1::jsonb) w CROSS JOIN unnest(qo.unpaused(w)) n
WHERE EXISTS (SELECT FROM qo.intake i WHERE i.queue = n AND i.canceled_at IS NULL AND i.due_at <= coalesce($2, clock_timestamp()));

-- name: groups_of_wants
SELECT coalesce(array_agg(DISTINCT g), '{}') FROM unnest((qo.read_wants($1::jsonb, '-infinity', true)).wants) w CROSS JOIN unnest(w.sources) g;

-- name: enter_due
SELECT qo.enter_due($1, $2, $3);

-- name: lapse
SELECT qo.lapse($1, $2, $3, $4);

-- name: lapse_over
SELECT qo.lapse_over($1, $2, $3);

-- name: tidy_lanes
SELECT qo.tidy_lanes($1, $2, $3);

-- name: tidy_rest
SELECT qo.tidy_rest($1, $2);

-- name: next_tidy
SELECT qo.next_tidy(coalesce($1, clock_timestamp())) - coalesce($1, clock_timestamp());

-- name: create_queue
SELECT (qo.queue_to_use($1, $2)).id;

-- name: create_queue_as
SELECT (qo.queue_to_use($1, $2, $3, $4::jsonb, $5::jsonb, coalesce($6, clock_timestamp()))).id;

-- name: lock_settings
SELECT settings FROM qo.queues WHERE name = $1 FOR UPDATE;

-- name: configure
WITH changed AS (UPDATE qo.queues SET settings = $2::jsonb, rules = $3::jsonb, namespace = $5, task = $6 WHERE name = $1 RETURNING id)
SELECT qo.to_tidy(ARRAY(SELECT l.id FROM qo.lanes l JOIN changed ON l.queue_id = changed.id ORDER BY l.id), $4::timestamptz),
       qo.hint(ARRAY[$1::text]);

-- name: set_hold
-- Lanes of one queue. Heads that are held back by the window follow it.
UPDATE qo.cursors c SET hold = $2,
    due_at = CASE WHEN c.state = 'blocked' AND c.attempts = 0 AND c.losses = 0 THEN c.head_entered_at + make_interval(secs => $2) ELSE c.due_at END
WHERE c.id = ANY (ARRAY(SELECT k.id FROM qo.queues q JOIN qo.lanes l ON l.queue_id = q.id JOIN qo.cursors k ON k.lane_id = l.id
                        WHERE q.name = $1 AND k.keyed AND k.hold <> $2 ORDER BY k.id FOR UPDATE OF k));

-- name: queues_of_keyed
-- Primary keys.
SELECT ARRAY(SELECT DISTINCT q.name::text FROM qo.lanes l JOIN qo.queues q ON q.id = l.queue_id WHERE l.id = ANY ($1) AND l.key IS NOT NULL);

-- name: queues_of
-- Primary keys of lanes and leases.
SELECT DISTINCT q.name::text FROM qo.lanes l JOIN qo.queues q ON q.id = l.queue_id
WHERE l.id = ANY ($1::bigint[] || ARRAY(SELECT e.lane_id FROM qo.leases e WHERE e.token = ANY ($2::text[])));

-- name: live_leases
-- Primary key. Not locked: that comes after the cursors.
SELECT token FROM qo.leases WHERE token = ANY ($1::text[]) AND ended_at IS NULL AND expires_at > coalesce($2, clock_timestamp());

-- name: tell
SELECT qo.hint($1);

-- name: pause
WITH changed AS (UPDATE qo.queues SET paused = $2 WHERE name = $1) SELECT qo.hint(ARRAY[$1::text]);

-- name: group_ids
SELECT coalesce(array_agg(g.id), '{}') FROM qo.groups g JOIN qo.queues q ON q.id = g.queue_id WHERE q.name = $1;

-- name: purge
SELECT qo.purge($1, $2);

-- name: delete_queue
SELECT qo.delete_queue($1, $2);

-- name: join
SELECT qo.join_group($1, $2, $3, $4, $5);

-- name: note_filter
INSERT INTO qo.group_filters (name, namespace, task, start_at, start_time) VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING;

-- name: drop_filters
WITH gone AS (DELETE FROM qo.group_filters WHERE name = $1 RETURNING 1) SELECT count(*) FROM gone;

-- name: matching
SELECT qo.queues_of(jsonb_build_object('filter', jsonb_build_object('namespace', $1::text, 'task', $2::text)));

-- name: lock_group
SELECT g.id FROM qo.queues q JOIN qo.groups g ON g.queue_id = q.id WHERE q.name = $1 AND g.name = $2 FOR UPDATE OF q;

-- name: drop_group
SELECT qo.drop_group($1);

-- name: tidy_queue
SELECT qo.to_tidy(ARRAY(SELECT l.id FROM qo.lanes l JOIN qo.queues q ON q.id = l.queue_id WHERE q.name = $1 ORDER BY l.id), $2),
       qo.hint(ARRAY[$1::text]);

-- name: group_of
SELECT q.id, (SELECT g.id FROM qo.groups g WHERE g.queue_id = q.id AND g.name = $2) FROM qo.queues q WHERE q.name = $1;

-- name: seek
SELECT qo.seek($1, $2, $3, $4, $5, $6, $7);

-- name: cancel
SELECT qo.cancel($1, $2, $3, $4);

-- name: letters
SELECT id FROM qo.dead_letters WHERE group_id = $1 AND ($2::uuid[] IS NULL OR id = ANY ($2::uuid[])) ORDER BY id
LIMIT CASE WHEN $2::uuid[] IS NULL THEN 1000 END FOR UPDATE;

-- name: retry_dead
SELECT qo.retry_dead($1, $2, $3, $4, $5);

-- name: purge_dead
WITH gone AS (DELETE FROM qo.dead_letters WHERE group_id = $1 AND ($2::uuid[] IS NULL OR id = ANY ($2::uuid[])) RETURNING 1)
SELECT count(*) FROM gone;

-- name: newest_transaction
-- The transactions that are under way, too: one that is older than the newest may commit later.
SELECT pg_current_snapshot()::text;

-- name: watch
SELECT qo.watch($1, $2);

-- name: queue
SELECT name, namespace, task, settings, paused, created_at FROM qo.queues WHERE name = $1;

-- name: queues
SELECT name, namespace, task, settings, paused, created_at FROM qo.queues WHERE name > $1 ORDER BY name LIMIT $2;

-- name: overview
-- Indexes queues by name, cursors_busy, retries_due, leases_to_expire, intake_due, dead_letters, tidying_due, leases_ended. What
-- entered lately is in lanes that housekeeping looks at within a minute.
WITH now AS MATERIALIZED (SELECT coalesce($3::timestamptz, clock_timestamp()) AS now),
entered AS MATERIALIZED (
    SELECT l.queue_id, sum(t.tail - qo.first_entered(l.id, l.first, t.tail, now.now - $4::interval))::bigint AS count
    FROM now CROSS JOIN LATERAL (SELECT x.lane_id FROM qo.tidying x WHERE x.at <= now.now + $4::interval ORDER BY x.at DESC LIMIT $5) x
    JOIN qo.lanes l ON l.id = x.lane_id CROSS JOIN LATERAL qo.tail_of(l.id) t GROUP BY l.queue_id
),
ended AS MATERIALIZED (
    SELECT e.group_id, sum(e.last - e.first + cardinality(e.retried))::bigint AS count
    FROM now CROSS JOIN LATERAL (SELECT * FROM qo.leases x WHERE x.ended_at > now.now - $4::interval ORDER BY x.ended_at DESC LIMIT $5) e
    GROUP BY e.group_id
)
SELECT q.name, q.paused, f.ready + r.count + u.lost + i.count, u.running, d.count, least(f.oldest, r.oldest),
       coalesce(n.count, 0), coalesce(e.count, 0)
FROM (SELECT * FROM qo.queues WHERE name > $1 ORDER BY name LIMIT $2) q
CROSS JOIN LATERAL qo.still_ready(q.default_group_id) f
CROSS JOIN LATERAL (SELECT count(*), min(x.entered_at) AS oldest FROM qo.retries x WHERE x.group_id = q.default_group_id AND x.token IS NULL) r
CROSS JOIN LATERAL qo.unsettled_under_leases(q.default_group_id, (SELECT now FROM now)) u
CROSS JOIN LATERAL (SELECT count(*) FROM qo.intake x WHERE x.queue = q.name AND x.canceled_at IS NULL) i
CROSS JOIN LATERAL (SELECT count(*) FROM qo.dead_letters x WHERE x.group_id = q.default_group_id) d
LEFT JOIN entered n ON n.queue_id = q.id LEFT JOIN ended e ON e.group_id = q.default_group_id
ORDER BY q.name;

-- name: waiting_names
-- Index intake_due, from name to name. Queues that do not exist yet, for which something was enqueued in a user's transaction.
WITH RECURSIVE names AS (
    (SELECT i.queue, i.created_at FROM qo.intake i WHERE i.canceled_at IS NULL AND i.queue > $1 ORDER BY i.queue, i.due_at LIMIT 1)
    UNION ALL
    SELECT next.* FROM names n CROSS JOIN LATERAL (
        SELECT i.queue, i.created_at FROM qo.intake i WHERE i.canceled_at IS NULL AND i.queue > n.queue ORDER BY i.queue, i.due_at LIMIT 1) next
)
SELECT n.queue, n.created_at FROM names n WHERE NOT EXISTS (SELECT FROM qo.queues q WHERE q.name = n.queue) LIMIT $2;

-- name: waiting_in
-- Index intake_due. What waits for a queue that does not exist yet.
SELECT count(*), min(i.created_at) FROM qo.intake i WHERE i.queue = $1 AND i.canceled_at IS NULL;

-- name: groups
-- Indexes groups (queue_id, name), cursors_busy.
SELECT g.name, g.start_at, g.start_time, g.created_at, g.claimed_at,
       (SELECT coalesce(sum((qo.tail_of(c.lane_id)).tail - CASE WHEN c.keyed THEN c.position ELSE qo.position_of(c) END), 0)::bigint
        FROM qo.cursors c WHERE c.group_id = g.id AND c.state <> 'idle') AS lag
FROM qo.groups g WHERE g.queue_id = $1 ORDER BY g.name;

-- name: ready
SELECT ready, oldest FROM qo.still_ready($1);

-- name: retrying
-- Index retries_due.
SELECT count(*), min(r.entered_at) FROM qo.retries r WHERE r.group_id = $1 AND r.token IS NULL;

-- name: leased
SELECT running, lost FROM qo.unsettled_under_leases($1, coalesce($2::timestamptz, clock_timestamp()));

-- name: counts
-- Indexes intake_due, dead_letters by group, cursors_missed.
SELECT (SELECT count(*) FROM qo.intake WHERE queue = $1 AND canceled_at IS NULL),
       (SELECT count(*) FROM qo.dead_letters WHERE group_id = $2),
       (SELECT coalesce(sum(missed), 0)::bigint FROM qo.cursors WHERE group_id = $2 AND missed > 0);

-- name: lanes
-- Indexes lanes_by_queue, cursors_in_lane.
SELECT l.id, l.key, l.kind, l.priority, l.first, (qo.tail_of(l.id)).tail, c.state,
       CASE WHEN c.state = 'idle' THEN (qo.tail_of(l.id)).tail WHEN c.keyed THEN c.position ELSE qo.position_of(c) END,
       (SELECT coalesce(sum(e.to_offset - e.from_offset), 0)::bigint FROM qo.leases e WHERE e.cursor_id = c.id AND e.ended_at IS NULL AND c.keyed)
FROM qo.lanes l JOIN qo.cursors c ON c.lane_id = l.id AND c.group_id = $2 WHERE l.queue_id = $1 AND l.id > $3 ORDER BY l.id LIMIT $4;

-- name: jobs_in_lanes
-- Primary keys of id_runs and messages.
WITH places AS MATERIALIZED (SELECT p.* FROM unnest($1::uuid[]) i CROSS JOIN LATERAL qo.place_of(i) p)
SELECT j.id, j.queue, j.kind, j.key, j.state, j.attempt, NULL, j.created_at, j.due_at, j.lease_owner, j.lease_expires_at, j.heartbeat_at, j.started_at,
       j.finished_at, j.reason, j.error, j.result_bytes, j.payload_bytes, j.headers
FROM places p CROSS JOIN LATERAL (SELECT * FROM qo.lane_jobs l WHERE l.lane_id = p.lane_id AND l."offset" = p."offset" LIMIT 1) j;

-- name: job_sizes
-- Primary keys of id_runs, messages and intake. How jobs stand, and how much of an answer each takes, in the order asked for.
WITH places AS MATERIALIZED (SELECT u.id, u.n, p.* FROM unnest($1::uuid[]) WITH ORDINALITY AS u (id, n) CROSS JOIN LATERAL qo.place_of(u.id) p)
SELECT s.id, s.state, s.lease_expires_at, s.size FROM (
    SELECT p.id, p.n, j.state, j.lease_expires_at, qo.size_of(j.payload_bytes, j.headers) + coalesce(octet_length(j.result_bytes), 0) AS size
    FROM places p CROSS JOIN LATERAL (SELECT * FROM qo.lane_jobs l WHERE l.lane_id = p.lane_id AND l."offset" = p."offset" LIMIT 1) j
    UNION ALL
    SELECT p.id, p.n, j.state, NULL, qo.size_of(j.payload_bytes, j.headers) FROM places p JOIN qo.intake_jobs j ON j.id = p.id WHERE p.lane_id IS NULL
) s ORDER BY s.n;

-- name: jobs_in_intake
-- Primary key.
SELECT j.id, j.queue, j.kind, j.key, j.state, j.attempt, NULL, j.created_at, j.due_at, j.lease_owner, j.lease_expires_at, j.heartbeat_at, j.started_at,
       j.finished_at, j.reason, j.error, j.result_bytes, j.payload_bytes, j.headers
FROM qo.intake_jobs j WHERE j.id = ANY ($1::uuid[]);

-- name: newest
-- Primary keys of id_runs and intake and index messages_alone, from their high ends.
SELECT id FROM (
    (SELECT m.id FROM qo.messages m JOIN qo.lanes l ON l.id = m.lane_id AND l.queue_id = $1 WHERE m.alone AND m.id < $2 ORDER BY m.id DESC LIMIT $3)
    UNION ALL
    (SELECT m.id FROM (SELECT r.* FROM qo.id_runs r WHERE r.first < $2 ORDER BY r.first DESC) r JOIN qo.lanes l ON l.id = r.lane_id AND l.queue_id = $1
     CROSS JOIN LATERAL (SELECT * FROM qo.messages m WHERE m.lane_id = r.lane_id AND m."offset" >= r."offset"
         AND m."offset" <= r."offset" + qo.id_number(r.last) - qo.id_number(r.first) AND m.id < $2 ORDER BY m."offset" DESC) m
     ORDER BY r.first DESC, m."offset" DESC LIMIT $3)
    UNION ALL
    (SELECT i.id FROM qo.intake i WHERE i.queue = $4 AND i.id < $2 ORDER BY i.id DESC LIMIT $3)
) newest ORDER BY id DESC LIMIT $3;

-- name: events
-- Primary key.
SELECT at, state, detail FROM qo.events WHERE message_id = $1 ORDER BY number;

-- name: dead
-- Index dead_letters_in_queue.
SELECT * FROM (
    SELECT p.*, sum(qo.size_of(p.payload, p.headers)) OVER (ORDER BY p.id, p.group_name ROWS UNBOUNDED PRECEDING) AS size FROM (
        SELECT d.id, q.name, g.name AS group_name, d.key, d.kind, d.priority, d.payload, d.headers, d.attempts, d.losses, d.reason, d.error,
               d.created_at, d.died_at
        FROM qo.dead_letters d JOIN qo.groups g ON g.id = d.group_id JOIN qo.queues q ON q.id = d.queue_id
        WHERE d.queue_id = $1 AND d.id > $2 AND ($3::text IS NULL OR g.name = $3) ORDER BY d.id, g.name LIMIT $4) p) s
WHERE s.size <= $5 OR s.size = qo.size_of(s.payload, s.headers) ORDER BY s.id, s.group_name;

-- name: dead_letters
-- Index dead_letters_in_queue.
SELECT * FROM (
    SELECT p.*, sum(qo.size_of(p.payload, p.headers)) OVER (ORDER BY p.died_at DESC, p.id DESC, p.group_name ROWS UNBOUNDED PRECEDING) AS size FROM (
SELECT d.id, q.name, g.name AS group_name, d.key, d.kind, d.priority, d.payload, d.headers, d.attempts, d.losses, d.reason, d.error, d.created_at, d.died_at
FROM qo.dead_letters d JOIN qo.groups g ON g.id = d.group_id JOIN qo.queues q ON q.id = d.queue_id
WHERE ($1::text IS NULL OR q.name = $1) AND ($2::text IS NULL OR g.name = $2) AND ($3::text IS NULL OR d.key = $3)
  AND ($4::timestamptz IS NULL OR d.died_at >= $4) AND ($5::timestamptz IS NULL OR d.died_at <= $5)
  AND ($6::text IS NULL OR d.headers::json ->> 'qo-transaction' = $6)
ORDER BY d.died_at DESC, d.id DESC, g.name LIMIT $7 OFFSET $8) p) s
WHERE s.size <= $9 OR s.size = qo.size_of(s.payload, s.headers) ORDER BY s.died_at DESC, s.id DESC, s.group_name;

-- name: count_dead_letters
SELECT count(*) FROM qo.dead_letters d JOIN qo.groups g ON g.id = d.group_id JOIN qo.queues q ON q.id = d.queue_id
WHERE ($1::text IS NULL OR q.name = $1) AND ($2::text IS NULL OR g.name = $2) AND ($3::text IS NULL OR d.key = $3)
  AND ($4::timestamptz IS NULL OR d.died_at >= $4) AND ($5::timestamptz IS NULL OR d.died_at <= $5)
  AND ($6::text IS NULL OR d.headers::json ->> 'qo-transaction' = $6);

-- name: group_places
-- Indexes groups (queue_id, name), cursors_busy.
SELECT q.name, (SELECT min(coalesce(CASE WHEN c.keyed THEN c.head_entered_at END, (qo.head_from(c, qo.position_of(c))).entered_at))
                FROM qo.cursors c WHERE c.group_id = g.id AND c.state <> 'idle'),
       g.name, g.start_at, g.start_time, g.created_at, g.claimed_at,
       (SELECT coalesce(sum((qo.tail_of(c.lane_id)).tail - CASE WHEN c.keyed THEN c.position ELSE qo.position_of(c) END), 0)::bigint
        FROM qo.cursors c WHERE c.group_id = g.id AND c.state <> 'idle')
FROM qo.groups g JOIN qo.queues q ON q.id = g.queue_id
WHERE CASE WHEN $1::text IS NULL THEN g.name <> 'default' ELSE g.name = $1 END ORDER BY g.name, q.name LIMIT $2;

-- name: resolve
SELECT lane, cursor_id, place, first, last, unsettled, stale, doubtful, open_lane, open_place
FROM qo.resolve($1, $2, $3, $4, $5, coalesce($6, clock_timestamp())) ORDER BY number;

-- name: headers_between
-- Primary key of messages.
SELECT m."offset", m.headers FROM qo.messages m WHERE m.lane_id = $1 AND m."offset" >= $2 AND m."offset" < $3 AND m.headers IS NOT NULL
ORDER BY m."offset";

-- name: lock_cursors
SELECT FROM qo.cursors WHERE id = ANY ($1) ORDER BY id FOR UPDATE;

-- name: known_tokens
-- Primary key of leases.
SELECT DISTINCT token FROM qo.leases WHERE token = ANY ($1);

-- name: seize
SELECT qo.seize($1, $2, $3, $4, $5, $6);

-- name: named_message
-- Primary keys of dedupe, id_runs and messages.
SELECT m.id, m."offset", m.kind, m.payload, m.headers, m.created_at, l.id AS lane
FROM qo.queues q JOIN qo.lanes l ON l.queue_id = q.id AND l.key = $2
JOIN qo.dedupe d ON d.queue_id = q.id AND d.scope = 'key:' || $2 AND d.key = $3
CROSS JOIN LATERAL qo.place_of(d.message_id) p
JOIN qo.messages m ON m.lane_id = p.lane_id AND m."offset" = p."offset" WHERE q.name = $1 AND p.lane_id = l.id;

-- name: standings
-- Indexes cursors_in_lane, leases_live.
SELECT g.name, g.claimed_at, c.position, c.attempts, e.from_offset, e.to_offset, e.expires_at
FROM qo.cursors c JOIN qo.groups g ON g.id = c.group_id LEFT JOIN qo.leases e ON e.cursor_id = c.id AND e.ended_at IS NULL
WHERE c.lane_id = $1 ORDER BY g.name;

-- name: add_trace
WITH added AS (
    INSERT INTO qo.traces (id, queue, key, name, group_name, names, event, data, created_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
    RETURNING number
)
INSERT INTO qo.trace_names (name, number) SELECT DISTINCT n, added.number FROM added CROSS JOIN unnest($6::text[]) n;

-- name: traces
-- Index traces_of_message.
SELECT id, queue, key, name, group_name, names, event, data, created_at FROM (
    SELECT p.*, sum(octet_length(p.data)) OVER (ORDER BY p.number ROWS UNBOUNDED PRECEDING) AS size FROM (
        SELECT * FROM qo.traces WHERE queue = $1 AND key = $2 AND name = $3 ORDER BY number LIMIT $4) p) s
WHERE s.size <= $5 OR s.size = octet_length(s.data) ORDER BY s.number;

-- name: traces_by_name
-- Primary keys of trace_names and traces.
SELECT id, queue, key, name, group_name, names, event, data, created_at FROM (
    SELECT p.*, sum(octet_length(p.data)) OVER (ORDER BY p.number DESC ROWS UNBOUNDED PRECEDING) AS size FROM (
        SELECT t.* FROM qo.trace_names n JOIN qo.traces t ON t.number = n.number WHERE n.name = $1 ORDER BY n.number DESC LIMIT $2 OFFSET $3) p) s
WHERE s.size <= $4 OR s.size = octet_length(s.data) ORDER BY s.number DESC;

-- name: count_traces
SELECT count(*) FROM qo.trace_names WHERE name = $1;

-- name: trace_names
SELECT name, count(*) FROM qo.trace_names GROUP BY name ORDER BY name LIMIT $1 OFFSET $2;

-- name: count_trace_names
SELECT count(DISTINCT name) FROM qo.trace_names;

-- name: note_key
INSERT INTO qo.sealing_keys (id, value, created_at) VALUES ($1, $2, clock_timestamp()) ON CONFLICT DO NOTHING;

-- name: newest_key
SELECT id, value FROM qo.sealing_keys WHERE value IS NOT NULL ORDER BY created_at DESC LIMIT 1;

-- name: keys
SELECT id, value FROM qo.sealing_keys;

-- name: totals
SELECT (SELECT count(*) FROM qo.queues), (SELECT count(*) FROM qo.lanes),
       (SELECT coalesce(sum((qo.tail_of(l.id)).tail - l.first), 0)::bigint FROM qo.lanes l),
       (SELECT count(*) FROM qo.intake WHERE canceled_at IS NULL),
       (SELECT count(*) FROM qo.leases WHERE ended_at IS NULL), (SELECT count(*) FROM qo.dead_letters);

-- name: holding
-- Which group holds most messages back.
SELECT q.name, g.name, sum((qo.tail_of(c.lane_id)).tail - CASE WHEN c.keyed THEN c.position ELSE qo.position_of(c) END)::bigint AS held
FROM qo.cursors c JOIN qo.groups g ON g.id = c.group_id JOIN qo.queues q ON q.id = g.queue_id
WHERE c.state <> 'idle' GROUP BY g.id, q.name, g.name ORDER BY held DESC LIMIT 1;

-- name: missed
SELECT q.name, g.name, sum(c.missed)::bigint FROM qo.cursors c JOIN qo.groups g ON g.id = c.group_id JOIN qo.queues q ON q.id = g.queue_id
WHERE c.missed > 0 GROUP BY g.id, q.name, g.name;

-- name: server
SELECT current_setting('server_version'), current_setting('fsync'), current_setting('synchronous_commit'), pg_is_in_recovery();

-- name: change_records
SELECT number, before, version FROM qo.change_records($1, $2, $3, $4, $5, $6);

-- name: record
-- Primary key.
SELECT kind, name, version, due_at, body FROM qo.records WHERE kind = $1 AND name = $2;

-- name: records
-- Primary key.
SELECT kind, name, version, due_at, body FROM qo.records WHERE kind = $1 AND name > $2 ORDER BY name LIMIT $3;

-- name: due_records
-- Index records_due. The last row has the time of the next.
WITH clock AS MATERIALIZED (SELECT coalesce($2, clock_timestamp()) AS now),
due AS (SELECT kind, name, version, due_at, body FROM qo.records
        WHERE kind = $1 AND due_at <= (SELECT now FROM clock) ORDER BY due_at, name LIMIT $3)
SELECT * FROM (SELECT * FROM due ORDER BY due_at, name) d
UNION ALL SELECT NULL, NULL, NULL, (SELECT min(due_at) FROM qo.records WHERE kind = $1 AND due_at > (SELECT now FROM clock)), NULL;

-- name: heartbeat
-- Primary key. Workers that are gone for long are removed.
WITH now AS (SELECT coalesce($4::timestamptz, clock_timestamp()) AS now),
gone AS (DELETE FROM qo.workers w USING now WHERE w.seen_at <= now - $5::interval AND w.id <> ALL ($1::text[])
         AND NOT (w.kept AND EXISTS (SELECT FROM pg_locks l WHERE l.locktype = 'advisory' AND l.objsubid = 1
                  AND (l.classid::bigint << 32 | l.objid::bigint) = hashtextextended($6 || ' ' || w.id, 0))))
INSERT INTO qo.workers (id, said, seen_at, kept)
SELECT b.id, b.said::jsonb, now.now, $3 FROM unnest($1::text[], $2::text[]) AS b (id, said) CROSS JOIN now
ON CONFLICT (id) DO UPDATE SET said = excluded.said, seen_at = excluded.seen_at, kept = excluded.kept;

-- name: keep_worker
-- Primary key.
UPDATE qo.workers SET seen_at = coalesce($2::timestamptz, clock_timestamp()) WHERE id = $1 RETURNING id;

-- name: deregister
-- Primary key.
DELETE FROM qo.workers WHERE id = ANY ($1::text[]);

-- name: workers
-- A kept one lives if its lock is held; another if it was heard from lately.
SELECT w.said::text, w.seen_at,
       CASE WHEN w.kept THEN EXISTS (SELECT FROM pg_locks l WHERE l.locktype = 'advisory' AND l.objsubid = 1
                AND (l.classid::bigint << 32 | l.objid::bigint) = hashtextextended($4 || ' ' || w.id, 0))
            ELSE w.seen_at > coalesce($1::timestamptz, clock_timestamp()) - $2::interval END
FROM qo.workers w ORDER BY 3 DESC, w.seen_at DESC LIMIT $3;

-- name: waiting_kinds
-- Indexes cursors_ready_by_kind, a step for each kind, cursors_open_ready and leases_to_expire. Kinds of which somebody
-- holds one are left out.
WITH RECURSIVE now AS (SELECT coalesce($2::timestamptz, clock_timestamp()) AS now),
sources AS MATERIALIZED (
    SELECT g.id, g.name AS in_group, q.name AS queue FROM qo.groups g JOIN qo.queues q ON q.id = g.queue_id
    WHERE NOT q.paused ORDER BY g.id LIMIT $1
), keyed (group_id, kind) AS (
    SELECT f.id, (SELECT min(c.head_kind) FROM qo.cursors c WHERE c.group_id = f.id AND c.keyed AND c.state = 'ready') FROM sources f
    UNION ALL
    SELECT k.group_id, (SELECT min(c.head_kind) FROM qo.cursors c
                        WHERE c.group_id = k.group_id AND c.keyed AND c.state = 'ready' AND c.head_kind > k.kind)
    FROM keyed k WHERE k.kind IS NOT NULL
), waiting AS (
    SELECT k.group_id, k.kind,
           (SELECT c.head_entered_at FROM qo.cursors c WHERE c.group_id = k.group_id AND c.keyed AND c.state = 'ready'
            AND c.head_kind = k.kind ORDER BY c.head_priority DESC, c.head_entered_at LIMIT 1) AS oldest_at
    FROM keyed k WHERE k.kind IS NOT NULL
    UNION ALL
    SELECT c.group_id, c.head_kind, (qo.head_from(c, qo.position_of(c))).entered_at
    FROM sources f JOIN qo.cursors c ON c.group_id = f.id AND NOT c.keyed AND c.state = 'ready'
)
SELECT f.queue, f.in_group, w.kind, min(w.oldest_at), now.now FROM waiting w JOIN sources f ON f.id = w.group_id CROSS JOIN now
WHERE w.oldest_at IS NOT NULL AND NOT EXISTS (
    SELECT FROM qo.leases e JOIN qo.cursors c ON c.id = e.cursor_id
    WHERE e.group_id = w.group_id AND e.ended_at IS NULL AND e.expires_at > now.now AND c.head_kind = w.kind)
GROUP BY f.queue, f.in_group, w.kind, now.now ORDER BY 1, 2, 3 LIMIT $1;

-- name: demand
-- Indexes cursors_busy, retries_due, intake_due, leases_to_expire. What time brings is said as how far off it is.
WITH now AS (SELECT coalesce($4::timestamptz, clock_timestamp()) AS now),
sources AS MATERIALIZED (
    SELECT g.id, q.name FROM qo.queues q JOIN qo.groups g ON g.queue_id = q.id AND g.name = $2
    WHERE q.name = ANY ($1::text[]) AND NOT q.paused
    -- What was enqueued in a user's transaction waits in intake before there is a queue of that name.
    UNION ALL SELECT NULL, n FROM unnest($1::text[]) n WHERE NOT EXISTS (SELECT FROM qo.queues q WHERE q.name = n)
), lanes AS MATERIALIZED (
    SELECT c.keyed, (qo.tail_of(c.lane_id)).tail - p.position AS waiting,
           coalesce(CASE WHEN c.keyed THEN c.head_entered_at END, (qo.head_from(c, p.position)).entered_at) AS entered_at
    FROM now CROSS JOIN sources f JOIN qo.cursors c ON c.group_id = f.id AND c.state <> 'idle'
    CROSS JOIN LATERAL (SELECT CASE WHEN c.keyed THEN c.position ELSE qo.position_of(c) END AS position) p
    WHERE (c.state = 'ready' OR c.state = 'blocked' AND c.due_at <= now.now)
        AND ($3::text[] IS NULL OR c.head_kind IS NULL OR c.head_kind = ANY ($3))
    LIMIT $5
), retries AS MATERIALIZED (
    SELECT r.entered_at FROM now CROSS JOIN sources f JOIN qo.retries r ON r.group_id = f.id AND r.token IS NULL AND r.due_at <= now.now
    JOIN qo.cursors c ON c.id = r.cursor_id WHERE $3::text[] IS NULL OR c.head_kind = ANY ($3) LIMIT $5
), entering AS MATERIALIZED (
    SELECT i.due_at FROM now CROSS JOIN sources f JOIN qo.intake i ON i.queue = f.name AND i.canceled_at IS NULL AND i.due_at <= now.now
    WHERE $3::text[] IS NULL OR i.kind = ANY ($3) LIMIT $5
), held AS MATERIALIZED (
    SELECT e.expires_at > now.now AS live, CASE WHEN c.keyed THEN e.to_offset - e.from_offset
               - (SELECT count(*) FROM qo.skips s WHERE s.cursor_id = c.id AND s."offset" >= e.from_offset AND s."offset" < e.to_offset)
           ELSE coalesce((SELECT sum(upper(gap) - lower(gap)) FROM unnest(int8multirange(int8range(e.from_offset, e.to_offset)) - e.settled) gap), 0)
               + (SELECT count(*) FROM qo.retries r WHERE r.cursor_id = c.id AND r.token = e.token) END AS unsettled
    FROM now CROSS JOIN sources f JOIN qo.leases e ON e.group_id = f.id AND e.ended_at IS NULL JOIN qo.cursors c ON c.id = e.cursor_id
    WHERE $3::text[] IS NULL OR c.head_kind IS NULL OR c.head_kind = ANY ($3)
)
SELECT (SELECT coalesce(sum(waiting), 0)::bigint FROM lanes),
       (SELECT coalesce(sum(CASE WHEN keyed THEN 1 ELSE waiting END), 0)::bigint FROM lanes),
       (SELECT count(*) FROM retries) + (SELECT count(*) FROM entering)
           + (SELECT coalesce(sum(unsettled), 0)::bigint FROM held WHERE NOT live),
       (SELECT coalesce(sum(unsettled), 0)::bigint FROM held WHERE live),
       least((SELECT min(entered_at) FROM lanes), (SELECT min(entered_at) FROM retries), (SELECT min(due_at) FROM entering)),
       (SELECT min(t) FROM (
           SELECT (SELECT i.due_at FROM qo.intake i WHERE i.queue = f.name AND i.canceled_at IS NULL AND i.due_at > now.now ORDER BY i.due_at LIMIT 1) AS t FROM sources f
           UNION ALL SELECT (SELECT e.expires_at FROM qo.leases e WHERE e.group_id = f.id AND e.ended_at IS NULL AND e.expires_at > now.now ORDER BY e.expires_at LIMIT 1) FROM sources f
           UNION ALL SELECT (SELECT c.due_at FROM qo.cursors c WHERE c.group_id = f.id AND c.due_at IS NOT NULL AND c.due_at > now.now ORDER BY c.due_at LIMIT 1) FROM sources f
           UNION ALL SELECT (SELECT r.due_at FROM qo.retries r WHERE r.group_id = f.id AND r.token IS NULL AND r.due_at > now.now ORDER BY r.due_at LIMIT 1) FROM sources f
           -- A cursor that was left ready over an empty lane is not woken by a push, and nobody is told of that.
           UNION ALL SELECT now.now + interval '5 seconds' WHERE EXISTS (SELECT FROM lanes WHERE waiting <= 0)
       ) moments) - now.now
FROM now;
