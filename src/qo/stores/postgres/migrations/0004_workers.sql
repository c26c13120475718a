-- Workers that registered, and what they said last. `kept`: a session vouches for them with an advisory lock.
CREATE TABLE qo.workers (
    id text COLLATE "C" PRIMARY KEY,
    said jsonb NOT NULL,
    seen_at timestamptz NOT NULL,
    kept boolean NOT NULL
);
