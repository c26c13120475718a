-- name: heartbeat
-- Primary key.
INSERT INTO workers (id, said, seen_at, keeper_host, keeper_pid, keeper_start) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT (id) DO UPDATE SET said = ?2, seen_at = ?3, keeper_host = ?4, keeper_pid = ?5, keeper_start = ?6;

-- name: adopt
-- Primary key.
UPDATE workers SET seen_at = ?2, keeper_host = ?3, keeper_pid = ?4, keeper_start = ?5 WHERE id = ?1;

-- name: disown
-- Primary key. Nobody vouches for it any longer, but one who did so after us may.
UPDATE workers SET keeper_host = NULL WHERE id = ?1 AND keeper_host = ?2 AND keeper_pid = ?3 AND keeper_start = ?4;

-- name: remove
-- Primary key.
DELETE FROM workers WHERE id = ?1;

-- name: list
SELECT said, seen_at, keeper_host, keeper_pid, keeper_start FROM workers ORDER BY seen_at DESC LIMIT ?1;

-- name: waiting_kinds
-- Indexes cursors_ready_by_kind, a step for each kind, and leases_to_expire. Kinds of which somebody holds one are left out.
WITH RECURSIVE sources AS MATERIALIZED (
    SELECT g.id, g.name AS in_group, q.name AS queue FROM groups g JOIN queues q ON q.id = g.queue_id
    WHERE q.paused = 0 ORDER BY g.id LIMIT ?1
), kinds (group_id, kind) AS (
    SELECT f.id, (SELECT min(c.head_kind) FROM cursors c WHERE c.group_id = f.id AND c.state = 'ready') FROM sources f
    UNION ALL
    SELECT k.group_id, (SELECT min(c.head_kind) FROM cursors c
                        WHERE c.group_id = k.group_id AND c.state = 'ready' AND c.head_kind > k.kind)
    FROM kinds k WHERE k.kind IS NOT NULL
)
SELECT f.queue, f.in_group, k.kind,
       (SELECT c.head_entered_at FROM cursors c WHERE c.group_id = k.group_id AND c.state = 'ready' AND c.head_kind = k.kind
        ORDER BY c.head_priority DESC, c.head_entered_at LIMIT 1)
FROM kinds k JOIN sources f ON f.id = k.group_id
WHERE k.kind IS NOT NULL AND NOT EXISTS (
    SELECT 1 FROM leases e JOIN cursors c ON c.id = e.cursor_id
    WHERE e.group_id = k.group_id AND e.ended_at IS NULL AND e.expires_at > ?2 AND c.head_kind = k.kind)
ORDER BY f.queue, f.in_group, k.kind LIMIT ?1;
