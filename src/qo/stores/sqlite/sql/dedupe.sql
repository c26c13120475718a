-- name: holders
-- Primary key, for each of a list of [scope, key].
SELECT d.scope, d.key, d.message_id, d.until
FROM json_each(?2) j CROSS JOIN dedupe d ON d.queue_id = ?1 AND d.scope = j.value ->> 0 AND d.key = j.value ->> 1;

-- name: hold_key
-- Primary key. A unique key is looked at by housekeeping now and then, a window's when it ends.
INSERT INTO dedupe (queue_id, scope, key, message_id, until, checked_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT DO UPDATE SET message_id = ?4, until = ?5, checked_at = ?6;

-- name: holder
-- Primary key.
SELECT message_id, until FROM dedupe WHERE queue_id = ? AND scope = ? AND key = ?;

-- name: place
-- Primary key.
SELECT lane_id, offset, group_id FROM messages WHERE row = ?;

-- name: waits_in_intake
-- Primary key.
SELECT 1 FROM intake WHERE id = ? AND canceled_at IS NULL;

-- name: is_skipped
-- Primary key.
SELECT 1 FROM skips WHERE cursor_id = ? AND offset = ?;

-- name: has_retry
-- Primary key.
SELECT 1 FROM retries WHERE cursor_id = ? AND offset = ?;
