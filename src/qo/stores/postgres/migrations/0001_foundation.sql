-- The foundation: queues, lanes, messages, groups, and what moves through them.
--
-- Rows that many transactions touch are locked, not updated: under an old snapshot
-- every version of a row stays, and readers walk them all. A lane's row is a lock
-- with a floor: its tail is the greater of the floor and its newest message's
-- offset + 1. An open lane's cursor is a lock with a floor and an epoch: its position
-- is the greater of the floor and the newest `last` of its epoch's leases.
--
-- `qo.` is the schema that the store's URL names.

CREATE TABLE qo.migrations (
    number integer PRIMARY KEY,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- One row: every queue setting at its default, durations in seconds. Written by qo when it migrates.
CREATE TABLE qo.defaults (
    rules jsonb NOT NULL
);

CREATE TABLE qo.queues (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE,
    namespace text NOT NULL,
    task text NOT NULL,
    settings jsonb NOT NULL DEFAULT '{}',   -- what differs from the defaults
    rules jsonb NOT NULL,                   -- all of it, as in defaults
    default_group_id bigint,
    paused boolean NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL
);
CREATE INDEX queues_by_namespace ON qo.queues (namespace, task);
CREATE INDEX queues_by_task ON qo.queues (task);

CREATE TABLE qo.groups (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue_id bigint NOT NULL,
    name text COLLATE "C" NOT NULL,
    start_at text NOT NULL,                 -- all, new, time
    start_time timestamptz,
    created_at timestamptz NOT NULL,
    claimed_at timestamptz,                 -- written at most once an hour
    UNIQUE (queue_id, name)
);

-- Groups made through a filter: they join matching queues as these appear.
CREATE TABLE qo.group_filters (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL,
    namespace text,
    task text,
    start_at text NOT NULL,
    start_time timestamptz,
    UNIQUE NULLS NOT DISTINCT (name, namespace, task)
);

CREATE TABLE qo.lanes (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue_id bigint NOT NULL,
    key text COLLATE "C",                   -- a keyed lane has a key,
    kind text COLLATE "C",                  -- an open lane has a kind
    priority integer,                       -- and a priority
    first bigint NOT NULL DEFAULT 0,        -- the oldest offset that is retained
    floor bigint NOT NULL DEFAULT 0,        -- no offset below was left to give out when it was written
    floor_entered_at timestamptz NOT NULL DEFAULT '-infinity'   -- of the newest message that was removed
);
CREATE UNIQUE INDEX lanes_keyed ON qo.lanes (queue_id, key) WHERE key IS NOT NULL;
CREATE UNIQUE INDEX lanes_open ON qo.lanes (queue_id, kind, priority) WHERE key IS NULL;
CREATE INDEX lanes_by_queue ON qo.lanes (queue_id, id);

-- When housekeeping should look at a lane. Last in the order of locks.
CREATE TABLE qo.tidying (
    lane_id bigint PRIMARY KEY,
    at timestamptz NOT NULL
);
CREATE INDEX tidying_due ON qo.tidying (at);

CREATE TABLE qo.messages (
    lane_id bigint NOT NULL,
    "offset" bigint NOT NULL,
    id uuid NOT NULL,
    kind text COLLATE "C",                  -- NULL: the open lane's
    priority integer,                       -- NULL: the open lane's
    payload bytea NOT NULL,
    headers text,
    created_at timestamptz NOT NULL,
    due_at timestamptz,                     -- NULL: when it was created
    entered_at timestamptz NOT NULL,
    expires_at timestamptz,
    group_id bigint,                        -- addressed to this group alone (a retried dead letter)
    retry_of uuid,
    alone boolean NOT NULL DEFAULT false,   -- its id is found in the index below; else it is one of a run of ids
    PRIMARY KEY (lane_id, "offset")
);
CREATE UNIQUE INDEX messages_alone ON qo.messages (id) WHERE alone;

-- Where the ids of a run lie: two or more that count up from `first` to `last` are at the offsets from `offset` on. With the
-- index of those that stand alone, also what makes the same push, sent again, meet itself.
CREATE TABLE qo.id_runs (
    first uuid PRIMARY KEY,
    last uuid NOT NULL,
    lane_id bigint NOT NULL,
    "offset" bigint NOT NULL
);
CREATE INDEX id_runs_in_lane ON qo.id_runs (lane_id, "offset");

-- The few messages that are addressed to one group.
CREATE TABLE qo.addressed (
    lane_id bigint NOT NULL,
    "offset" bigint NOT NULL,
    group_id bigint NOT NULL,
    PRIMARY KEY (lane_id, "offset")
);

-- By the queue's name, because an enqueue in a user's transaction must not wait for whoever creates the queue.
CREATE TABLE qo.intake (
    id uuid PRIMARY KEY,
    queue text COLLATE "C" NOT NULL,
    key text COLLATE "C",
    kind text COLLATE "C" NOT NULL,
    priority integer NOT NULL,
    payload bytea NOT NULL,
    headers text,
    created_at timestamptz NOT NULL,
    due_at timestamptz NOT NULL,
    ttl double precision,                   -- seconds; NULL: the queue's
    dedupe jsonb,                           -- to be judged on entry: {"key", "window", "scope"}
    canceled_at timestamptz,                -- kept for its outcome's sake only
    reason text,
    duplicate_of uuid
);
CREATE INDEX intake_due ON qo.intake (queue, due_at, id) WHERE canceled_at IS NULL;
CREATE INDEX intake_due_by_key ON qo.intake (queue, key, due_at, id) WHERE canceled_at IS NULL AND key IS NOT NULL;
CREATE INDEX intake_canceled ON qo.intake (canceled_at) WHERE canceled_at IS NOT NULL;

-- Where a group stands in a lane. A keyed cursor is ready, leased, blocked or idle; an open one ready (fresh messages)
-- or idle. head_* describe the message at a keyed cursor's position; a ready one without head_kind was left by someone
-- who could not look (the lane was locked), and whoever claims next looks. due_at is when time changes a keyed cursor.
CREATE TABLE qo.cursors (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    lane_id bigint NOT NULL,
    group_id bigint NOT NULL,
    keyed boolean NOT NULL,
    state text NOT NULL DEFAULT 'idle',
    position bigint NOT NULL,               -- an open cursor's floor
    epoch integer NOT NULL DEFAULT 0,
    attempts integer NOT NULL DEFAULT 0,
    losses integer NOT NULL DEFAULT 0,
    head_kind text COLLATE "C",
    head_priority integer,
    head_entered_at timestamptz,
    due_at timestamptz,
    missed bigint NOT NULL DEFAULT 0,
    hold double precision NOT NULL DEFAULT 0  -- a keyed lane is held back so long after its first message, in seconds; 0: not at all
);
CREATE UNIQUE INDEX cursors_in_lane ON qo.cursors (lane_id, group_id);
CREATE INDEX cursors_ready ON qo.cursors (group_id, head_priority DESC, head_entered_at, lane_id)
    WHERE keyed AND state = 'ready';
CREATE INDEX cursors_ready_by_kind ON qo.cursors (group_id, head_kind, head_priority DESC, head_entered_at, lane_id)
    WHERE keyed AND state = 'ready';
CREATE INDEX cursors_open_ready ON qo.cursors (group_id) WHERE NOT keyed AND state = 'ready';
CREATE INDEX cursors_busy ON qo.cursors (group_id) WHERE state <> 'idle';
CREATE INDEX cursors_due ON qo.cursors (group_id, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX cursors_missed ON qo.cursors (group_id) WHERE missed > 0;

-- One row per claim and lane; written once, ended once. A claim that settled at delivery leaves an ended row, which
-- moves an open cursor and answers no settle.
CREATE TABLE qo.leases (
    token text COLLATE "C" NOT NULL,
    lane_id bigint NOT NULL,
    cursor_id bigint NOT NULL,
    group_id bigint NOT NULL,
    epoch integer,                          -- the open cursor's; NULL: of a keyed lane, whose cursor keeps its position
    first bigint NOT NULL,
    last bigint NOT NULL,
    from_offset bigint NOT NULL,
    to_offset bigint NOT NULL,
    settled int8multirange NOT NULL DEFAULT '{}',   -- of an open lane; a keyed run is settled below from_offset
    retried bigint[] NOT NULL DEFAULT '{}',
    canceled bigint[] NOT NULL DEFAULT '{}',
    started jsonb,                          -- offset -> when it started
    fragile bigint,                         -- the offset of a message with two losses or more, while unsettled
    owner text,
    at_delivery boolean NOT NULL DEFAULT false,
    claimed_at timestamptz NOT NULL,
    heartbeat_at timestamptz,
    expires_at timestamptz NOT NULL,
    ended_at timestamptz,
    PRIMARY KEY (token, lane_id)
);
CREATE INDEX leases_to_expire ON qo.leases (group_id, expires_at) WHERE ended_at IS NULL;
CREATE INDEX leases_of_cursor ON qo.leases (cursor_id, epoch, last) WHERE epoch IS NOT NULL;
CREATE INDEX leases_live ON qo.leases (cursor_id) WHERE ended_at IS NULL;
CREATE INDEX leases_fragile ON qo.leases (owner, expires_at) WHERE fragile IS NOT NULL AND ended_at IS NULL;
CREATE INDEX leases_ended ON qo.leases (ended_at) WHERE ended_at IS NOT NULL;

-- What a token settled, and as what: a row per settle call, lease and verdict.
CREATE TABLE qo.settlements (
    token text COLLATE "C" NOT NULL,
    lane_id bigint NOT NULL,
    verdict text NOT NULL,
    offsets int8multirange NOT NULL
);
CREATE INDEX settlements_of_token ON qo.settlements (token, lane_id);

-- Messages of open lanes that wait for their next attempt, or are claimed for it.
CREATE TABLE qo.retries (
    cursor_id bigint NOT NULL,
    "offset" bigint NOT NULL,
    group_id bigint NOT NULL,
    attempts integer NOT NULL,
    losses integer NOT NULL,
    due_at timestamptz NOT NULL,
    entered_at timestamptz NOT NULL,
    token text COLLATE "C",                 -- while it is claimed
    PRIMARY KEY (cursor_id, "offset")
);
CREATE INDEX retries_due ON qo.retries (group_id, due_at) WHERE token IS NULL;
CREATE INDEX retries_waiting ON qo.retries (cursor_id, due_at, "offset") WHERE token IS NULL;
CREATE INDEX retries_claimed ON qo.retries (cursor_id, token) WHERE token IS NOT NULL;

CREATE TABLE qo.skips (
    cursor_id bigint NOT NULL,
    "offset" bigint NOT NULL,
    PRIMARY KEY (cursor_id, "offset")
);

CREATE TABLE qo.dedupe (
    queue_id bigint NOT NULL,
    scope text COLLATE "C" NOT NULL,        -- '' for the queue, else the lane
    key text COLLATE "C" NOT NULL,
    message_id uuid NOT NULL,
    until timestamptz,                      -- NULL: until the message is finished
    checked_at timestamptz NOT NULL,        -- when housekeeping should look at it
    PRIMARY KEY (queue_id, scope, key)
);
CREATE INDEX dedupe_to_check ON qo.dedupe (checked_at);

CREATE TABLE qo.dead_letters (
    id uuid NOT NULL,
    queue_id bigint NOT NULL,
    group_id bigint NOT NULL,
    key text,
    kind text NOT NULL,
    priority integer NOT NULL,
    payload bytea NOT NULL,
    headers text,
    attempts integer NOT NULL,
    losses integer NOT NULL,
    reason text NOT NULL,
    error text NOT NULL,
    created_at timestamptz NOT NULL,
    died_at timestamptz NOT NULL,
    PRIMARY KEY (group_id, id)
);
CREATE INDEX dead_letters_in_queue ON qo.dead_letters (queue_id, id);

-- The default group's record of finished messages, and of attempts that failed before (state `queued`). Insert-only.
CREATE TABLE qo.outcomes (
    lane_id bigint NOT NULL,
    "offset" bigint NOT NULL,
    finished_at timestamptz NOT NULL,
    state text NOT NULL,
    reason text,
    error text,
    result bytea,
    attempt integer NOT NULL,
    owner text,
    started_at timestamptz,
    PRIMARY KEY (lane_id, "offset", finished_at)
);

CREATE TABLE qo.events (
    message_id uuid NOT NULL,
    number bigint GENERATED ALWAYS AS IDENTITY,
    at timestamptz NOT NULL,
    state text NOT NULL,
    detail text NOT NULL,
    PRIMARY KEY (message_id, number)
);

-- "All below this offset was settled by then", a few per lane, for `retain`.
CREATE TABLE qo.marks (
    lane_id bigint NOT NULL,
    at timestamptz NOT NULL,
    "offset" bigint NOT NULL,
    PRIMARY KEY (lane_id, at)
);

CREATE TABLE qo.nonces (
    nonce text COLLATE "C" PRIMARY KEY,
    at timestamptz NOT NULL,
    answer text NOT NULL
);
CREATE INDEX nonces_by_age ON qo.nonces (at);

-- Messages whose end somebody awaits, in any process.
CREATE TABLE qo.watched (
    message_id uuid PRIMARY KEY,
    until timestamptz NOT NULL
);
CREATE INDEX watched_by_age ON qo.watched (until);

-- Append-only tables never need a vacuum for dead rows, only for the age of their ids; the others are small and change
-- all the time, so they are vacuumed by number of dead rows rather than by share.
ALTER TABLE qo.messages SET (autovacuum_vacuum_insert_scale_factor = 0.2);
ALTER TABLE qo.leases SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, fillfactor = 70);
ALTER TABLE qo.cursors SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, fillfactor = 70);
ALTER TABLE qo.retries SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, fillfactor = 70);
ALTER TABLE qo.intake SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
ALTER TABLE qo.skips SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
ALTER TABLE qo.tidying SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, fillfactor = 70);

-- A payload as text, for people: JSON as it is, other bytes escaped.
CREATE FUNCTION qo.as_text(p_payload bytea) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN convert_from(p_payload, 'UTF8');
EXCEPTION WHEN OTHERS THEN
    RETURN encode(p_payload, 'escape');
END $$;

-- What consumers noted about messages.
CREATE TABLE qo.traces (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id text NOT NULL,
    queue text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,         -- the message's, in its lane
    group_name text NOT NULL,
    names text[] NOT NULL,
    event text NOT NULL,
    data bytea NOT NULL,
    created_at timestamptz NOT NULL
);
CREATE INDEX traces_of_message ON qo.traces (queue, key, name, number);
CREATE INDEX traces_by_age ON qo.traces (created_at);

CREATE TABLE qo.trace_names (
    name text COLLATE "C" NOT NULL,
    number bigint NOT NULL REFERENCES qo.traces ON DELETE CASCADE,
    PRIMARY KEY (name, number)
);
CREATE INDEX trace_names_of_trace ON qo.trace_names (number);

-- The keys that payloads are sealed with. One that the operator keeps has no value here.
CREATE TABLE qo.sealing_keys (
    id text PRIMARY KEY,
    value bytea,
    created_at timestamptz NOT NULL
);

-- Workers that registered, and what they said last. `kept`: a session vouches for them with an advisory lock.
CREATE TABLE qo.workers (
    id text COLLATE "C" PRIMARY KEY,
    said jsonb NOT NULL,
    seen_at timestamptz NOT NULL,
    kept boolean NOT NULL
);

-- What is arranged rather than moved: tokens, schedules and the like. A change names the version that it is about.
CREATE TABLE qo.records (
    kind text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    due_at timestamptz,
    body bytea NOT NULL,
    PRIMARY KEY (kind, name)
);
CREATE INDEX records_due ON qo.records (kind, due_at, name) WHERE due_at IS NOT NULL;

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
       CASE WHEN f.error IS NULL THEN o.finished_at END AS finished_at, o.reason, coalesce(f.error, o.error) AS error, qo.as_text(o.result) AS result, o.result AS result_bytes, s.payload AS payload_bytes, s.headers,
       s.lane_id, s."offset"
FROM standing s
LEFT JOIN LATERAL (SELECT * FROM qo.outcomes o WHERE o.lane_id = s.lane_id AND o."offset" = s."offset" AND o.state <> 'queued'
                   ORDER BY o.finished_at DESC LIMIT 1) o ON true
LEFT JOIN LATERAL (SELECT e.*, (NOT s.keyed OR s."offset" = e.from_offset)
                       AND EXISTS (SELECT FROM qo.workers w WHERE w.id = e.owner) AS runs FROM qo.leases e WHERE e.cursor_id = s.cursor_id AND e.ended_at IS NULL
                   AND (e.token = s.retry_token OR (s.retry IS NULL AND s."offset" >= e.from_offset
                        AND s."offset" < e.to_offset AND NOT e.settled @> s."offset")) LIMIT 1) e ON true
-- Why the last attempt failed, of a message that was tried and is not finished.
LEFT JOIN LATERAL (SELECT o.error FROM qo.outcomes o WHERE o.lane_id = s.lane_id AND o."offset" = s."offset" AND o.state = 'queued'
                   AND coalesce(s.retry_attempts, CASE WHEN s."offset" = coalesce(e.from_offset, s.position) THEN s.head_attempts END) > 0
                   ORDER BY o.finished_at DESC LIMIT 1) f ON true;

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
