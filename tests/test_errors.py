"""Failures: one class tree with a stable code for each class, and the exit codes of programs."""

from __future__ import annotations

import re

import pytest

from topics import errors
from topics.errors import ExitCode, RouterCycle, RouterNotFound, TopicNotFound, TopicsError

KINDS = TopicsError.__subclasses__()


def test_the_tree_in_the_docstring_lists_every_failure_with_its_code() -> None:
    assert errors.__doc__ is not None
    table = re.findall(r"^ {8}(\w+) +(\w+)$", errors.__doc__, re.MULTILINE)
    assert table == [(kind.__name__, kind.code) for kind in KINDS]


def test_no_two_failures_share_a_code() -> None:
    codes = [kind.code for kind in KINDS]
    assert len(set(codes)) == len(codes)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_failure_from_another_process_is_restored_for_any_constructor(
    kind: type[TopicsError],
) -> None:
    found = TopicsError.restore(kind, "why", {"topic": "a", "message_of": 7})
    assert (type(found), found.message, found.detail) == (
        kind,
        "why",
        {"topic": "a", "message_of": 7},
    )
    assert str(found) == "why"


def test_the_error_for_a_missing_topic_names_it() -> None:
    failure = TopicNotFound("a")
    assert (str(failure), failure.detail) == ('topic "a" does not exist', {"topic": "a"})


def test_errors_name_a_missing_router_and_show_a_cycle() -> None:
    failure = RouterNotFound("a->b")
    assert (str(failure), failure.detail) == (
        'router "a->b" does not exist',
        {"router": "a->b"},
    )
    assert RouterCycle(("a", "b", "a")).detail == {"cycle": ["a", "b", "a"]}


def test_exit_codes_never_change_and_the_help_lists_them_all() -> None:
    assert {code.name: code.value for code in ExitCode} == {
        "DONE": 0,
        "FAILED": 1,
        "USAGE": 2,
        "DAMAGED": 3,
        "NOT_FOUND": 4,
        "REFUSED": 5,
        "UNREACHABLE": 6,
        "DIFFERENT": 7,
        "HUNG_UP": 129,
        "INTERRUPTED": 130,
        "TERMINATED": 143,
    }
    assert re.findall(r"\d+", ExitCode.summary()) == [str(code.value) for code in ExitCode]
