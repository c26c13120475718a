-- name: newest
-- Primary key, from its high end.
SELECT row, lane_id, offset FROM messages ORDER BY row DESC LIMIT 1;

-- name: begin_stretch
INSERT INTO stretches (lane_id, first, row) VALUES (?, ?, ?);

-- name: id_run_before
-- Primary key: runs do not overlap, so the last that begins at or before an id is the only one that may hold it.
SELECT first, last, row FROM id_runs WHERE first <= ? ORDER BY first DESC LIMIT 1;

-- name: begin_id_run
INSERT INTO id_runs (first, last, count, row) VALUES (?, ?, ?, ?);

-- name: spans_below
-- Primary key.
SELECT first, last, row FROM spans WHERE lane_id = ?1 AND first < ?2 ORDER BY first;

-- name: id_at
-- Primary key.
SELECT id FROM messages WHERE row = ?;

-- name: drop_id_runs
-- Primary keys of messages and id_runs.
DELETE FROM id_runs WHERE first IN (SELECT id FROM messages WHERE row >= ?1 AND row < ?2);

-- name: drop_messages
-- Primary key.
DELETE FROM messages WHERE row >= ?1 AND row < ?2;

-- name: drop_stretch
-- Primary key.
DELETE FROM stretches WHERE lane_id = ? AND first = ?;
