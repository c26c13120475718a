-- name: create_queue
INSERT INTO queues (name, namespace, task, settings, created_at) VALUES (?, ?, ?, ?, ?);

-- name: create_group
INSERT INTO groups (queue_id, name, start_at, start_time, created_at) VALUES (?, ?, ?, ?, ?);

-- name: filters
-- A handful of rows in all.
SELECT name, namespace, task, start_at, start_time FROM group_filters ORDER BY id;

-- name: keyed_lane
-- Index lanes_keyed.
SELECT id, first, tail, entered_at FROM lanes WHERE queue_id = ? AND key = ?;

-- name: open_lane
-- Index lanes_open.
SELECT id, first, tail, entered_at FROM lanes WHERE queue_id = ? AND kind = ? AND priority = ? AND key IS NULL;

-- name: create_lane
INSERT INTO lanes (queue_id, key, kind, priority, tidy_at) VALUES (?, ?, ?, ?, ?);

-- name: create_cursors
-- Index groups (queue_id, name). Every group of the queue sees the new lane from its start.
INSERT INTO cursors (lane_id, group_id, keyed, position, hold) SELECT ?1, id, ?2, 0, ?2 * ?4 FROM groups WHERE queue_id = ?3;

-- name: append
INSERT INTO messages (lane_id, offset, entered_at, id, kind, priority, payload, headers, created_at, due_at,
                      expires_at, group_id, retry_of)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: append_plain
-- Widened to many rows: lane, first offset and times are shared, id and payload each row's own.
INSERT INTO messages (lane_id, offset, entered_at, created_at, id, payload) VALUES (?1, ?2 + 0, ?3, ?4, ?5, ?6);

-- name: grow
-- Primary key. A lane that has messages is looked at by housekeeping some day.
UPDATE lanes SET tail = ?2, entered_at = ?3, tidy_at = min(coalesce(tidy_at, ?4), ?4) WHERE id = ?1;

-- name: wake_keyed
-- Index cursors_in_lane: only idle cursors are written, and that wakes them; those of a queue with a window when that ends.
UPDATE cursors SET head_kind = ?2, head_priority = ?3, head_entered_at = ?4,
    state = iif(hold > 0 AND ?4 + hold > ?7 AND ?8 - position < ?9, 'blocked', 'ready'),
    due_at = iif(hold > 0 AND ?4 + hold > ?7 AND ?8 - position < ?9, ?4 + hold, ?5)
WHERE lane_id = ?1 AND state = 'idle' AND (?6 IS NULL OR group_id = ?6);

-- name: wake_full
-- Index cursors_in_lane. Held back by a window, and enough have come.
UPDATE cursors SET state = 'ready',
    due_at = (SELECT expires_at FROM messages WHERE row = row_at(cursors.lane_id, cursors.position))
WHERE lane_id = ?1 AND state = 'blocked' AND hold > 0 AND attempts = 0 AND losses = 0 AND ?2 - position >= ?3;

-- name: wake_open
-- Index cursors_in_lane.
UPDATE cursors SET state = 'ready', head_kind = ?2, head_priority = ?3, head_entered_at = ?4
WHERE lane_id = ?1 AND state = 'idle' AND (?5 IS NULL OR group_id = ?5);

-- name: head
-- Primary keys of stretches and messages.
SELECT m.offset, m.kind, m.priority, m.entered_at, m.expires_at, m.group_id
FROM messages_from(?1, ?2) ORDER BY s.first, m.row LIMIT 1;

-- name: is_skipped
-- Primary key.
SELECT 1 FROM skips WHERE cursor_id = ? AND offset = ?;

-- name: forget_skips
-- Primary key.
DELETE FROM skips WHERE cursor_id = ? AND offset < ?;

-- name: rest
-- Primary key.
UPDATE cursors SET state = ?2, position = ?3, attempts = ?4, losses = ?5, head_kind = ?6, head_priority = ?7,
                   head_entered_at = ?8, due_at = ?9
WHERE id = ?1;

-- name: rest_open
-- Primary key. An open cursor's due_at follows its retries, not its head.
UPDATE cursors SET state = ?2, position = ?3, head_entered_at = ?4, head_kind = ?5, head_priority = ?6,
                   due_at = (SELECT min(due_at) FROM retries WHERE cursor_id = ?1 AND token IS NULL)
WHERE id = ?1;

-- name: follow_retries
-- Primary key; index retries_due.
UPDATE cursors SET due_at = (SELECT min(due_at) FROM retries WHERE cursor_id = ?1 AND token IS NULL) WHERE id = ?1;
