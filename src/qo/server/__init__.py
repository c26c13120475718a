"""The server: HTTP in front of one broker.

A request comes in through `protocol` (which cuts off who is too slow or too
large), is given to `app`, finds its `route`, passes the `authenticator`, and is handled
by a function in `routes` that translates it into a call of the broker and the
answer back. What the server promises is the broker's to keep; routes stay thin.

A claim that waits holds its connection and one small task that notices when the
client hangs up. Then the call is cancelled, and the broker gives back what it got.
"""
