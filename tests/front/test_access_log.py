"""Access log: the recorded requests and their fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from topics.engine.access import Access
from topics.front.access_log import AccessLog, Finished, Level, Subject
from topics.front.table import ROUTES

BY_NAME = {route.name: route for route in ROUTES}
AUDITED = {route.name for route in ROUTES if route.is_audited}
FINISHED = Finished("id-1", "", 200, False, 10, 20, 0.5, "127.0.0.1:9")


def logged(
    level: Level, subject: Subject, finished: Finished = FINISHED
) -> list[Mapping[str, Any]]:
    lines: list[Mapping[str, Any]] = []
    log = AccessLog(level, lines.append)
    if log.includes(subject.route, finished.status):
        log.write_line(subject, finished)
    return lines


def test_routes_that_change_data_accept_commands_or_return_all_data_are_audited() -> None:
    changing = {route.name for route in ROUTES if {"PUT", "DELETE"} & set(route.methods)}
    others = {"topic.delete_records", "queue.redrive", "ws", "backup", "backup.changes"}
    assert changing | others == AUDITED


@pytest.mark.parametrize("name", ["append", "diff", "topic.get", "queue.ack", "watch.open"])
def test_other_requests_are_audited_if_they_create_a_topic_or_their_key_is_refused(
    name: str,
) -> None:
    subject = Subject("X", BY_NAME[name])
    assert [
        status
        for status in (200, 201, 400, 401, 403, 404, 429, 503)
        if logged("audit", subject, FINISHED._replace(status=status))
    ] == [201, 401, 403]
    assert logged("all", subject)


def test_a_line_contains_all_known_fields() -> None:
    [key] = Access.parse("secret").principals
    subject = Subject("PUT", BY_NAME["topic.put"], "a", "", key)
    assert logged("all", subject, FINISHED._replace(trace="t", cut=True)) == [
        {
            "request_id": "id-1",
            "trace": "t",
            "key": key.alias,
            "method": "PUT",
            "route": "topic.put",
            "topic": "a",
            "status": 200,
            "cut": True,
            "bytes_in": 10,
            "bytes_out": 20,
            "ms": 0.5,
            "peer": "127.0.0.1:9",
        }
    ]


def test_the_line_of_an_unreadable_head_has_few_fields() -> None:
    [line] = logged("all", Subject(), FINISHED._replace(status=0))
    assert line.keys() == {"request_id", "bytes_in", "bytes_out", "ms", "peer"}


def test_invalid_names_are_omitted_and_long_methods_truncated() -> None:
    subject = Subject("B" * 99, BY_NAME["topic.get"], "a b?token=x", "../r")
    [line] = logged("all", subject)
    assert line["method"] == "B" * 32
    assert not {"topic", "router"} & line.keys()
