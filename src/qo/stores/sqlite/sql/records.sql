-- name: version
-- Primary key.
SELECT version FROM records WHERE kind = ? AND name = ?;

-- name: one
-- Primary key.
SELECT kind, name, version, due_at, body FROM records WHERE kind = ? AND name = ?;

-- name: put
INSERT INTO records (kind, name, version, due_at, body) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (kind, name) DO UPDATE SET version = excluded.version, due_at = excluded.due_at, body = excluded.body;

-- name: delete
DELETE FROM records WHERE kind = ? AND name = ?;

-- name: list
-- Primary key.
SELECT kind, name, version, due_at, body FROM records WHERE kind = ? AND name > ? ORDER BY name LIMIT ?;

-- name: due
-- Index records_due.
SELECT kind, name, version, due_at, body FROM records WHERE kind = ? AND due_at <= ? ORDER BY due_at, name LIMIT ?;

-- name: next_due
-- Index records_due.
SELECT min(due_at) FROM records WHERE kind = ? AND due_at > ?;
