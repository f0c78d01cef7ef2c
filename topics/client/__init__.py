"""A small synchronous client for batch writers: one request at a time, many records a request, no
event loop.

    http.py       put, state, append and ready over a urllib3 pool that obeys Retry-After
    chunks.py     cuts a stream of encoded records into request bodies, by count and bytes alone
    keys.py       the idempotency key of a chunk, the same in every attempt
    errors.py     RequestError: what the server said and what to do about it

It imports nothing of the server and nothing of Spark, so an executor loads it in milliseconds.
"""
