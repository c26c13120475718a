-- name: lanes
-- Index cursors_busy: ready lanes, and those whose rest is over.
SELECT coalesce(sum(waiting), 0), coalesce(sum(CASE WHEN keyed THEN 1 ELSE waiting END), 0), min(head_entered_at)
FROM (SELECT l.tail - c.position AS waiting, c.keyed, c.head_entered_at FROM cursors c JOIN lanes l ON l.id = c.lane_id
      WHERE c.group_id = ?1 AND c.state <> 'idle' AND (c.state = 'ready' OR (c.state = 'blocked' AND c.due_at <= ?2))
          AND (?3 IS NULL OR c.head_kind IN (SELECT value FROM json_each(?3))) LIMIT ?4);

-- name: retries
-- Indexes cursors_due, retries_due.
SELECT count(*), min(entered_at) FROM (
    SELECT r.entered_at FROM cursors c JOIN retries r ON r.cursor_id = c.id
    WHERE c.group_id = ?1 AND c.due_at IS NOT NULL AND c.due_at <= ?2 AND c.keyed = 0 AND r.token IS NULL AND r.due_at <= ?2
        AND (?3 IS NULL OR c.head_kind IN (SELECT value FROM json_each(?3))) LIMIT ?4);

-- name: intake
-- Index intake_due.
SELECT count(*), min(due_at) FROM (
    SELECT due_at FROM intake WHERE queue_id = ?1 AND canceled_at IS NULL AND due_at <= ?2
        AND (?3 IS NULL OR kind IN (SELECT value FROM json_each(?3))) LIMIT ?4);

-- name: next_moment
-- Indexes intake_due, leases_to_expire, cursors_due, retries_due: after now.
SELECT min(t) FROM (
    SELECT min(due_at) AS t FROM intake WHERE queue_id = ?1 AND canceled_at IS NULL AND due_at > ?3
    UNION ALL SELECT min(expires_at) FROM leases WHERE group_id = ?2 AND ended_at IS NULL AND expires_at > ?3
    UNION ALL SELECT min(due_at) FROM cursors WHERE group_id = ?2 AND due_at IS NOT NULL AND due_at > ?3
    UNION ALL SELECT min((SELECT min(r.due_at) FROM retries r WHERE r.cursor_id = c.id AND r.token IS NULL AND r.due_at > ?3))
        FROM cursors c WHERE c.group_id = ?2 AND c.due_at <= ?3 AND c.due_at IS NOT NULL AND c.keyed = 0
);
