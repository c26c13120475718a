"""What goes over HTTP: requests and replies, and how errors are told.

Both ends use the types here, so neither can say what the other does not
understand. Payloads are carried as the JSON that they are, byte for byte; what
is not JSON goes as base64. Durations are numbers with their unit in the name,
times are RFC 3339 with a time zone, ids are UUIDs as text.
"""
