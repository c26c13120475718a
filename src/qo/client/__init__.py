"""What users hold in their hands: queues, deliveries and jobs, async and sync.

Everything here is a thin, typed shell over a broker: one in this process, or
one behind a server. It turns Python values into messages and answers into
exceptions, and keeps no state of its own.
"""
