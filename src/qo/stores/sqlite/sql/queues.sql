-- name: set_settings
UPDATE queues SET settings = ?2, namespace = ?3, task = ?4 WHERE id = ?1;

-- name: set_hold
-- Lanes of one queue. Heads that are held back by the window follow it.
UPDATE cursors SET hold = ?2,
    due_at = iif(state = 'blocked' AND attempts = 0 AND losses = 0, head_entered_at + ?2, due_at)
WHERE keyed = 1 AND lane_id IN (SELECT id FROM lanes WHERE queue_id = ?1);

-- name: set_paused
UPDATE queues SET paused = ?2 WHERE id = ?1;

-- name: tidy_soon
-- Lanes of one queue: a new rule may make them shorter.
UPDATE lanes SET tidy_at = ?2 WHERE queue_id = ?1 AND first < tail AND coalesce(tidy_at, ?2 + 1) > ?2;

-- name: count_messages
-- Lanes of one queue; offsets are dense.
SELECT (SELECT coalesce(sum(tail - first), 0) FROM lanes WHERE queue_id = ?1)
     + (SELECT count(*) FROM intake WHERE queue_id = ?1 AND canceled_at IS NULL);

-- name: end_leases
UPDATE leases SET ended_at = min(?2, expires_at), fragile = NULL
WHERE ended_at IS NULL AND lane_id IN (SELECT id FROM lanes WHERE queue_id = ?1);

-- name: drop_events
DELETE FROM events WHERE message_id IN
    (SELECT m.id FROM lanes l CROSS JOIN spans s ON s.lane_id = l.id
     CROSS JOIN messages m ON m.row >= s.row AND m.row < s.row + s.last - s.first WHERE l.queue_id = ?1);

-- name: drop_intake_events
DELETE FROM events WHERE message_id IN (SELECT id FROM intake WHERE queue_id = ?1);

-- name: shrink_id_runs
-- A run may have messages of other queues, too.
UPDATE id_runs SET kept = kept - gone.messages
FROM (SELECT (SELECT max(r.first) FROM id_runs r WHERE r.first <= m.id) AS first, count(*) AS messages
     FROM lanes l CROSS JOIN spans s ON s.lane_id = l.id
     CROSS JOIN messages m ON m.row >= s.row AND m.row < s.row + s.last - s.first WHERE l.queue_id = ?1 GROUP BY 1) gone
WHERE id_runs.first = gone.first;

-- name: drop_id_runs
DELETE FROM id_runs WHERE kept <= 0 AND first IN
    (SELECT (SELECT max(r.first) FROM id_runs r WHERE r.first <= m.id) FROM lanes l CROSS JOIN spans s ON s.lane_id = l.id
     CROSS JOIN messages m ON m.row >= s.row AND m.row < s.row + s.last - s.first WHERE l.queue_id = ?1);

-- name: drop_messages
DELETE FROM messages WHERE row IN
    (SELECT m.row FROM lanes l CROSS JOIN spans s ON s.lane_id = l.id
     CROSS JOIN messages m ON m.row >= s.row AND m.row < s.row + s.last - s.first WHERE l.queue_id = ?1);

-- name: drop_stretches
DELETE FROM stretches WHERE lane_id IN (SELECT id FROM lanes WHERE queue_id = ?1);

-- name: drop_addressed
DELETE FROM addressed WHERE lane_id IN (SELECT id FROM lanes WHERE queue_id = ?1);

-- name: drop_outcomes
DELETE FROM outcomes WHERE lane_id IN (SELECT id FROM lanes WHERE queue_id = ?1);

-- name: drop_retries
DELETE FROM retries WHERE cursor_id IN (SELECT c.id FROM cursors c JOIN lanes l ON l.id = c.lane_id WHERE l.queue_id = ?1);

-- name: drop_skips
DELETE FROM skips WHERE cursor_id IN (SELECT c.id FROM cursors c JOIN lanes l ON l.id = c.lane_id WHERE l.queue_id = ?1);

-- name: drop_intake
DELETE FROM intake WHERE queue_id = ?1;

-- name: drop_marks
DELETE FROM marks WHERE lane_id IN (SELECT id FROM lanes WHERE queue_id = ?1);

-- name: empty_cursors
UPDATE cursors SET state = 'idle', attempts = 0, losses = 0, head_entered_at = NULL, due_at = NULL,
                   position = (SELECT tail FROM lanes l WHERE l.id = cursors.lane_id)
WHERE lane_id IN (SELECT id FROM lanes WHERE queue_id = ?1);

-- name: empty_lanes
UPDATE lanes SET first = tail, tidy_at = ?2 WHERE queue_id = ?1;

-- name: drop_settlements
DELETE FROM settlements WHERE lane_id IN (SELECT id FROM lanes WHERE queue_id = ?1);

-- name: drop_dedupe
DELETE FROM dedupe WHERE queue_id = ?1;

-- name: drop_dead
DELETE FROM dead_letters WHERE queue_id = ?1;

-- name: drop_lanes
DELETE FROM lanes WHERE queue_id = ?1;

-- name: drop_queue
DELETE FROM queues WHERE id = ?1;

-- name: group_ids
-- Index groups (queue_id, name).
SELECT id FROM groups WHERE queue_id = ?;
