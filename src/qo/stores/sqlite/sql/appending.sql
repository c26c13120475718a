-- name: append
-- Widened to many rows.
INSERT INTO messages (lane_id, offset, entered_at, id, kind, priority, payload, headers, created_at, due_at, expires_at,
                      group_id, retry_of) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13);

-- name: append_plain
-- Widened to many rows: lane, first offset and times are shared, id and payload each row's own.
INSERT INTO messages (lane_id, offset, entered_at, created_at, id, payload) VALUES (?1, ?2 + 0, ?3, ?4, ?5, ?6);

-- name: append_keyed
-- Widened to many rows: when they were created is shared.
INSERT INTO messages (created_at, lane_id, offset, entered_at, id, kind, priority, payload) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8);

-- name: grow
-- Primary key.
UPDATE lanes SET tail = ?2, entered_at = ?3 WHERE id = ?1;

-- name: address
INSERT INTO addressed (lane_id, offset, group_id) VALUES (?, ?, ?);

-- name: create_lanes
-- Widened to many rows.
INSERT INTO lanes (tidy_at, id, queue_id, key, kind, priority, tail, entered_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8);

-- name: create_cursors
-- Primary keys; index groups (queue_id, name). Every group of the queue sees a new lane from its start; a message that is
-- addressed to one is for that one alone.
INSERT INTO cursors (lane_id, group_id, keyed, position, hold, state, head_kind, head_priority, head_entered_at, due_at)
SELECT lane_id, group_id, keyed, 0, hold, iif(NOT mine, 'idle', iif(held, 'blocked', 'ready')),
       iif(mine, kind, NULL), iif(mine, priority, NULL), iif(mine, entered_at, NULL),
       iif(mine AND keyed, iif(held, entered_at + hold, expires_at), NULL)
FROM (SELECT l.id AS lane_id, g.id AS group_id, l.key IS NOT NULL AS keyed, coalesce(m.group_id = g.id, 1) AS mine,
             iif(l.key IS NULL, 0, ?3) AS hold, l.key IS NOT NULL AND ?3 > 0 AND m.entered_at + ?3 > ?4 AND l.tail < ?5 AS held,
             coalesce(m.kind, l.kind) AS kind,
             coalesce(m.priority, l.priority) AS priority, m.entered_at, m.expires_at
      FROM lanes l CROSS JOIN groups g ON g.queue_id = l.queue_id CROSS JOIN messages m ON m.row = row_at(l.id, 0)
      WHERE l.id BETWEEN ?1 AND ?2);

-- name: idle_lanes
-- Index cursors_in_lane. Which of these lanes have an idle cursor: few, where work is behind.
SELECT DISTINCT c.lane_id FROM json_each(?1) j CROSS JOIN cursors c ON c.lane_id = j.value WHERE c.state = 'idle';

-- name: wake_keyed
-- Index cursors_in_lane: only idle cursors are written, and that wakes them; those of a queue with a window when that ends.
UPDATE cursors SET head_kind = ?2, head_priority = ?3, head_entered_at = ?4,
    state = iif(hold > 0 AND ?4 + hold > ?7 AND ?8 - position < ?9, 'blocked', 'ready'),
    due_at = iif(hold > 0 AND ?4 + hold > ?7 AND ?8 - position < ?9, ?4 + hold, ?5)
WHERE lane_id = ?1 AND state = 'idle' AND (?6 IS NULL OR group_id = ?6);

-- name: wake_full
-- Index cursors_in_lane. Held back by a window, and enough have come.
UPDATE cursors SET state = 'ready',
    due_at = (SELECT expires_at FROM messages WHERE row = row_at(cursors.lane_id, cursors.position))
WHERE lane_id = ?1 AND state = 'blocked' AND hold > 0 AND attempts = 0 AND losses = 0 AND ?2 - position >= ?3;

-- name: wake_open
-- Index cursors_in_lane.
UPDATE cursors SET state = 'ready', head_kind = ?2, head_priority = ?3, head_entered_at = ?4
WHERE lane_id = ?1 AND state = 'idle' AND (?5 IS NULL OR group_id = ?5);
