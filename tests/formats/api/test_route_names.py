"""The numbers of routes and statuses."""

from __future__ import annotations

from http import HTTPStatus

from topics.formats.api.route_names import (
    OTHER_ROUTE,
    OTHER_STATUS,
    ROUTE_INDEXES,
    ROUTE_NAMES,
    STATUS_INDEXES,
    STATUS_NAMES,
    STATUSES,
)
from topics.front.error_answers import STATUS
from topics.front.table import ROUTES


def test_every_route_of_the_table_has_a_number() -> None:
    names = {route.name for route in ROUTES}
    assert set(ROUTE_NAMES) == names | {ROUTE_NAMES[OTHER_ROUTE]}
    assert [ROUTE_INDEXES[name] for name in ROUTE_NAMES] == [*range(len(ROUTE_NAMES))]


def test_every_status_that_the_server_sends_has_a_number() -> None:
    assert set(STATUS.values()) | {101, 200, 201, 204, 304} == set(STATUSES) - {0}
    assert all(status in list(HTTPStatus) for status in STATUSES[1:])
    assert [STATUS_INDEXES[status] for status in STATUSES] == [*range(len(STATUSES))]
    assert STATUS_NAMES[OTHER_STATUS] == "other"
    assert len(set(STATUS_NAMES)) == len(STATUSES)
