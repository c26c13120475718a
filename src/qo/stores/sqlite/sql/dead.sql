-- name: letters
-- Primary key (group_id, id).
SELECT id, key, kind, priority, payload, headers FROM dead_letters WHERE group_id = ? ORDER BY id LIMIT ?;

-- name: letter
-- Primary key.
SELECT id, key, kind, priority, payload, headers FROM dead_letters WHERE group_id = ? AND id = ?;

-- name: drop_letter
-- Primary key.
DELETE FROM dead_letters WHERE group_id = ? AND id = ?;

-- name: drop_letters
-- Primary key.
DELETE FROM dead_letters WHERE group_id = ?;

-- name: address
INSERT INTO addressed (lane_id, offset, group_id) VALUES (?, ?, ?);
