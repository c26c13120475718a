-- name: note
-- Primary key.
INSERT OR IGNORE INTO sealing_keys (id, value, created_at) VALUES (?, ?, ?);

-- name: newest
-- A handful of rows in all.
SELECT id, value FROM sealing_keys WHERE value IS NOT NULL ORDER BY created_at DESC LIMIT 1;

-- name: value
-- Primary key.
SELECT value FROM sealing_keys WHERE id = ?;

-- name: kept_elsewhere
-- A handful of rows in all.
SELECT id FROM sealing_keys WHERE value IS NULL;
