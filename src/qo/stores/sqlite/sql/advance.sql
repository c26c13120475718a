-- name: moments
-- Indexes intake_due, leases_to_expire, cursors_due: the low end of each.
SELECT (SELECT min(due_at) FROM intake WHERE queue_id = ?1 AND canceled_at IS NULL),
       (SELECT min(expires_at) FROM leases WHERE group_id = ?2 AND ended_at IS NULL),
       (SELECT min(due_at) FROM cursors WHERE group_id = ?2 AND due_at IS NOT NULL);

-- name: next_moment
-- The same indexes, after now.
SELECT min(t) FROM (
    SELECT min(due_at) AS t FROM intake WHERE queue_id = ?1 AND canceled_at IS NULL
    UNION ALL SELECT min(expires_at) FROM leases WHERE group_id = ?2 AND ended_at IS NULL
    UNION ALL SELECT min(due_at) FROM cursors WHERE group_id = ?2 AND due_at IS NOT NULL AND due_at > ?3
);

-- name: expired_leases
-- Index leases_to_expire.
SELECT token, lane_id, cursor_id, first, from_offset, to_offset, settled, retried, canceled, started, owner, expires_at
FROM leases WHERE group_id = ? AND ended_at IS NULL AND expires_at <= ? ORDER BY expires_at, lane_id LIMIT ?;

-- name: due_keyed
-- Index cursors_due. Open cursors stay in it while they have due retries; they are few.
SELECT id FROM cursors WHERE group_id = ? AND due_at <= ? AND due_at IS NOT NULL AND keyed = 1 ORDER BY due_at LIMIT ?;

-- name: end_lease
-- Primary key.
UPDATE leases SET ended_at = ?3, fragile = NULL WHERE token = ?1 AND lane_id = ?2;

-- name: keep_settled
-- Primary key.
UPDATE leases SET settled = ?3 WHERE token = ?1 AND lane_id = ?2;

-- name: give_back_retry
-- Primary key.
UPDATE retries SET token = NULL, attempts = ?3, losses = ?4, due_at = ?5 WHERE cursor_id = ?1 AND offset = ?2;

-- name: add_retry
-- Primary keys of retries, stretches and messages.
INSERT INTO retries (cursor_id, offset, attempts, losses, due_at, entered_at)
SELECT ?1, ?2, ?3, ?4, ?5, entered_at FROM messages WHERE row = row_at(?6, ?2);

-- name: drop_retry
-- Primary key.
DELETE FROM retries WHERE cursor_id = ? AND offset = ?;

-- name: claimed_retries
-- Index retries_claimed.
SELECT offset, attempts, losses FROM retries WHERE cursor_id = ? AND token = ? ORDER BY offset;

-- name: expires_at
-- Primary keys of stretches and messages.
SELECT expires_at FROM messages WHERE row = row_at(?1, ?2);

-- name: expiries
-- Primary keys of stretches and messages.
SELECT m.offset, m.expires_at FROM messages_from(?1, ?2) AND s.first < ?3 AND m.offset < ?3 AND m.expires_at IS NOT NULL;

-- name: skip
INSERT OR IGNORE INTO skips (cursor_id, offset) VALUES (?, ?);

-- name: skips_between
-- Primary key.
SELECT offset FROM skips WHERE cursor_id = ? AND offset >= ? AND offset < ? ORDER BY offset;

-- name: unblock
-- Primary keys. From now on due_at is the end of the head's time to live.
UPDATE cursors SET state = 'ready',
    due_at = (SELECT expires_at FROM messages WHERE row = row_at(cursors.lane_id, cursors.position))
WHERE id = ?;

-- name: retry_token
-- Primary key.
SELECT token FROM retries WHERE cursor_id = ? AND offset = ?;

-- name: leases_over
-- Index leases_live: the leases of one cursor that have not ended, run out or not.
SELECT token, lane_id, cursor_id, first, from_offset, to_offset, settled, retried, canceled, started, owner, expires_at
FROM leases WHERE cursor_id = ?1 AND ended_at IS NULL AND from_offset <= ?2 AND to_offset > ?2;

-- name: lease_of_token
-- Primary key.
SELECT token, lane_id, cursor_id, first, from_offset, to_offset, settled, retried, canceled, started, owner, expires_at
FROM leases WHERE token = ? AND lane_id = ?;
