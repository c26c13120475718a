-- What other systems' wires need: lanes that are held back for a while, traces, and the keys that payloads are sealed with.

-- How long a keyed cursor's lane is held back after its first message, from the queue's window; 0: not at all.
ALTER TABLE cursors ADD COLUMN hold INTEGER NOT NULL DEFAULT 0;

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
