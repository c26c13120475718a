-- A worker starts what it claims at once: a message under the lease of a registered worker runs. Of a keyed lane's run that
-- is the first. And results can be read as text.
DROP VIEW qo.jobs;
DROP VIEW qo.lane_jobs;
DROP VIEW qo.intake_jobs;

-- The messages in lanes, as the default group sees them.
CREATE VIEW qo.lane_jobs AS
WITH standing AS (
    SELECT m.id, m.lane_id, m."offset", q.name AS queue, coalesce(m.kind, l.kind) AS kind, l.key, m.payload, m.headers,
           m.created_at, coalesce(m.due_at, m.created_at) AS due_at, c.id AS cursor_id, c.keyed,
           CASE WHEN c.keyed THEN c.position ELSE greatest(c.position,
               coalesce((SELECT max(e.last) FROM qo.leases e WHERE e.cursor_id = c.id AND e.epoch = c.epoch), 0)) END AS position,
           c.state AS cursor_state, c.attempts AS head_attempts, r.attempts AS retry_attempts, r."offset" AS retry,
           r.token AS retry_token,
           EXISTS (SELECT FROM qo.skips s WHERE s.cursor_id = c.id AND s."offset" = m."offset") AS skipped
    FROM qo.messages m
    JOIN qo.lanes l ON l.id = m.lane_id
    JOIN qo.queues q ON q.id = l.queue_id
    JOIN qo.cursors c ON c.lane_id = l.id AND c.group_id = q.default_group_id
    LEFT JOIN qo.retries r ON r.cursor_id = c.id AND r."offset" = m."offset"
    WHERE m.group_id IS NULL OR m.group_id = q.default_group_id
)
SELECT s.id, s.queue, s.kind, s.key,
       CASE
           WHEN s.skipped THEN 'canceled'
           WHEN s.retry IS NOT NULL AND s.retry_token IS NULL THEN 'queued'
           WHEN e.token IS NOT NULL AND (e.started ? s."offset"::text OR e.runs) THEN 'running'
           WHEN e.token IS NOT NULL THEN 'assigned'
           WHEN s."offset" >= s.position THEN 'queued'
           ELSE o.state
       END AS state,
       coalesce(s.retry_attempts + (s.retry_token IS NOT NULL)::integer,
                CASE WHEN s."offset" >= s.position AND s.cursor_state = 'blocked' THEN s.head_attempts END,
                CASE WHEN e.token IS NOT NULL AND s."offset" = e.from_offset THEN s.head_attempts + 1 END,
                o.attempt,
                CASE WHEN s."offset" < s.position THEN 1 ELSE 0 END) AS attempt,
       qo.as_text(s.payload) AS payload,
       s.created_at, s.due_at, e.owner AS lease_owner, e.expires_at AS lease_expires_at, e.heartbeat_at,
       coalesce(o.started_at, (e.started ->> s."offset"::text)::timestamptz, CASE WHEN e.runs THEN e.claimed_at END) AS started_at,
       o.finished_at, o.reason, o.error, qo.as_text(o.result) AS result, o.result AS result_bytes, s.payload AS payload_bytes, s.headers,
       s.lane_id, s."offset"
FROM standing s
LEFT JOIN LATERAL (SELECT * FROM qo.outcomes o WHERE o.lane_id = s.lane_id AND o."offset" = s."offset"
                   ORDER BY o.finished_at DESC LIMIT 1) o ON true
LEFT JOIN LATERAL (SELECT e.*, (NOT s.keyed OR s."offset" = e.from_offset)
                       AND EXISTS (SELECT FROM qo.workers w WHERE w.id = e.owner) AS runs FROM qo.leases e WHERE e.cursor_id = s.cursor_id AND e.ended_at IS NULL
                   AND (e.token = s.retry_token OR (s.retry IS NULL AND s."offset" >= e.from_offset
                        AND s."offset" < e.to_offset AND NOT e.settled @> s."offset")) LIMIT 1) e ON true;

-- The messages in intake, with the same columns.
CREATE VIEW qo.intake_jobs AS
SELECT i.id, i.queue::text AS queue, i.kind, i.key, CASE WHEN i.canceled_at IS NULL THEN 'queued' ELSE 'canceled' END AS state,
       0 AS attempt, qo.as_text(i.payload) AS payload, i.created_at, i.due_at, NULL::text AS lease_owner,
       NULL::timestamptz AS lease_expires_at, NULL::timestamptz AS heartbeat_at, NULL::timestamptz AS started_at,
       i.canceled_at AS finished_at, i.reason, i.duplicate_of::text AS error, NULL::text AS result, NULL::bytea AS result_bytes,
       i.payload AS payload_bytes, i.headers, NULL::bigint AS lane_id, NULL::bigint AS "offset"
FROM qo.intake i;

-- One row per message of the default group, for people and their tools. A lease that has run out shows as assigned
-- until someone claims; qo's own reads know better.
CREATE VIEW qo.jobs AS SELECT * FROM qo.lane_jobs UNION ALL SELECT * FROM qo.intake_jobs;
