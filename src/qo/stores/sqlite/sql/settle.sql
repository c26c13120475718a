-- name: leases
-- Primary keys, for each of a list of [token, lane]. The lane of a lease that has ended may be gone.
SELECT e.token, e.lane_id, e.cursor_id, e.first, e.from_offset, e.to_offset, e.settled, e.retried, e.canceled, e.started,
       e.owner, e.expires_at, e.last, e.ended_at, e.fragile, q.name,
       EXISTS (SELECT 1 FROM skips k WHERE k.cursor_id = e.cursor_id), cursor_of(c, l)
FROM json_each(?1) j CROSS JOIN leases e ON e.token = j.value ->> 0 AND e.lane_id = j.value ->> 1
LEFT JOIN cursors c ON c.id = e.cursor_id LEFT JOIN lanes l ON l.id = c.lane_id LEFT JOIN queues q ON q.id = l.queue_id;

-- name: verdicts
-- Primary key.
SELECT verdicts FROM settlements WHERE token = ? AND lane_id = ? ORDER BY number;

-- name: record
-- Numbered by the first offset: a token settles each message once.
INSERT INTO settlements (token, lane_id, number, verdicts) VALUES (?, ?, ?, ?);

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
