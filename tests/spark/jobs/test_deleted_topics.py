"""The check of an archive, for topics that are deleted during the run."""

from __future__ import annotations

from typing import Any

import pytest

from topics.spark.jobs.archive_check import check
from topics.spark.jobs.streams import QueryProgress
from topics.spark.source.plan import Head, Heads

BEFORE: Heads = {"one": {"t": Head(1, 5, 7)}}


@pytest.mark.parametrize(("now", "faults"), [({"one": {}}, 0), (BEFORE, 1)])
def test_a_topic_that_is_missing_from_the_offsets_is_a_fault_only_if_it_exists(
    now: Heads, faults: int
) -> None:
    unused: Any = None
    options = {"servers": "one=http://h:1"}
    found = check(unused, options, QueryProgress(), lambda: now, BEFORE, unused)
    assert len(found) == faults
