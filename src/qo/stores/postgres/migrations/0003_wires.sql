-- What other systems' wires need: lanes that are held back for a while, traces, and the keys that payloads are sealed with.

-- How long a keyed cursor's lane is held back after its first message, in seconds, from the queue's window; 0: not at all.
ALTER TABLE qo.cursors ADD COLUMN hold double precision NOT NULL DEFAULT 0;

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
