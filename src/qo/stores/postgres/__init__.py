"""The PostgreSQL engine: one schema, shared by any number of processes.

A verb is a PL/pgSQL function in `sql/`, called in one round trip: it locks, then
looks, each in a statement of its own, because a statement's snapshot is older than
a lock that it waited for. The server's clock decides what is due. Rows that many
transactions touch are locked and not updated (see `migrations/`).

Order of locks: queue; dedupe keys, sorted; lanes by id; cursors by id; leases;
retries; tidying. Whoever holds a cursor never waits for a lane. What time does to a
group (intake, lost leases) is done in transactions of its own before a claim:
`qo.claim` looks, and says by a signal what must be done first.

`engine` has the verbs, `pool` the connections and what is retried, `listener` the
hints of other processes, `schema` the migrations.
"""
