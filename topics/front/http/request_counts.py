"""Request counts: request ids, and the request metrics of a front."""

from __future__ import annotations

import secrets
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Final

from topics.actors.link.counters import LATENCY_BOUNDS_US
from topics.formats.api.route_names import OTHER_STATUS, ROUTE_NAMES, STATUS_INDEXES, STATUSES

RECEIVED: Final = len(STATUSES)
SENT: Final = RECEIVED + 1
SECONDS: Final = SENT + 1
BUCKETS: Final = SECONDS + 1
_WIDTH: Final = BUCKETS + len(LATENCY_BOUNDS_US) + 1
_BOUNDS_S: Final = [bound / 1e6 for bound in LATENCY_BOUNDS_US]
RANDOM_BYTES = 6  # length of the prefix that makes the ids of different processes distinct


class RequestIds:
    """Request ids of this process: a random prefix and a number."""

    def __init__(self) -> None:
        self.prefix = secrets.token_hex(RANDOM_BYTES).encode("ascii") + b"-"
        self.numbers = count(1)

    def line(self) -> bytes:
        """Return a header line with the next id."""
        return b"x-request-id: %b%x\r\n" % (self.prefix, next(self.numbers))


class RequestCounts:
    """Request metrics of a front since its startup. `values` returns them for the board.

    The measured time covers the entire request, including the waits of long polls and the duration
    of streams. Each route has one row, so that a request costs one look-up:

        0 ...            number of requests with each status, in the order of `STATUSES`
        RECEIVED, SENT   bytes of requests and responses, heads included
        SECONDS          the sum of the times, a float
        BUCKETS ...      number of requests up to each of `LATENCY_BOUNDS_US`, then above all bounds
    """

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows: list[list[float]] = [[0] * _WIDTH for _ in ROUTE_NAMES]

    def count(
        self, route_index: int, status: int, seconds: float, bytes_in: int, bytes_out: int
    ) -> None:
        """Count one finished request.

        ``route_index`` is from `ROUTE_INDEXES`. ``status`` is 0 if no response was sent.
        """
        row = self._rows[route_index]
        row[STATUS_INDEXES.get(status, OTHER_STATUS)] += 1
        row[RECEIVED] += bytes_in
        row[SENT] += bytes_out
        row[SECONDS] += seconds
        row[BUCKETS + bisect_left(_BOUNDS_S, seconds)] += 1

    def values(self) -> Mapping[str, Sequence[int]]:
        """Return the values of each metric, in the form that `CounterCells.store` takes."""
        rows = self._rows
        return {
            "topics_http_requests_total": [int(n) for row in rows for n in row[: len(STATUSES)]],
            "topics_http_received_bytes_total": [int(row[RECEIVED]) for row in rows],
            "topics_http_sent_bytes_total": [int(row[SENT]) for row in rows],
            "topics_http_request_duration_us": [n for row in rows for n in _histogram(row)],
        }


def _histogram(row: Sequence[float]) -> list[int]:
    buckets = [int(number) for number in row[BUCKETS:]]
    return [*buckets, int(row[SECONDS] * 1e6), sum(buckets)]
