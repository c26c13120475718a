-- name: queues_of_namespace
-- Index queues_by_namespace.
SELECT name FROM queues WHERE namespace = ?1 AND (?2 IS NULL OR task = ?2) ORDER BY id LIMIT ?3;

-- name: queues_of_task
-- Index queues_by_task.
SELECT name FROM queues WHERE task = ?2 AND ?1 IS NULL ORDER BY id LIMIT ?3;

-- name: claimed_now
-- Primary key; at most once an hour.
UPDATE groups SET claimed_at = ?2 WHERE id = ?1 AND coalesce(claimed_at, 0) <= ?2 - 3600000000;

-- name: ready
-- Index cursors_ready: the best come first, however many are idle.
SELECT c.head_priority, c.head_entered_at, c.lane_id, c.id FROM cursors c
WHERE c.group_id = ?1 AND c.state = 'ready'
ORDER BY c.head_priority DESC, c.head_entered_at, c.lane_id LIMIT ?2;

-- name: ready_of_kind
-- Index cursors_ready_by_kind.
SELECT c.head_priority, c.head_entered_at, c.lane_id, c.id FROM cursors c
WHERE c.group_id = ?1 AND c.state = 'ready' AND c.head_kind = ?3
ORDER BY c.head_priority DESC, c.head_entered_at, c.lane_id LIMIT ?2;

-- name: ready_of_key
-- Index lanes_keyed, then cursors_in_lane.
SELECT c.head_priority, c.head_entered_at, c.lane_id, c.id, c.head_kind FROM lanes l JOIN cursors c ON c.lane_id = l.id
WHERE l.queue_id = ?1 AND l.key = ?2 AND c.group_id = ?3 AND c.state = 'ready';

-- name: due_retries
-- Indexes cursors_due, retries_due: open lanes with something due, and their first.
SELECT c.head_priority,
       (SELECT entered_at FROM retries r WHERE r.cursor_id = c.id AND r.token IS NULL AND r.due_at <= ?2
            AND (r.losses < ?3 OR ?4) ORDER BY due_at, offset LIMIT 1) AS entered_at,
       c.lane_id, c.id, c.head_kind
FROM cursors c WHERE c.group_id = ?1 AND c.due_at <= ?2 AND c.due_at IS NOT NULL AND c.keyed = 0;

-- name: retries_to_take
-- Index retries_due.
SELECT offset, attempts, losses FROM retries
WHERE cursor_id = ?1 AND token IS NULL AND due_at <= ?2 AND (losses < ?3 OR ?4) ORDER BY due_at, offset LIMIT ?5;

-- name: take_retry
-- Primary key.
UPDATE retries SET token = ?3 WHERE cursor_id = ?1 AND offset = ?2;

-- name: messages
-- Primary keys of stretches and messages.
SELECT m.offset, m.id, m.kind, m.priority, m.payload, m.headers, m.created_at, m.due_at, m.entered_at, m.expires_at,
       m.group_id, m.retry_of
FROM messages_from(?1, ?2) ORDER BY s.first, m.row LIMIT ?3;

-- name: read_ahead
-- Primary keys. Keyed lanes in the order of a list of cursors, each with messages from its position on: so many, or
-- the head alone if that was lost before.
SELECT cursor_of(c, l), EXISTS (SELECT 1 FROM skips k WHERE k.cursor_id = c.id),
       m.offset, m.id, m.kind, m.priority, m.payload, m.headers, m.created_at, m.due_at, m.entered_at, m.expires_at,
       m.group_id, m.retry_of
FROM json_each(?1) j CROSS JOIN cursors c ON c.id = j.value AND c.keyed = 1 CROSS JOIN lanes l ON l.id = c.lane_id
CROSS JOIN spans s ON s.lane_id = l.id AND s.first < c.position + iif(c.losses, 1, ?2)
    AND s.first >= coalesce((SELECT max(first) FROM stretches WHERE lane_id = l.id AND first <= c.position), 0)
CROSS JOIN messages m ON m.row >= s.row + max(c.position - s.first, 0)
    AND m.row < s.row + min(s.last, c.position + iif(c.losses, 1, ?2)) - s.first;

-- name: message
-- Primary keys of stretches and messages.
SELECT offset, id, kind, priority, payload, headers, created_at, due_at, entered_at, expires_at, group_id, retry_of
FROM messages WHERE row = row_at(?1, ?2);

-- name: fragile_of_owner
-- Index leases_fragile.
SELECT max(expires_at) FROM leases WHERE owner = ?1 AND fragile IS NOT NULL AND ended_at IS NULL AND expires_at > ?2;

-- name: later_retry
-- Indexes cursors_due, retries_due: behind a due retry that this owner may not have, the next that is to come.
SELECT min((SELECT min(r.due_at) FROM retries r WHERE r.cursor_id = c.id AND r.token IS NULL AND r.due_at > ?2))
FROM cursors c WHERE c.group_id = ?1 AND c.due_at <= ?2 AND c.due_at IS NOT NULL AND c.keyed = 0;

-- name: lease
INSERT INTO leases (token, lane_id, cursor_id, group_id, first, last, from_offset, to_offset, settled, retried, fragile,
                    owner, claimed_at, expires_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12);

-- name: hold
-- Primary key. While a run is leased time does nothing to its cursor.
UPDATE cursors SET state = 'leased', position = ?2, due_at = NULL WHERE id = ?1;

-- name: is_used
-- Primary key of leases.
SELECT 1 FROM leases WHERE token = ? LIMIT 1;
