-- The foundation: queues, lanes, messages, groups, and what moves through them.
--
-- Append-only: messages, settlements, outcomes, events. Mutable and small:
-- cursors, leases, retries, skips, intake. Times are microseconds since 1970,
-- UTC. Ids are the 16 bytes of a UUIDv7. AUTOINCREMENT where an id must never
-- be given out twice, because a token or a receipt may still name the old one.

CREATE TABLE queues (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    namespace TEXT NOT NULL,
    task TEXT NOT NULL,
    settings TEXT NOT NULL,      -- JSON: what differs from the defaults
    paused INTEGER NOT NULL DEFAULT 0,
    created_at INTEGER NOT NULL
) STRICT;
CREATE INDEX queues_by_namespace ON queues (namespace, task);
CREATE INDEX queues_by_task ON queues (task);

CREATE TABLE groups (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    queue_id INTEGER NOT NULL,
    name TEXT NOT NULL,
    start_at TEXT NOT NULL,      -- all, new, time
    start_time INTEGER,
    created_at INTEGER NOT NULL,
    claimed_at INTEGER,          -- written at most once an hour
    UNIQUE (queue_id, name)
) STRICT;

-- Groups made through a filter: they join matching queues as these appear.
CREATE TABLE group_filters (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    namespace TEXT,
    task TEXT,
    start_at TEXT NOT NULL,
    start_time INTEGER
) STRICT;

CREATE TABLE lanes (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    queue_id INTEGER NOT NULL,
    key TEXT,                    -- a keyed lane has a key,
    kind TEXT,                   -- an open lane has a kind
    priority INTEGER,            -- and a priority
    first INTEGER NOT NULL DEFAULT 0,   -- the oldest offset that is retained
    tail INTEGER NOT NULL DEFAULT 0,    -- the next offset to give out
    entered_at INTEGER NOT NULL DEFAULT 0,  -- of the newest message; never runs backwards
    tidy_at INTEGER              -- when housekeeping should look; NULL: nothing to remove
) STRICT;
CREATE UNIQUE INDEX lanes_keyed ON lanes (queue_id, key) WHERE key IS NOT NULL;
CREATE UNIQUE INDEX lanes_open ON lanes (queue_id, kind, priority) WHERE key IS NULL;
CREATE INDEX lanes_by_queue ON lanes (queue_id);
CREATE INDEX lanes_to_tidy ON lanes (tidy_at) WHERE tidy_at IS NOT NULL;

-- Rows are numbered in the order of commits and have no index of their own: a
-- pushed batch is found through one row of each of the next two tables
-- (decisions/0006).
CREATE TABLE messages (
    row INTEGER PRIMARY KEY,
    lane_id INTEGER NOT NULL,
    offset INTEGER NOT NULL,
    id BLOB NOT NULL,
    kind TEXT,                   -- NULL: the open lane's
    priority INTEGER,            -- NULL: the open lane's
    payload BLOB NOT NULL,
    headers TEXT,
    created_at INTEGER NOT NULL,
    due_at INTEGER,              -- NULL: when it was created
    entered_at INTEGER NOT NULL,
    expires_at INTEGER,
    group_id INTEGER,            -- addressed to this group alone (a retried dead letter)
    retry_of BLOB
) STRICT;

-- Where a lane's messages lie: from offset `first` on in rows from `row` on, up to
-- the lane's next stretch or its tail.
CREATE TABLE stretches (
    lane_id INTEGER NOT NULL,
    first INTEGER NOT NULL,
    row INTEGER NOT NULL,
    PRIMARY KEY (lane_id, first)
) STRICT, WITHOUT ROWID;

CREATE VIEW spans AS
SELECT s.lane_id, s.first, s.row,
       coalesce((SELECT min(n.first) FROM stretches n WHERE n.lane_id = s.lane_id AND n.first > s.first),
                (SELECT tail FROM lanes l WHERE l.id = s.lane_id)) AS last
FROM stretches s;

-- Where an id lies: `count` ids that count up from `first` to `last` came in rows from `row` on. `kept` of their
-- messages are there still; the rows of others may be given out again.
CREATE TABLE id_runs (
    first BLOB PRIMARY KEY,
    last BLOB NOT NULL,
    count INTEGER NOT NULL,
    kept INTEGER NOT NULL,
    row INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The few messages that are addressed to one group; a partial index would cost every push (decisions/0002).
CREATE TABLE addressed (
    lane_id INTEGER NOT NULL,
    offset INTEGER NOT NULL,
    group_id INTEGER NOT NULL,
    PRIMARY KEY (lane_id, offset)
) STRICT, WITHOUT ROWID;

CREATE TABLE intake (
    id BLOB PRIMARY KEY,
    queue_id INTEGER NOT NULL,
    key TEXT,
    kind TEXT NOT NULL,
    priority INTEGER NOT NULL,
    payload BLOB NOT NULL,
    headers TEXT,
    created_at INTEGER NOT NULL,
    due_at INTEGER NOT NULL,
    expires_at INTEGER,
    canceled_at INTEGER,         -- kept for its outcome's sake only
    reason TEXT
) STRICT;
CREATE INDEX intake_due ON intake (queue_id, due_at, id) WHERE canceled_at IS NULL;
CREATE INDEX intake_due_by_key ON intake (queue_id, key, due_at, id) WHERE canceled_at IS NULL AND key IS NOT NULL;
CREATE INDEX intake_canceled ON intake (canceled_at) WHERE canceled_at IS NOT NULL;

-- Where a group stands in a lane. A keyed cursor is ready, leased, blocked or
-- idle; an open one ready (fresh messages) or idle. Idle: nothing claimable from
-- position to the lane's tail. head_* describe the message at the position.
-- due_at is when time changes this cursor: a blocked head's backoff ends, a
-- ready keyed head's time to live runs out, an open lane's first retry falls due.
CREATE TABLE cursors (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    lane_id INTEGER NOT NULL,
    group_id INTEGER NOT NULL,
    keyed INTEGER NOT NULL,
    state TEXT NOT NULL DEFAULT 'idle',
    position INTEGER NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    losses INTEGER NOT NULL DEFAULT 0,
    head_kind TEXT,
    head_priority INTEGER,
    head_entered_at INTEGER,
    due_at INTEGER,
    missed INTEGER NOT NULL DEFAULT 0,
    hold INTEGER NOT NULL DEFAULT 0  -- a keyed lane is held back so long after its first message; 0: not at all
) STRICT;
CREATE UNIQUE INDEX cursors_in_lane ON cursors (lane_id, group_id);
CREATE INDEX cursors_ready ON cursors (group_id, head_priority DESC, head_entered_at, lane_id) WHERE state = 'ready';
CREATE INDEX cursors_ready_by_kind ON cursors (group_id, head_kind, head_priority DESC, head_entered_at, lane_id)
    WHERE state = 'ready';
CREATE INDEX cursors_busy ON cursors (group_id) WHERE state <> 'idle';
CREATE INDEX cursors_due ON cursors (group_id, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX cursors_missed ON cursors (group_id) WHERE missed > 0;

-- One row per claim and lane. The range is [first, last); a release cuts to_offset
-- below last. settled is a bit per offset from first (open lanes); a keyed run is
-- settled below from_offset. Kept for ten minutes after it ended, so that a late
-- settle can be told lost from unknown.
CREATE TABLE leases (
    token TEXT NOT NULL,
    lane_id INTEGER NOT NULL,
    cursor_id INTEGER NOT NULL,
    group_id INTEGER NOT NULL,
    first INTEGER NOT NULL,
    last INTEGER NOT NULL,
    from_offset INTEGER NOT NULL,
    to_offset INTEGER NOT NULL,
    settled BLOB,
    retried TEXT,                -- JSON: offsets of the retries that were claimed with it
    canceled TEXT,               -- JSON: offsets whose holder is to be told
    started TEXT,                -- JSON: offset -> when it started
    fragile INTEGER,             -- the offset of a message with two losses or more, while unsettled
    owner TEXT,
    claimed_at INTEGER NOT NULL,
    heartbeat_at INTEGER,
    expires_at INTEGER NOT NULL,
    ended_at INTEGER,
    PRIMARY KEY (token, lane_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX leases_to_expire ON leases (group_id, expires_at) WHERE ended_at IS NULL;
CREATE INDEX leases_live ON leases (cursor_id) WHERE ended_at IS NULL;
CREATE INDEX leases_fragile ON leases (owner, expires_at) WHERE fragile IS NOT NULL AND ended_at IS NULL;
CREATE INDEX leases_ended ON leases (ended_at) WHERE ended_at IS NOT NULL;

-- What a token settled, and as what: a row per settle call and lease.
CREATE TABLE settlements (
    token TEXT NOT NULL,
    lane_id INTEGER NOT NULL,
    number INTEGER NOT NULL,
    verdicts TEXT NOT NULL,      -- JSON: [[from, to, verdict], ...]
    PRIMARY KEY (token, lane_id, number)
) STRICT, WITHOUT ROWID;

-- Messages of open lanes that wait for their next attempt, or are claimed for it.
CREATE TABLE retries (
    cursor_id INTEGER NOT NULL,
    offset INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    losses INTEGER NOT NULL,
    due_at INTEGER NOT NULL,
    entered_at INTEGER NOT NULL,
    token TEXT,                  -- while it is claimed
    PRIMARY KEY (cursor_id, offset)
) STRICT, WITHOUT ROWID;
CREATE INDEX retries_due ON retries (cursor_id, due_at, offset) WHERE token IS NULL;
CREATE INDEX retries_claimed ON retries (cursor_id, token) WHERE token IS NOT NULL;

CREATE TABLE skips (
    cursor_id INTEGER NOT NULL,
    offset INTEGER NOT NULL,
    PRIMARY KEY (cursor_id, offset)
) STRICT, WITHOUT ROWID;

CREATE TABLE dedupe (
    queue_id INTEGER NOT NULL,
    scope TEXT NOT NULL,         -- '' for the queue, else the lane
    key TEXT NOT NULL,
    message_id BLOB NOT NULL,
    until INTEGER,               -- NULL: until the message is finished
    checked_at INTEGER NOT NULL, -- when housekeeping should look at it
    PRIMARY KEY (queue_id, scope, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX dedupe_to_check ON dedupe (checked_at);

CREATE TABLE dead_letters (
    id BLOB NOT NULL,
    queue_id INTEGER NOT NULL,
    group_id INTEGER NOT NULL,
    key TEXT,
    kind TEXT NOT NULL,
    priority INTEGER NOT NULL,
    payload BLOB NOT NULL,
    headers TEXT,
    attempts INTEGER NOT NULL,
    losses INTEGER NOT NULL,
    reason TEXT NOT NULL,
    error TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    died_at INTEGER NOT NULL,
    PRIMARY KEY (group_id, id)
) STRICT;
CREATE INDEX dead_letters_in_queue ON dead_letters (queue_id, id);

-- The default group's record of finished messages, and of attempts that failed before (state `queued`). Insert-only.
CREATE TABLE outcomes (
    lane_id INTEGER NOT NULL,
    offset INTEGER NOT NULL,
    finished_at INTEGER NOT NULL,
    state TEXT NOT NULL,
    reason TEXT,
    error TEXT,
    result BLOB,
    attempt INTEGER NOT NULL,
    owner TEXT,
    started_at INTEGER,
    PRIMARY KEY (lane_id, offset, finished_at)
) STRICT, WITHOUT ROWID;

CREATE TABLE events (
    message_id BLOB NOT NULL,
    at INTEGER NOT NULL,
    number INTEGER NOT NULL,
    state TEXT NOT NULL,
    detail TEXT NOT NULL,
    PRIMARY KEY (message_id, at, number)
) STRICT, WITHOUT ROWID;

-- "All below this offset was settled by then", a few per lane, for `retain`.
CREATE TABLE marks (
    lane_id INTEGER NOT NULL,
    at INTEGER NOT NULL,
    offset INTEGER NOT NULL,
    PRIMARY KEY (lane_id, at)
) STRICT, WITHOUT ROWID;

CREATE TABLE nonces (
    nonce TEXT PRIMARY KEY,
    at INTEGER NOT NULL,
    answer TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX nonces_by_age ON nonces (at);

-- What consumers noted about messages.
CREATE TABLE traces (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL,
    queue TEXT NOT NULL,
    key TEXT NOT NULL,
    name TEXT NOT NULL,          -- the message's, in its lane
    group_name TEXT NOT NULL,
    names TEXT NOT NULL,         -- JSON
    event TEXT NOT NULL,
    data BLOB NOT NULL,
    created_at INTEGER NOT NULL
) STRICT;
CREATE INDEX traces_of_message ON traces (queue, key, name, number);
CREATE INDEX traces_by_age ON traces (created_at);

CREATE TABLE trace_names (
    name TEXT NOT NULL,
    number INTEGER NOT NULL,
    PRIMARY KEY (name, number)
) STRICT, WITHOUT ROWID;

-- The keys that payloads are sealed with. One that the operator keeps has no value here.
CREATE TABLE sealing_keys (
    id TEXT PRIMARY KEY,
    value BLOB,
    created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Workers that registered: what they said last, and the process that vouches for them.
CREATE TABLE workers (
    id TEXT PRIMARY KEY,
    said TEXT NOT NULL,
    seen_at INTEGER NOT NULL,
    keeper_host TEXT,
    keeper_pid INTEGER,
    keeper_start TEXT            -- of the process; a pid may be another's by now
) STRICT, WITHOUT ROWID;

-- What is arranged rather than moved: tokens, schedules and the like. A change names the version that it is about.
CREATE TABLE records (
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    version INTEGER NOT NULL,
    due_at INTEGER,
    body BLOB NOT NULL,
    PRIMARY KEY (kind, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX records_due ON records (kind, due_at, name) WHERE due_at IS NOT NULL;

-- The messages in lanes, as the default group sees them.
CREATE VIEW lane_jobs AS
WITH standing AS (
    SELECT m.row, m.id, m.lane_id, m.offset, q.name AS queue, coalesce(m.kind, l.kind) AS kind, l.key, m.payload, m.headers,
           m.created_at, coalesce(m.due_at, m.created_at) AS due_at, c.id AS cursor_id, c.position, c.state AS cursor_state,
           c.attempts AS head_attempts, r.attempts AS retry_attempts, r.offset AS retry, r.token AS retry_token,
           (SELECT 1 FROM skips s WHERE s.cursor_id = c.id AND s.offset = m.offset) AS skipped,
           (SELECT max(finished_at) FROM outcomes o WHERE o.lane_id = m.lane_id AND o.offset = m.offset AND o.state <> 'queued') AS finished_at,
           (SELECT max(finished_at) FROM outcomes o WHERE o.lane_id = m.lane_id AND o.offset = m.offset AND o.state = 'queued') AS failed_at,
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
       iif(f.error IS NULL, o.finished_at, NULL) AS finished_at, o.reason, coalesce(f.error, o.error) AS error, CAST(o.result AS TEXT) AS result, o.result AS result_bytes, s.payload AS payload_bytes, s.headers, s.id AS message_id, s.row
FROM standing s
LEFT JOIN outcomes o ON o.lane_id = s.lane_id AND o.offset = s.offset AND o.finished_at = s.finished_at
LEFT JOIN leases e ON e.token = s.token AND e.lane_id = s.lane_id
LEFT JOIN workers w ON w.id = e.owner AND (s.key IS NULL OR s.offset = e.from_offset)
-- Why the last attempt failed, of a message that was tried and is not finished.
LEFT JOIN outcomes f ON f.lane_id = s.lane_id AND f.offset = s.offset AND f.finished_at = s.failed_at
    AND coalesce(s.retry_attempts, iif(s.offset = coalesce(e.from_offset, s.position), s.head_attempts, 0)) > 0;

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
