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

-- name: rename
-- Primary key. The name of the old message is the new one's.
UPDATE dedupe SET message_id = ?5 WHERE queue_id = ?1 AND scope = ?2 AND key = ?3 AND message_id = ?4;
