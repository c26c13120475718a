"""Workers: they claim what they have free slots for, run tasks, and settle.

Two event loops. Tasks run on the user's: async ones there, sync ones in threads,
`cpu` ones in processes. The fetcher runs on a loop in a thread of its own:
claims, settles, and the keeping of leases. So a task that blocks the user's loop
does not lose its lease. Between the two things are handed over in batches.

A slot runs one message at a time. A claim takes one message of each keyed lane, so
what has the same key runs in sequence, across all workers, with no bookkeeping
here; a settle claims on in the same call, so that a key's next message is there when
the last is done.
"""
