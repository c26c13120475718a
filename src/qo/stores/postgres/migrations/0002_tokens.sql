-- Who may come in. A token's secret is kept as its digest only.
CREATE TABLE qo.tokens (
    id text COLLATE "C" PRIMARY KEY,
    name text NOT NULL,
    digest bytea NOT NULL,
    scopes text[] NOT NULL,
    prefixes text[] NOT NULL,
    created_at timestamptz NOT NULL,
    expires_at timestamptz
);
