-- name: queue
SELECT name, namespace, task, settings, paused, created_at FROM queues WHERE name = ?;

-- name: queues
SELECT name, namespace, task, settings, paused, created_at FROM queues WHERE name > ? ORDER BY name LIMIT ?;

-- name: entered_since
-- Primary key of messages, from its high end. Messages that entered lately, by queue, of the newest ones.
SELECT l.queue_id, count(*) FROM (SELECT lane_id, entered_at FROM messages ORDER BY row DESC LIMIT ?2) m
JOIN lanes l ON l.id = m.lane_id WHERE m.entered_at > ?1 GROUP BY l.queue_id;

-- name: ended_since
-- Index leases_ended. Messages of leases that ended lately, by group.
SELECT e.group_id, sum(e.last - e.first + json_array_length(coalesce(e.retried, '[]')))
FROM (SELECT * FROM leases WHERE ended_at > ?1 AND ended_at IS NOT NULL ORDER BY ended_at DESC LIMIT ?2) e GROUP BY e.group_id;

-- name: groups
-- Index groups (queue_id, name), then cursors_busy.
SELECT g.name, g.start_at, g.start_time, g.created_at, g.claimed_at,
       (SELECT coalesce(sum(l.tail - c.position), 0) FROM cursors c JOIN lanes l ON l.id = c.lane_id
        WHERE c.group_id = g.id AND c.state <> 'idle')
FROM groups g WHERE g.queue_id = ? ORDER BY g.name;

-- name: ready
-- Index cursors_busy: idle lanes cost nothing. Skips and messages addressed to others do not count.
SELECT coalesce(sum(l.tail - c.position
           - (SELECT count(*) FROM skips s WHERE s.cursor_id = c.id AND s.offset >= c.position)
           - (SELECT count(*) FROM addressed a WHERE a.lane_id = l.id AND a.offset >= c.position
                AND a.group_id <> ?1
                AND NOT EXISTS (SELECT 1 FROM skips s WHERE s.cursor_id = c.id AND s.offset = a.offset))), 0),
       min(c.head_entered_at)
FROM cursors c JOIN lanes l ON l.id = c.lane_id WHERE c.group_id = ?1 AND c.state <> 'idle';

-- name: retrying
-- Open cursors with waiting retries: index cursors_due, then retries_due.
SELECT count(*), min(r.entered_at) FROM cursors c JOIN retries r ON r.cursor_id = c.id
WHERE c.group_id = ? AND c.due_at IS NOT NULL AND c.keyed = 0 AND r.token IS NULL;

-- name: live_leases
-- Index leases_to_expire.
SELECT e.token, e.lane_id, e.cursor_id, e.first, e.from_offset, e.to_offset, e.settled, e.retried, e.canceled, e.started,
       e.owner, e.expires_at, c.keyed,
       (SELECT count(*) FROM retries r WHERE r.cursor_id = e.cursor_id AND r.token = e.token),
       (SELECT count(*) FROM skips s WHERE s.cursor_id = e.cursor_id AND s.offset >= e.from_offset AND s.offset < e.to_offset),
       c.head_kind
FROM leases e JOIN cursors c ON c.id = e.cursor_id WHERE e.group_id = ? AND e.ended_at IS NULL;

-- name: counts
-- Indexes intake_due, dead_letters by group, cursors_missed.
SELECT (SELECT count(*) FROM intake WHERE queue_id = ?1 AND canceled_at IS NULL),
       (SELECT count(*) FROM dead_letters WHERE group_id = ?2),
       (SELECT coalesce(sum(missed), 0) FROM cursors WHERE group_id = ?2 AND missed > 0);

-- name: lanes
-- Primary key of lanes, then cursors_in_lane.
SELECT l.id, l.key, l.kind, l.priority, l.first, l.tail, c.state, c.position,
       (SELECT coalesce(sum(e.to_offset - e.from_offset), 0) FROM leases e WHERE e.cursor_id = c.id AND e.ended_at IS NULL AND c.keyed = 1)
FROM lanes l
JOIN cursors c ON c.lane_id = l.id AND c.group_id = ?2 WHERE l.queue_id = ?1 AND l.id > ?3 ORDER BY l.id LIMIT ?4;

-- name: job_in_lane
-- Primary key of messages.
SELECT id, queue, kind, key, state, attempt, NULL, created_at, due_at, lease_owner, lease_expires_at, heartbeat_at, started_at, finished_at, reason, error, result_bytes, payload_bytes, headers, message_id, row FROM lane_jobs WHERE row = ?;

-- name: job_in_intake
-- Primary key of intake.
SELECT id, queue, kind, key, state, attempt, NULL, created_at, due_at, lease_owner, lease_expires_at, heartbeat_at, started_at, finished_at, reason, error, result_bytes, payload_bytes, headers, message_id, row FROM intake_jobs WHERE message_id = ?;

-- name: newest
-- Primary key of id_runs from its high end; that of intake.
SELECT id FROM (SELECT m.id FROM id_runs r CROSS JOIN messages m ON m.row >= r.row AND m.row < r.row + r.count AND m.id >= r.first AND m.id <= r.last
                CROSS JOIN lanes l ON l.id = m.lane_id WHERE r.first < ?2 AND l.queue_id = ?1 AND m.id < ?2
                ORDER BY r.first DESC, m.row DESC LIMIT ?3)
UNION ALL
SELECT id FROM (SELECT id FROM intake WHERE queue_id = ?1 AND id < ?2 ORDER BY id DESC LIMIT ?3)
ORDER BY id DESC LIMIT ?3;

-- name: events
-- Primary key.
SELECT at, state, detail FROM events WHERE message_id = ? ORDER BY at, number;

-- name: dead
-- Index dead_letters_in_queue.
SELECT d.id, q.name, g.name, d.key, d.kind, d.priority, d.payload, d.headers, d.attempts, d.losses, d.reason, d.error,
       d.created_at, d.died_at
FROM dead_letters d JOIN groups g ON g.id = d.group_id JOIN queues q ON q.id = d.queue_id
WHERE d.queue_id = ?1 AND d.id > ?2 AND (?3 IS NULL OR g.name = ?3) ORDER BY d.id, g.name LIMIT ?4;

-- name: letters
-- Index dead_letters_in_queue, from its high end.
SELECT d.id, q.name, g.name, d.key, d.kind, d.priority, d.payload, d.headers, d.attempts, d.losses, d.reason, d.error,
       d.created_at, d.died_at
FROM dead_letters d JOIN groups g ON g.id = d.group_id JOIN queues q ON q.id = d.queue_id
WHERE (?1 IS NULL OR d.queue_id = (SELECT id FROM queues WHERE name = ?1)) AND (?2 IS NULL OR g.name = ?2)
    AND (?3 IS NULL OR d.key = ?3) AND (?4 IS NULL OR d.died_at >= ?4) AND (?5 IS NULL OR d.died_at <= ?5)
    AND (?6 IS NULL OR json_extract(d.headers, '$."qo-transaction"') = ?6)
ORDER BY d.died_at DESC, d.id DESC, g.name LIMIT ?7 OFFSET ?8;

-- name: count_letters
SELECT count(*) FROM dead_letters d JOIN groups g ON g.id = d.group_id
WHERE (?1 IS NULL OR d.queue_id = (SELECT id FROM queues WHERE name = ?1)) AND (?2 IS NULL OR g.name = ?2)
    AND (?3 IS NULL OR d.key = ?3) AND (?4 IS NULL OR d.died_at >= ?4) AND (?5 IS NULL OR d.died_at <= ?5)
    AND (?6 IS NULL OR json_extract(d.headers, '$."qo-transaction"') = ?6);

-- name: group_places
-- Index groups (queue_id, name), then cursors_busy.
SELECT q.name, (SELECT min(c.head_entered_at) FROM cursors c WHERE c.group_id = g.id AND c.state <> 'idle'),
       g.name, g.start_at, g.start_time, g.created_at, g.claimed_at,
       (SELECT coalesce(sum(l.tail - c.position), 0) FROM cursors c JOIN lanes l ON l.id = c.lane_id
        WHERE c.group_id = g.id AND c.state <> 'idle')
FROM groups g JOIN queues q ON q.id = g.queue_id
WHERE iif(?1 IS NULL, g.name <> 'default', g.name = ?1) ORDER BY g.name, q.name LIMIT ?2;

-- name: totals
SELECT (SELECT count(*) FROM queues), (SELECT count(*) FROM lanes),
       (SELECT coalesce(sum(tail - first), 0) FROM lanes), (SELECT count(*) FROM intake WHERE canceled_at IS NULL),
       (SELECT count(*) FROM leases WHERE ended_at IS NULL), (SELECT count(*) FROM dead_letters);

-- name: holding
-- Which group holds most messages back.
SELECT q.name, g.name, sum(l.tail - c.position) AS held FROM cursors c JOIN lanes l ON l.id = c.lane_id
JOIN groups g ON g.id = c.group_id JOIN queues q ON q.id = g.queue_id
WHERE c.state <> 'idle' GROUP BY g.id ORDER BY held DESC LIMIT 1;

-- name: missed
SELECT q.name, g.name, sum(c.missed) FROM cursors c JOIN groups g ON g.id = c.group_id JOIN queues q ON q.id = g.queue_id
WHERE c.missed > 0 GROUP BY g.id;

-- name: queue_of_lane
-- Primary keys.
SELECT q.name FROM lanes l JOIN queues q ON q.id = l.queue_id WHERE l.id = ?;

-- name: queues_of_token
-- Primary key of leases.
SELECT DISTINCT q.name FROM leases e JOIN lanes l ON l.id = e.lane_id JOIN queues q ON q.id = l.queue_id WHERE e.token = ?;
