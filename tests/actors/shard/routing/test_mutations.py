"""Tests of mutations: mutations of one name run in sequence, and no mutation starts for a
disconnected caller.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.shard import ShardHarness
from topics.actors.rpc.session import InboundMessage
from topics.actors.shard.held_topics import Request
from topics.actors.shard.routing.mutations import CALL_MAX_S, Mutations, call_shard
from topics.errors import NotReady, TopicFull, TopicNotFound
from topics.formats.wire.calls import (
    NO_RESULT,
    TOPIC_GET,
    TOPIC_LIST,
    NoResult,
    TopicGetParams,
    TopicListParams,
)


class MutationsHarness:
    """Sends requests that are mutations. They wait until ``gate`` is set."""

    def __init__(self, harness: ShardHarness) -> None:
        self.harness, self.done, self.gate = harness, list[int](), trio.Event()
        self.mutations = Mutations(harness.loop.context)
        self.failure: Exception | None = None
        self.names = ["r", "a", "b"]
        harness.loop.router.unroute(TOPIC_GET.subject)
        harness.loop.router.serve(TOPIC_GET, self._take)

    def _take(self, request: InboundMessage[TopicGetParams, NoResult]) -> None:
        self.mutations.add(self.names, partial(self._mutate, request), request)

    async def _mutate(self, request: Request) -> None:
        await self.gate.wait()
        self.done.append(request.cid)
        if self.failure is not None:
            raise self.failure
        request.reply(NO_RESULT, b"{}")

    def call_shard(self) -> int:
        return self.harness.request(TOPIC_GET, TopicGetParams("a", False, time.monotonic_ns()))


async def test_mutations_run_in_the_order_of_their_requests(harness: ShardHarness) -> None:
    mutations_harness = MutationsHarness(harness)
    requests = [mutations_harness.call_shard() for _ in range(3)]
    await wait_all_tasks_blocked()
    assert mutations_harness.done == []
    mutations_harness.gate.set()
    await wait_all_tasks_blocked()
    assert mutations_harness.done == requests
    later = mutations_harness.call_shard()
    await wait_all_tasks_blocked()
    assert mutations_harness.done == [*requests, later]


async def test_a_hanging_mutation_delays_only_mutations_that_share_a_name(
    harness: ShardHarness,
) -> None:
    mutations_harness, done = MutationsHarness(harness), list[str]()

    async def note(name: str) -> None:
        done.append(name)

    mutations_harness.call_shard()
    await wait_all_tasks_blocked()
    for names in (["b", "x"], ["y"], ["x"], ["z", "y"]):
        mutations_harness.mutations.add(names, partial(note, "".join(names)))
    await wait_all_tasks_blocked()
    assert done == ["y", "zy"], "x waits for b and x, which wait for the hanging mutation"
    mutations_harness.gate.set()
    await wait_all_tasks_blocked()
    assert done == ["y", "zy", "bx", "x"]


@pytest.mark.parametrize("failure", [TopicFull("full"), ValueError("a bug")])
async def test_a_failure_is_reported_and_the_next_mutation_runs(
    harness: ShardHarness, failure: Exception
) -> None:
    mutations_harness = MutationsHarness(harness)
    mutations_harness.failure = failure
    first, second = mutations_harness.call_shard(), mutations_harness.call_shard()
    mutations_harness.gate.set()
    await wait_all_tasks_blocked()
    assert mutations_harness.done == [first, second]
    code = failure.code if isinstance(failure, TopicFull) else 2000
    assert harness.answers() == [(first, code), (second, code)]


async def test_a_failed_mutation_without_a_request_does_not_stop_later_ones(
    harness: ShardHarness,
) -> None:
    mutations_harness = MutationsHarness(harness)

    async def fail() -> None:
        raise NotReady("no space")

    broken: Callable[[], Awaitable[None]] = fail
    mutations_harness.mutations.add(["r"], broken)
    mutations_harness.gate.set()
    requests = mutations_harness.call_shard()
    await wait_all_tasks_blocked()
    assert mutations_harness.done == [requests]


async def test_mutations_of_a_disconnected_caller_do_not_start(harness: ShardHarness) -> None:
    mutations_harness = MutationsHarness(harness)
    first = mutations_harness.call_shard()
    mutations_harness.call_shard()
    await wait_all_tasks_blocked()
    harness.session.close()
    mutations_harness.gate.set()
    await wait_all_tasks_blocked()
    assert mutations_harness.done == [first], "only the mutation in progress is completed"


async def test_call_shard_returns_the_result_or_raises_the_error_of_a_shard(
    harness: ShardHarness,
) -> None:
    context = harness.loop.context
    found = await call_shard(context, 0, TOPIC_LIST, TopicListParams("", None, 9, False, None))
    assert found.items == []
    with pytest.raises(TopicNotFound):
        await call_shard(context, 0, TOPIC_GET, TopicGetParams("a", False, 1))
    with pytest.raises(NotReady):
        await call_shard(context, 1, TOPIC_GET, TopicGetParams("a", False, 1))


async def test_call_shard_times_out_if_the_shard_does_not_reply(
    harness: ShardHarness, autojump_clock: MockClock
) -> None:
    mutations_harness, began = MutationsHarness(harness), trio.current_time()
    with pytest.raises(NotReady, match="does not respond"):
        await call_shard(harness.loop.context, 0, TOPIC_GET, TopicGetParams("a", False, 1))
    assert trio.current_time() - began == CALL_MAX_S
    mutations_harness.gate.set()
    await wait_all_tasks_blocked()
    assert len(mutations_harness.done) == 1, "the late reply is dropped"
