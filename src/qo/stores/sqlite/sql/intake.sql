-- name: delay
INSERT INTO intake (id, queue_id, key, kind, priority, payload, headers, created_at, due_at, expires_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: any_waiting
-- The first row, if there is one.
SELECT 1 FROM intake LIMIT 1;

-- name: waiting_between
-- Primary key.
SELECT 1 FROM intake WHERE id >= ? AND id <= ? LIMIT 1;

-- name: any_due
-- Index intake_due.
SELECT 1 FROM intake WHERE queue_id = ? AND due_at <= ? AND canceled_at IS NULL LIMIT 1;

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
