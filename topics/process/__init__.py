"""The processes of a server: how they are started, watched, restarted and stopped.

The modules in the order in which startup uses them: `boot` reads the settings and the keys. `serve`
creates the resources that the processes share. `supervisor` is the main loop of the parent process;
it manages its child processes (`family`) and checks that they are alive (`health`). `front` and
`shard_writer` are the main functions of the child processes.
"""

import sys

from topics.imports import lazily, load_compiled, without_packages

# Decoders are recursive, and a JSON body may be nested 900 levels deep
# (`topics.formats.api.nesting`). Python's default limit of 1,000 frames is too small for that.
RECURSION_LIMIT = 3000
sys.setrecursionlimit(max(sys.getrecursionlimit(), RECURSION_LIMIT))

load_compiled("crc32c", "_crc32c")
# msgspec and structlog import these packages only for rich tracebacks, asynchronous loggers and
# older Python versions. The server uses none of these features, so it skips the imports.
with without_packages("rich", "greenlet", "typing_extensions"), lazily("asyncio"):
    import msgspec  # noqa: F401
    import structlog  # noqa: F401
