"""Idempotency keys of chunks (§0.8): equal for equal work, in every attempt.

The key is made of the job, the partition, the chunk's number in it and the chunk's bytes. A task
that is retried and a job that is run again send the same keys, so the server answers with the first
answer and appends nothing. The bytes are part of the key because a retry may see other rows (a
nondeterministic query): these are appended again, which a reader can notice. A key without the
bytes would drop them, which no reader can notice.
"""

from __future__ import annotations

from hashlib import blake2b


def chunk_key(scope: str, topic: str, partition: int, number: int, count: int, body: bytes) -> str:
    """The key of chunk ``number`` of ``partition``: ASCII, 46 characters. ``body`` is the whole
    request body, so another ``node`` is another write.
    """
    content = blake2b(body, digest_size=20).hexdigest()
    # repr() quotes the two free texts, so no scope can be written that looks like another scope
    # with other numbers.
    named = repr((scope, topic, partition, number, count, content))
    return "spark-" + blake2b(named.encode(), digest_size=20).hexdigest()
