-- name: add
INSERT INTO tokens (id, name, digest, scopes, prefixes, created_at, expires_at) VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: one
-- Primary key.
SELECT id, name, digest, scopes, prefixes, created_at, expires_at FROM tokens WHERE id = ?;

-- name: list
SELECT id, name, digest, scopes, prefixes, created_at, expires_at FROM tokens ORDER BY created_at, id LIMIT 1000;

-- name: remove
DELETE FROM tokens WHERE id = ?;
