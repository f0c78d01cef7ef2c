"""The processes of a server, in the order of a start: `boot` reads settings and keys, `serve` makes
what the processes share, `supervisor` is the parent's loop, over its `family` of children and their
`health`; `front` and `shard_writer` are what the children run.
"""

from topics.imports import without

with without("rich"):  # for tracebacks that no log shows: 90 ms and 3 MB
    import structlog  # noqa: F401
