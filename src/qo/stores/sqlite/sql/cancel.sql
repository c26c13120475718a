-- name: intake
-- Primary key.
SELECT i.queue_id, q.name FROM intake i JOIN queues q ON q.id = i.queue_id WHERE i.id = ? AND i.canceled_at IS NULL;

-- name: cancel_intake
-- Primary key.
UPDATE intake SET canceled_at = ?2, reason = 'canceled' WHERE id = ?1;

-- name: message
-- Primary key.
SELECT m.lane_id, m.offset, m.group_id, q.name FROM messages m
JOIN lanes l ON l.id = m.lane_id JOIN queues q ON q.id = l.queue_id WHERE m.row = ?;

-- name: retry
-- Primary key.
SELECT attempts FROM retries WHERE cursor_id = ? AND offset = ?;

-- name: flag
-- Primary key.
UPDATE leases SET canceled = ?3 WHERE token = ?1 AND lane_id = ?2;
