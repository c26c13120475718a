-- name: lease
-- Primary key.
SELECT first, last, expires_at, ended_at FROM leases WHERE token = ? AND lane_id = ? AND group_id = ?;

-- name: headers
-- Primary keys of stretches and messages.
SELECT m.offset, m.headers FROM messages_from(?1, ?2) AND s.first < ?3 AND m.offset < ?3 AND m.headers IS NOT NULL ORDER BY m.offset;

-- name: standings
-- Indexes cursors_in_lane, leases_live.
SELECT g.name, g.claimed_at, c.position, c.attempts, e.from_offset, e.to_offset, e.expires_at
FROM cursors c JOIN groups g ON g.id = c.group_id LEFT JOIN leases e ON e.cursor_id = c.id AND e.ended_at IS NULL
WHERE c.lane_id = ? ORDER BY g.name;

-- name: entered_at
-- Primary keys of stretches and messages.
SELECT entered_at FROM messages WHERE row = row_at(?1, ?2);

-- name: open_place
-- Primary keys.
SELECT m.lane_id, m.offset FROM messages m JOIN lanes l ON l.id = m.lane_id WHERE m.row = ?1 AND l.queue_id = ?2 AND l.key IS NULL;
