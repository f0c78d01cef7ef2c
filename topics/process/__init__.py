"""The processes of a server, in the order of a start: `boot` reads settings and keys, `serve` makes
what the processes share, `supervisor` is the parent's loop, over its `family` of children and their
`health`; `front` and `shard_writer` are what the children run.
"""

import sys

from topics.imports import compiled, later, without

# Decoders are recursive, and a payload may have 900 levels (`topics.formats.api.nesting`).
RECURSION_LIMIT = 3000
sys.setrecursionlimit(max(sys.getrecursionlimit(), RECURSION_LIMIT))

compiled("crc32c", "_crc32c")
# For tracebacks that no log shows, loggers that wait, and older versions of Python.
with without("rich", "greenlet", "typing_extensions"), later("asyncio"):
    import msgspec  # noqa: F401
    import structlog  # noqa: F401
