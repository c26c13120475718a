-- name: lanes
-- Index lanes_to_tidy.
SELECT l.id, l.key, l.kind, l.priority, l.first, l.tail, l.entered_at, q.name FROM lanes l JOIN queues q ON q.id = l.queue_id
WHERE l.tidy_at <= ? AND l.tidy_at IS NOT NULL ORDER BY l.tidy_at LIMIT ?;

-- name: cursors
-- Index cursors_in_lane.
SELECT c.id, c.position, c.state, c.group_id, coalesce(g.claimed_at, g.created_at), g.name
FROM cursors c JOIN groups g ON g.id = c.group_id WHERE c.lane_id = ?;

-- name: live_leases
-- Index leases_live.
SELECT token, lane_id, cursor_id, first, from_offset, to_offset, settled, retried, canceled, started, owner, expires_at
FROM leases WHERE cursor_id = ? AND ended_at IS NULL;

-- name: first_retry
-- Primary key.
SELECT min(offset) FROM retries WHERE cursor_id = ?;

-- name: first_claimed_retry
-- Index retries_claimed.
SELECT min(offset) FROM retries WHERE cursor_id = ? AND token IS NOT NULL;

-- name: marks
-- Primary key.
SELECT at, offset FROM marks WHERE lane_id = ? ORDER BY at;

-- name: add_mark
INSERT OR REPLACE INTO marks (lane_id, at, offset) VALUES (?, ?, ?);

-- name: drop_marks
-- Primary key.
DELETE FROM marks WHERE lane_id = ? AND offset <= ?;

-- name: entered_at
-- Primary keys of stretches and messages.
SELECT entered_at FROM messages WHERE row = row_at(?1, ?2);

-- name: drop_events
-- Primary keys of stretches, messages and events.
DELETE FROM events WHERE message_id IN (SELECT m.id FROM messages_from(?1, 0) AND s.first < ?2 AND m.offset < ?2);

-- name: watched
-- Primary keys of stretches and messages.
SELECT m.id FROM messages_from(?1, 0) AND s.first < ?2 AND m.offset < ?2;

-- name: drop_addressed
-- Primary key.
DELETE FROM addressed WHERE lane_id = ?1 AND offset < ?2;

-- name: drop_outcomes
-- Primary key.
DELETE FROM outcomes WHERE lane_id = ?1 AND offset < ?2;

-- name: drop_retries
-- Primary key.
DELETE FROM retries WHERE cursor_id = ?1 AND offset < ?2 AND token IS NULL;

-- name: missed
-- Primary key.
UPDATE cursors SET missed = missed + ?2 WHERE id = ?1;

-- name: set_lane
-- Primary key.
UPDATE lanes SET first = ?2, tidy_at = ?3 WHERE id = ?1;

-- name: drop_lane
DELETE FROM lanes WHERE id = ?;

-- name: drop_cursors
-- Index cursors_in_lane.
DELETE FROM cursors WHERE lane_id = ?;

-- name: ended_leases
-- Index leases_ended. What a token settled is kept until ten minutes after its last lease ended.
SELECT DISTINCT e.token FROM leases e WHERE e.ended_at <= ?1 AND e.ended_at IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM leases o WHERE o.token = e.token AND (o.ended_at IS NULL OR o.ended_at > ?1))
LIMIT ?2;

-- name: drop_leases
-- Primary key.
DELETE FROM leases WHERE token = ?;

-- name: drop_settlements
-- Primary key.
DELETE FROM settlements WHERE token = ?;

-- name: drop_nonces
-- Index nonces_by_age.
DELETE FROM nonces WHERE nonce IN (SELECT nonce FROM nonces WHERE at <= ? ORDER BY at LIMIT ?);

-- name: dedupe
-- Index dedupe_to_check.
SELECT d.queue_id, d.scope, d.key, d.message_id, d.until, q.name FROM dedupe d JOIN queues q ON q.id = d.queue_id
WHERE d.checked_at <= ? ORDER BY d.checked_at LIMIT ?;

-- name: drop_dedupe
-- Primary key.
DELETE FROM dedupe WHERE queue_id = ? AND scope = ? AND key = ?;

-- name: check_dedupe_later
-- Primary key.
UPDATE dedupe SET checked_at = ?4 WHERE queue_id = ?1 AND scope = ?2 AND key = ?3;

-- name: canceled_intake
-- Index intake_canceled.
SELECT i.id, i.canceled_at, q.name FROM intake i JOIN queues q ON q.id = i.queue_id
WHERE i.canceled_at IS NOT NULL ORDER BY i.canceled_at LIMIT ?;

-- name: next
-- The low end of each index.
SELECT (SELECT min(tidy_at) FROM lanes WHERE tidy_at IS NOT NULL),
       (SELECT min(ended_at) FROM leases WHERE ended_at IS NOT NULL AND ended_at > ?1),
       (SELECT min(at) FROM nonces),
       (SELECT min(checked_at) FROM dedupe);
