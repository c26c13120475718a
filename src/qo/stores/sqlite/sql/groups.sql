-- name: join_lanes
-- Index lanes_keyed, lanes_open by queue. Cursors of lanes with messages are brought to rest one by one.
INSERT INTO cursors (lane_id, group_id, keyed, position, hold)
SELECT id, ?2, key IS NOT NULL, tail, iif(key IS NULL, 0, ?3) FROM lanes WHERE queue_id = ?1;

-- name: drop_filters
-- A handful of rows in all.
DELETE FROM group_filters WHERE name = ?;

-- name: lanes_with_messages
-- Lanes of one queue.
SELECT id, first, tail, entered_at FROM lanes WHERE queue_id = ? AND first < tail;

-- name: lanes_of_queue
-- Lanes of one queue.
SELECT id, first, tail, entered_at FROM lanes WHERE queue_id = ?;

-- name: lane_of_key
-- Index lanes_keyed.
SELECT id, first, tail, entered_at FROM lanes WHERE queue_id = ? AND key = ?;

-- name: entered_at
-- Primary keys of stretches and messages.
SELECT entered_at FROM messages WHERE row = row_at(?1, ?2);

-- name: end_leases
-- Index leases_live.
UPDATE leases SET ended_at = min(?2, expires_at), fragile = NULL WHERE cursor_id = ?1 AND ended_at IS NULL;

-- name: drop_retries
-- Primary key.
DELETE FROM retries WHERE cursor_id = ?;

-- name: drop_skips
-- Primary key.
DELETE FROM skips WHERE cursor_id = ?;

-- name: drop_marks
-- Primary key. What was settled by all groups may not be any more.
DELETE FROM marks WHERE lane_id = ?;

-- name: cursors_of_group
-- By group: only when a group is deleted.
SELECT id FROM cursors WHERE group_id = ?;

-- name: drop_settlements
DELETE FROM settlements WHERE (token, lane_id) IN (SELECT token, lane_id FROM leases WHERE group_id = ?);

-- name: drop_leases
DELETE FROM leases WHERE group_id = ?;

-- name: drop_dead
DELETE FROM dead_letters WHERE group_id = ?;

-- name: drop_cursors
DELETE FROM cursors WHERE group_id = ?;

-- name: drop_group
DELETE FROM groups WHERE id = ?;

-- name: add_filter
INSERT INTO group_filters (name, namespace, task, start_at, start_time) VALUES (?, ?, ?, ?, ?);

-- name: has_filter
SELECT 1 FROM group_filters WHERE name = ? AND namespace IS ? AND task IS ?;
