"""The processes of a server, in the order of a start: `boot` reads settings and keys, `serve` makes
what the processes share, `supervisor` is the parent's loop, over its `family` of children and their
`health`; `front` and `shard_writer` are what the children run.
"""

import sys

# structlog imports rich where that is installed, for tracebacks that no log shows: 90 ms and 3 MB.
if "rich" not in sys.modules:
    sys.modules["rich"] = None  # type: ignore[assignment]  # "not installed", until structlog is
    import structlog  # noqa: F401

    del sys.modules["rich"]  # whoever prints for people may import it
