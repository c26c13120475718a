-- name: create_queue
INSERT INTO queues (name, namespace, task, settings, created_at) VALUES (?, ?, ?, ?, ?);

-- name: create_group
INSERT INTO groups (queue_id, name, start_at, start_time, created_at) VALUES (?, ?, ?, ?, ?);

-- name: filters
-- A handful of rows in all.
SELECT name, namespace, task, start_at, start_time FROM group_filters ORDER BY id;

-- name: keyed_lanes
-- Index lanes_keyed, for each key.
SELECT id, key, kind, priority, first, tail, entered_at, tidy_at FROM lanes
WHERE queue_id = ?1 AND key IN (SELECT value FROM json_each(?2));

-- name: open_lane
-- Index lanes_open.
SELECT id, key, kind, priority, first, tail, entered_at, tidy_at FROM lanes
WHERE queue_id = ? AND kind = ? AND priority = ? AND key IS NULL;

-- name: last_lane
-- The highest id that was ever given out: AUTOINCREMENT.
SELECT seq FROM sqlite_sequence WHERE name = 'lanes';

-- name: to_tidy
-- Primary key. Nothing is written for a lane that is looked at sooner.
UPDATE lanes SET tidy_at = ?2 WHERE id = ?1 AND coalesce(tidy_at > ?2, 1);
