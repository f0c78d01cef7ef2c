"""A synchronous client for batch writers: one request at a time, many records in each.

    http.py       put, state, append and ready over a urllib3 pool that obeys Retry-After
    chunks.py     cuts a stream of encoded records into request bodies, by count and bytes alone
    keys.py       the idempotency key of a chunk, the same in every attempt
    errors.py     RequestError: what the server said and what to do about it

It imports no module of the server and none of Spark, so an executor loads it in milliseconds.
"""
