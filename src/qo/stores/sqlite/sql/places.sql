-- name: newest
-- Primary key, from its high end.
SELECT row, lane_id, offset FROM messages ORDER BY row DESC LIMIT 1;

-- name: begin_stretch
INSERT INTO stretches (lane_id, first, row) VALUES (?, ?, ?);

-- name: id_run_before
-- Primary key: runs do not overlap, so the last that begins at or before an id is the only one that may hold it.
SELECT first, last, row FROM id_runs WHERE first <= ? ORDER BY first DESC LIMIT 1;

-- name: begin_id_run
INSERT INTO id_runs (first, last, count, kept, row) VALUES (?1, ?2, ?3, ?3, ?4);

-- name: spans_below
-- Primary key.
SELECT first, last, row FROM spans WHERE lane_id = ?1 AND first < ?2 ORDER BY first;

-- name: row_of
-- Primary key. The row may be another message's by now, if this one was removed.
SELECT row FROM messages WHERE row = ? AND id = ?;

-- name: ids_between
-- Primary key.
SELECT id FROM messages WHERE row >= ?1 AND row < ?2;

-- name: count_ids
-- Primary key.
SELECT count(*) FROM messages WHERE row >= ?1 AND row < ?2 AND id >= ?3 AND id <= ?4;

-- name: keep_id_run
INSERT INTO id_runs (first, last, count, kept, row) VALUES (?, ?, ?, ?, ?);

-- name: drop_whole_id_run
-- Primary key.
DELETE FROM id_runs WHERE first = ?;

-- name: shrink_id_run
-- Primary key.
UPDATE id_runs SET kept = kept - ?2 WHERE first = ?1;

-- name: drop_id_run
-- Primary key.
DELETE FROM id_runs WHERE first = ? AND kept <= 0;

-- name: drop_messages
-- Primary key.
DELETE FROM messages WHERE row >= ?1 AND row < ?2;

-- name: drop_stretch
-- Primary key.
DELETE FROM stretches WHERE lane_id = ? AND first = ?;
