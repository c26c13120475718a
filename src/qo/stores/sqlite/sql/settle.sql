-- name: lease
-- Primary key.
SELECT token, lane_id, cursor_id, first, from_offset, to_offset, settled, retried, canceled, started, owner, expires_at,
       last, ended_at, fragile
FROM leases WHERE token = ? AND lane_id = ?;

-- name: verdicts
-- Primary key.
SELECT verdicts FROM settlements WHERE token = ? AND lane_id = ? ORDER BY number;

-- name: record
-- Primary key.
INSERT INTO settlements (token, lane_id, number, verdicts)
VALUES (?1, ?2, (SELECT coalesce(max(number), 0) + 1 FROM settlements WHERE token = ?1 AND lane_id = ?2), ?3);

-- name: keep
-- Primary key.
UPDATE leases SET from_offset = ?3, to_offset = ?4, settled = ?5, fragile = ?6 WHERE token = ?1 AND lane_id = ?2;

-- name: owner_queue
-- Primary keys.
SELECT q.name, c.group_id FROM cursors c JOIN lanes l ON l.id = c.lane_id JOIN queues q ON q.id = l.queue_id WHERE c.id = ?;

-- name: moved_head
-- Primary key. Attempts and losses belong to the first unsettled message of a run.
UPDATE cursors SET attempts = 0, losses = 0 WHERE id = ?;

-- name: leases_of_token
-- Primary key.
SELECT token, lane_id, cursor_id, first, from_offset, to_offset, settled, retried, canceled, started, owner, expires_at
FROM leases WHERE token = ? AND ended_at IS NULL AND expires_at > ? ORDER BY lane_id;

-- name: prolong
-- Primary key.
UPDATE leases SET expires_at = ?3, heartbeat_at = ?4, started = ?5 WHERE token = ?1 AND lane_id = ?2;

-- name: live
-- Primary key.
SELECT 1 FROM leases WHERE token = ?1 AND ended_at IS NULL AND expires_at > ?2 LIMIT 1;
