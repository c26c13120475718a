-- A worker starts what it claims at once: a message under the lease of a registered worker runs. Of a keyed lane's run that
-- is the first. And results can be read as text.
DROP VIEW jobs;
DROP VIEW lane_jobs;
DROP VIEW intake_jobs;

-- The messages in lanes, as the default group sees them.
CREATE VIEW lane_jobs AS
WITH standing AS (
    SELECT m.row, m.id, m.lane_id, m.offset, q.name AS queue, coalesce(m.kind, l.kind) AS kind, l.key, m.payload, m.headers,
           m.created_at, coalesce(m.due_at, m.created_at) AS due_at, c.id AS cursor_id, c.position, c.state AS cursor_state,
           c.attempts AS head_attempts, r.attempts AS retry_attempts, r.offset AS retry, r.token AS retry_token,
           (SELECT 1 FROM skips s WHERE s.cursor_id = c.id AND s.offset = m.offset) AS skipped,
           (SELECT max(finished_at) FROM outcomes o WHERE o.lane_id = m.lane_id AND o.offset = m.offset) AS finished_at,
           (SELECT token FROM leases e WHERE e.cursor_id = c.id AND e.ended_at IS NULL
               AND (e.token = r.token OR (r.offset IS NULL AND m.offset >= e.from_offset AND m.offset < e.to_offset
                    -- and its bit in e.settled is not set: the right one of the two hex digits of its byte
                    AND coalesce(NOT ((instr('0123456789ABCDEF',
                        substr(hex(substr(e.settled, (m.offset - e.first) / 8 + 1, 1)), 2 - (m.offset - e.first) % 8 / 4, 1)) - 1)
                        >> (m.offset - e.first) % 4 & 1), 1)))) AS token
    FROM messages m
    JOIN lanes l ON l.id = m.lane_id
    JOIN queues q ON q.id = l.queue_id
    JOIN groups g ON g.queue_id = q.id AND g.name = 'default'
    JOIN cursors c ON c.lane_id = l.id AND c.group_id = g.id
    LEFT JOIN retries r ON r.cursor_id = c.id AND r.offset = m.offset
    WHERE m.group_id IS NULL OR m.group_id = g.id
)
SELECT lower(substr(hex(s.id), 1, 8) || '-' || substr(hex(s.id), 9, 4) || '-' || substr(hex(s.id), 13, 4) || '-'
             || substr(hex(s.id), 17, 4) || '-' || substr(hex(s.id), 21)) AS id,
       s.queue, s.kind, s.key,
       CASE
           WHEN s.skipped THEN 'canceled'
           WHEN s.retry IS NOT NULL AND s.retry_token IS NULL THEN 'queued'
           WHEN e.token IS NOT NULL AND (json_extract(e.started, '$."' || s.offset || '"') IS NOT NULL OR w.id IS NOT NULL) THEN 'running'
           WHEN e.token IS NOT NULL THEN 'assigned'
           WHEN s.offset >= s.position THEN 'queued'
           ELSE o.state
       END AS state,
       coalesce(s.retry_attempts + (s.retry_token IS NOT NULL),
                CASE WHEN s.offset >= s.position AND s.cursor_state = 'blocked' THEN s.head_attempts END,
                CASE WHEN e.token IS NOT NULL AND s.offset = e.from_offset THEN s.head_attempts + 1 END,
                o.attempt,
                CASE WHEN s.offset < s.position THEN 1 ELSE 0 END) AS attempt,
       CAST(s.payload AS TEXT) AS payload,
       s.created_at, s.due_at,
       e.owner AS lease_owner, e.expires_at AS lease_expires_at, e.heartbeat_at,
       coalesce(o.started_at, json_extract(e.started, '$."' || s.offset || '"'), iif(w.id IS NULL, NULL, e.claimed_at)) AS started_at,
       o.finished_at, o.reason, o.error, CAST(o.result AS TEXT) AS result, o.result AS result_bytes, s.payload AS payload_bytes, s.headers, s.id AS message_id, s.row
FROM standing s
LEFT JOIN outcomes o ON o.lane_id = s.lane_id AND o.offset = s.offset AND o.finished_at = s.finished_at
LEFT JOIN leases e ON e.token = s.token AND e.lane_id = s.lane_id
LEFT JOIN workers w ON w.id = e.owner AND (s.key IS NULL OR s.offset = e.from_offset);

-- The messages in intake, with the same columns.
CREATE VIEW intake_jobs AS
SELECT lower(substr(hex(i.id), 1, 8) || '-' || substr(hex(i.id), 9, 4) || '-' || substr(hex(i.id), 13, 4) || '-'
             || substr(hex(i.id), 17, 4) || '-' || substr(hex(i.id), 21)) AS id,
       q.name AS queue, i.kind, i.key, iif(i.canceled_at IS NULL, 'queued', 'canceled') AS state, 0 AS attempt,
       CAST(i.payload AS TEXT) AS payload, i.created_at, i.due_at, NULL AS lease_owner, NULL AS lease_expires_at,
       NULL AS heartbeat_at, NULL AS started_at, i.canceled_at AS finished_at, i.reason, NULL AS error, NULL AS result,
       NULL AS result_bytes, i.payload AS payload_bytes, i.headers, i.id AS message_id, NULL AS row
FROM intake i JOIN queues q ON q.id = i.queue_id;

-- One row per message of the default group, for people and their tools. A lease
-- that has run out shows as assigned until someone claims; qo's own reads know better.
CREATE VIEW jobs AS SELECT * FROM lane_jobs UNION ALL SELECT * FROM intake_jobs;
