"""A broker behind a server: what a client holds when it was given an http:// URL.

Every call may be made again after a lost answer without doing anything twice: messages bring their ids, units
and arrangements carry a key that the store remembers, settles and extends are repeatable by nature, and a claim
whose answer was lost is made anew under another token (what the first one took comes back when its lease is over).
"""
