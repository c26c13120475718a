-- name: add
INSERT INTO traces (id, queue, key, name, group_name, names, event, data, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: add_name
INSERT OR IGNORE INTO trace_names (name, number) VALUES (?, ?);

-- name: of_message
-- Index traces_of_message.
SELECT id, queue, key, name, group_name, names, event, data, created_at FROM traces
WHERE queue = ? AND key = ? AND name = ? ORDER BY number LIMIT ?;

-- name: by_name
-- Primary keys of trace_names and traces.
SELECT t.id, t.queue, t.key, t.name, t.group_name, t.names, t.event, t.data, t.created_at
FROM trace_names n JOIN traces t ON t.number = n.number WHERE n.name = ? ORDER BY n.number DESC LIMIT ? OFFSET ?;

-- name: count_by_name
-- Primary key of trace_names.
SELECT count(*) FROM trace_names WHERE name = ?;

-- name: names
-- Primary key of trace_names.
SELECT name, count(*) FROM trace_names GROUP BY name ORDER BY name LIMIT ? OFFSET ?;

-- name: count_names
SELECT count(DISTINCT name) FROM trace_names;

-- name: old
-- Index traces_by_age.
SELECT number FROM traces WHERE created_at <= ? ORDER BY created_at LIMIT ?;

-- name: drop_names
-- A row for each name of a trace.
DELETE FROM trace_names WHERE number = ?1 AND name IN (SELECT value FROM traces, json_each(names) WHERE number = ?1);

-- name: drop
-- Primary key.
DELETE FROM traces WHERE number = ?;

-- name: oldest
-- Index traces_by_age.
SELECT min(created_at) FROM traces;

-- name: drop_names_of_queue
-- Index traces_of_message.
DELETE FROM trace_names WHERE number IN (SELECT number FROM traces WHERE queue = ?);

-- name: drop_of_queue
-- Index traces_of_message.
DELETE FROM traces WHERE queue = ?;
