-- Workers that registered: what they said last, and the process that vouches for them.
CREATE TABLE workers (
    id TEXT PRIMARY KEY,
    said TEXT NOT NULL,
    seen_at INTEGER NOT NULL,
    keeper_host TEXT,
    keeper_pid INTEGER,
    keeper_start TEXT            -- of the process; a pid may be another's by now
) STRICT, WITHOUT ROWID;
