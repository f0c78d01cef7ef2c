"""Route names: the routes by their numbers, and the statuses by theirs, as counters have them.

Both tables are append only while a server runs: a front that is restarted goes on with the words of
its predecessor (`topics.actors.link.counters`). A table here may grow, and nothing in it moves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

OTHER_ROUTE: Final = 0  # of a request that no route has: malformed, of an unknown path, a preflight
OTHER_STATUS: Final = 0  # no answer was sent, or one with a status that the table lacks

# Append only.
ROUTE_NAMES: Final = (
    "other",
    "append",
    "diff",
    "topic.delete_records",
    "queue.claim",
    "queue.ack",
    "queue.nack",
    "queue.extend",
    "queue.work",
    "queue.leases",
    "queue.redrive",
    "topic.put",
    "topic.get",
    "topic.delete",
    "topic.list",
    "router.put",
    "router.get",
    "router.delete",
    "router.list",
    "watch",
    "watch.open",
    "ws",
    "health",
    "ready",
    "root",
    "metrics",
    "watch.topics",
    "console",
    "spec",
    "backup",
    "backup.changes",
)
# Append only.
STATUSES: Final = (
    *(0, 101, 200, 201, 204, 400, 401, 403, 404, 405, 406, 409, 413, 415, 422, 426, 429, 500),
    503,
    304,
)
STATUS_NAMES: Final = ("other", *map(str, STATUSES[1:]))
ROUTE_INDEXES: Final[Mapping[str, int]] = {name: n for n, name in enumerate(ROUTE_NAMES)}
STATUS_INDEXES: Final[Mapping[int, int]] = {status: n for n, status in enumerate(STATUSES)}
