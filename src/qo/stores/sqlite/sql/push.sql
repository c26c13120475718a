-- name: dedupe_holder
-- Primary key.
SELECT message_id, until FROM dedupe WHERE queue_id = ? AND scope = ? AND key = ?;

-- name: hold_key
-- Primary key. A unique key is looked at by housekeeping now and then, a window's when it ends.
INSERT INTO dedupe (queue_id, scope, key, message_id, until, checked_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT DO UPDATE SET message_id = ?4, until = ?5, checked_at = ?6;

-- name: in_intake
-- Primary key.
SELECT q.name, i.key, i.payload FROM intake i JOIN queues q ON q.id = i.queue_id WHERE i.id = ?;

-- name: in_log
-- Primary keys.
SELECT q.name, l.key, m.payload FROM messages m JOIN lanes l ON l.id = m.lane_id JOIN queues q ON q.id = l.queue_id WHERE m.row = ?;

-- name: waits_in_intake
-- Primary key.
SELECT 1 FROM intake WHERE id = ? AND canceled_at IS NULL;

-- name: place
-- Primary key.
SELECT lane_id, offset, group_id FROM messages WHERE row = ?;

-- name: is_skipped
-- Primary key.
SELECT 1 FROM skips WHERE cursor_id = ? AND offset = ?;

-- name: has_retry
-- Primary key.
SELECT 1 FROM retries WHERE cursor_id = ? AND offset = ?;

-- name: delay
INSERT INTO intake (id, queue_id, key, kind, priority, payload, headers, created_at, due_at, expires_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: due_of_queue
-- Index intake_due.
SELECT id, key, kind, priority, payload, headers, created_at, due_at, expires_at FROM intake
WHERE queue_id = ? AND due_at <= ? AND canceled_at IS NULL ORDER BY due_at, id LIMIT ?;

-- name: due_of_key
-- Index intake_due_by_key.
SELECT id, key, kind, priority, payload, headers, created_at, due_at, expires_at FROM intake
WHERE queue_id = ? AND key = ? AND due_at <= ? AND canceled_at IS NULL ORDER BY due_at, id LIMIT ?;

-- name: leave_intake
-- Primary key.
DELETE FROM intake WHERE id = ?;

-- name: nonce
-- Primary key.
SELECT answer FROM nonces WHERE nonce = ?;

-- name: keep_nonce
INSERT INTO nonces (nonce, at, answer) VALUES (?, ?, ?);
