-- name: create_queue
INSERT INTO queues (name, namespace, task, settings, created_at) VALUES (?, ?, ?, ?, ?);

-- name: create_group
INSERT INTO groups (queue_id, name, start_at, start_time, created_at) VALUES (?, ?, ?, ?, ?);

-- name: filters
-- A handful of rows in all.
SELECT name, namespace, task, start_at, start_time FROM group_filters ORDER BY id;

-- name: keyed_lanes
-- Index lanes_keyed, for each key.
SELECT id, key, kind, priority, first, tail, entered_at FROM lanes
WHERE queue_id = ?1 AND key IN (SELECT value FROM json_each(?2));

-- name: open_lane
-- Index lanes_open.
SELECT id, key, kind, priority, first, tail, entered_at FROM lanes
WHERE queue_id = ? AND kind = ? AND priority = ? AND key IS NULL;

-- name: create_lane
-- AUTOINCREMENT: the lanes of one call have ids that count up.
INSERT INTO lanes (queue_id, key, kind, priority, tidy_at) VALUES (?, ?, ?, ?, ?);

-- name: create_cursors
-- Primary key of lanes; index groups (queue_id, name). Every group of the queue sees a new lane from its start.
INSERT INTO cursors (lane_id, group_id, keyed, position, hold)
SELECT l.id, g.id, l.key IS NOT NULL, 0, iif(l.key IS NULL, 0, ?4) FROM lanes l CROSS JOIN groups g
WHERE l.id BETWEEN ?1 AND ?2 AND g.queue_id = ?3;

-- name: to_tidy
-- Primary key. Nothing is written for a lane that is looked at sooner.
UPDATE lanes SET tidy_at = ?2 WHERE id = ?1 AND coalesce(tidy_at > ?2, 1);
