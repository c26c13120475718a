-- name: cursor_in
-- Index cursors_in_lane.
SELECT cursor_of(c, l) FROM cursors c JOIN lanes l ON l.id = c.lane_id WHERE c.lane_id = ? AND c.group_id = ?;

-- name: cursor_by_id
-- Primary keys.
SELECT cursor_of(c, l) FROM cursors c JOIN lanes l ON l.id = c.lane_id WHERE c.id = ?;

-- name: heads
-- Primary keys of stretches and messages: the message at each place of a list of [cursor, lane, offset].
SELECT j.value ->> 0, m.offset, m.kind, m.priority, m.entered_at, m.expires_at, m.group_id
FROM json_each(?1) j CROSS JOIN messages m ON m.row = row_at(j.value ->> 1, j.value ->> 2);

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
UPDATE cursors SET state = ?2, position = ?3, head_entered_at = ?4, head_kind = ?5, head_priority = ?6, attempts = ?7,
                   losses = ?8, due_at = ?9
WHERE id = ?1;

-- name: rest_open
-- Primary key. An open cursor's due_at follows its retries, not its head.
UPDATE cursors SET state = ?2, position = ?3, head_entered_at = ?4, head_kind = ?5, head_priority = ?6,
                   due_at = (SELECT min(due_at) FROM retries WHERE cursor_id = ?1 AND token IS NULL)
WHERE id = ?1;

-- name: follow_retries
-- Primary key; index retries_due.
UPDATE cursors SET due_at = (SELECT min(due_at) FROM retries WHERE cursor_id = ?1 AND token IS NULL) WHERE id = ?1;
