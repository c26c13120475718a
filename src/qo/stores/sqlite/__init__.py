"""qo in one SQLite file.

SQLite has one writer at a time, so a verb sees the whole store to itself from
`BEGIN IMMEDIATE` to its commit: no row locks, no lock order, no races inside a
commit. What is left to get right is the model, and that is what the files here
are named for. `session.py` owns the connection and gathers calls into commits;
`transaction.py` is what a verb works with; every other file is a verb or a word
of the model. Two processes on one file take turns by SQLite's own lock.

Time moves the model too: leases run out, backoffs end, intake falls due. Nobody
watches for that. A claim first brings its group up to date (`advance.py`), and an
empty claim says when the next such moment comes. Effects of time are worked out
from the deadline, not from when somebody looked, so looking late changes nothing.
"""
