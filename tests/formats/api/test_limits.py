"""Limits and clamps: a limit refuses what is above it, a clamp takes its bound instead."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.formats.api.body_support import LIMITS, refused
from topics.config import Settings
from topics.errors import InvalidRequest
from topics.formats.api import limits

U64_MAX = 2**64 - 1


def test_the_limits_are_those_of_the_settings() -> None:
    found = limits.limits_of(Settings(max_claim=7, max_limit=8, max_node_bytes=9))
    assert (found.claim, found.limit, found.node_bytes) == (7, 8, 9)


@pytest.mark.parametrize(
    ("clamped", "given", "kept"),
    [
        (limits.clamped_lease_ms, 0, 100),
        (limits.clamped_lease_ms, 100, 100),
        (limits.clamped_lease_ms, U64_MAX, 86_400_000),
        (limits.clamped_delay_ms, 0, 0),
        (limits.clamped_delay_ms, 86_400_001, 86_400_000),
        (limits.clamped_wait_ms, 30_001, 30_000),
        (lambda jobs: limits.clamped_max_jobs(jobs, LIMITS), 1, 1),
        (lambda jobs: limits.clamped_max_jobs(jobs, LIMITS), 1001, 1000),
    ],
)
def test_what_is_out_of_bounds_takes_its_bound(
    clamped: Callable[[int], int], given: int, kept: int
) -> None:
    assert clamped(given) == kept


def test_a_worker_has_a_name_and_takes_at_least_one_job() -> None:
    limits.check_worker("éé", LIMITS)
    refused(InvalidRequest, limits.check_worker, "", LIMITS)
    refused(InvalidRequest, limits.check_worker, "é" * 4, LIMITS)
    refused(InvalidRequest, limits.clamped_max_jobs, 0, LIMITS)
    refused(InvalidRequest, limits.clamped_max_jobs, -1, LIMITS)


@pytest.mark.parametrize("number", [-1, U64_MAX + 1])
def test_a_time_that_is_no_u64_is_refused(number: int) -> None:
    assert refused(InvalidRequest, limits.clamped_lease_ms, number).detail["field"] == "lease_ms"
    assert refused(InvalidRequest, limits.clamped_delay_ms, number).detail["field"] == "delay_ms"
