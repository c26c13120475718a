-- name: in_intake
-- Primary key.
SELECT q.name, i.key, i.payload FROM intake i JOIN queues q ON q.id = i.queue_id WHERE i.id = ?;

-- name: in_log
-- Primary keys.
SELECT q.name, l.key, m.payload FROM messages m JOIN lanes l ON l.id = m.lane_id JOIN queues q ON q.id = l.queue_id WHERE m.row = ?;

-- name: nonce
-- Primary key.
SELECT answer FROM nonces WHERE nonce = ?;

-- name: keep_nonce
INSERT INTO nonces (nonce, at, answer) VALUES (?, ?, ?);
