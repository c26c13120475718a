"""Queen's wire in our words: what its clients say and want to hear, and what that is here.

A partition is a keyed lane, `Default` among them; `__QUEUE_MODE__` is the default
group; a transactionId is a message's name in its lane; a leaseId is a lease's
token. Key spelling, mixed as it is, is part of the contract.
"""
