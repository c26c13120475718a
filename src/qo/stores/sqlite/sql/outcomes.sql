-- name: record
-- Widened to many rows.
INSERT OR REPLACE INTO outcomes (finished_at, lane_id, offset, state, attempt, reason, error, result, owner, started_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10);

-- name: ids
-- Primary keys of stretches and messages.
SELECT id FROM messages WHERE row = row_at(?1, ?2);

-- name: bury
-- Primary keys. A message that dies again after a seek replaces its copy.
INSERT OR REPLACE INTO dead_letters (id, queue_id, group_id, key, kind, priority, payload, headers, attempts, losses,
                                     reason, error, created_at, died_at)
SELECT m.id, l.queue_id, ?3, l.key, coalesce(m.kind, l.kind), coalesce(m.priority, l.priority), m.payload, m.headers,
       ?4, ?5, ?6, ?7, m.created_at, ?8
FROM messages m JOIN lanes l ON l.id = m.lane_id WHERE m.row = row_at(?1, ?2);
