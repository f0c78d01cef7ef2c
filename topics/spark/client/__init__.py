"""A synchronous client for batch jobs: one request at a time, many records in each.

    http.py       put, state, append, diff, names, ready; a urllib3 pool that obeys Retry-After
    ranges.py     the records between two seqs, and what of them is lost
    servers.py    several servers as one: which of them has a topic
    chunks.py     cuts a stream of encoded records into request bodies, by count and bytes alone
    keys.py       the idempotency key of a chunk, the same in every attempt
    errors.py     RequestError: what the server said and what to do about it

It imports no module of the server and none of Spark, so an executor loads it in milliseconds.
"""
