"""One process's access to a store: it batches calls, holds waiters and runs timers.

Calls meet here. While a commit is under way, further calls of the same verb
gather and go out together in the next one; nothing lingers when idle. A claim
that finds nothing becomes a waiter: a line in memory that holds no thread, no
connection and no store call, until a hint or its ask-again time makes it ask
again. The store is authoritative for everything; the broker remembers only who
waits. If the process dies, nothing but waiting is lost.
"""
