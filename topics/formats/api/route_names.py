"""Route names: the numbers that counters use for routes and for response statuses.

Add new entries only at the end of these tables. A restarted front continues to use the counters of
its predecessor (`topics.actors.link.counters`), so the number of an entry must not change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

OTHER_ROUTE: Final = 0  # a malformed request, an unknown path, or a CORS preflight
OTHER_STATUS: Final = 0  # no response was sent, or its status is not in the table

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
