"""Barriers: readers of a dest see what was appended to its sources before they asked."""

from __future__ import annotations

import pytest
import trio

from tests.support.routing import RoutedShards
from topics.actors.shard.routing import barriers as barriers_module
from topics.actors.shard.routing import workers as workers_module
from topics.actors.shard.routing.worker import WorkerState
from topics.formats.wire.calls import CATCH_UP, FORWARD, NO_RESULT, ROUTER_SYNC, CatchUpParams

SILENT = pytest.mark.usefixtures("impatient")
PROMPT_S = 10.0


@pytest.fixture
def long_barrier(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ends within ``PROMPT_S`` has not waited for the end of the barrier."""
    monkeypatch.setattr(barriers_module, "BARRIER_S", 2 * PROMPT_S)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (barriers_module.BARRIER_S, barriers_module.SILENT_S) == (1.0, 5.0)
    monkeypatch.setattr(barriers_module, "BARRIER_S", 0.2)
    monkeypatch.setattr(barriers_module, "SILENT_S", 1.0)


async def diff_takes(shards: RoutedShards, topic: str, expected: list[object]) -> float:
    began = trio.current_time()
    assert await shards.diff(topic) == expected
    return trio.current_time() - began


def catch_ups(shards: RoutedShards) -> int:
    return sum(asked.subject == CATCH_UP.subject for asked in shards.asked)


@pytest.mark.parametrize("ends", ["a>b", "b>f", "c>b", "b>c"])
async def test_a_reader_sees_what_was_appended_before(routed: RoutedShards, ends: str) -> None:
    source, dest = ends.split(">")
    await routed.route(ends)
    for number in range(5):
        await routed.append(source, number)
        assert await routed.diff(dest) == [*range(number + 1)]


@pytest.mark.usefixtures("long_barrier")
async def test_a_read_waits_only_for_what_was_there_when_it_came(
    routed: RoutedShards, nursery: trio.Nursery
) -> None:
    """A source that is written without a pause does not keep readers."""
    await routed.route("a>b")
    await routed.settle()
    routed.hold_forwards(0, 2)
    await routed.append("a", 1)
    await routed.until(lambda: routed.worker("a>b")[1].state is WorkerState.FLYING)
    found: list[list[object]] = []

    async def read() -> None:
        found.append(await routed.diff("b"))

    nursery.start_soon(read)
    await routed.until(lambda: catch_ups(routed))
    await trio.sleep(0.02)
    await routed.append("a", 2)
    routed.let_go()  # the first; the next is held
    with trio.fail_after(PROMPT_S):
        await routed.until(lambda: found)
    assert found == [[1]]
    routed.go_on()
    await routed.settle()


async def test_a_router_that_has_not_begun_is_hurried(
    routed: RoutedShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    await routed.route("b>f")
    await routed.settle()
    for name in ("PAUSE_MIN_S", "PAUSE_MAX_S"):
        monkeypatch.setattr(workers_module, name, 60.0)
    await routed.append("b", 1)
    await routed.settle()  # then a pause begins
    began = trio.current_time()
    await routed.append("b", 2)
    assert await routed.diff("f") == [1, 2]
    assert trio.current_time() - began < barriers_module.BARRIER_S


@pytest.mark.usefixtures("long_barrier")
async def test_a_read_waits_over_a_cycle_but_not_for_itself(routed: RoutedShards) -> None:
    await routed.route("a>b")
    await routed.route("b>a", allow_cycle=True)
    await routed.append("a", 1)
    with trio.fail_after(PROMPT_S):
        assert 1 in await routed.diff("b")
        assert len(await routed.diff("a")) > 1
    await routed.route("d>d2", "d2>d", allow_cycle=True)
    await routed.append("d", 1)
    with trio.fail_after(PROMPT_S):
        assert 1 in await routed.diff("d2")


async def test_a_dest_whose_routers_are_level_is_read_at_once(routed: RoutedShards) -> None:
    await routed.route("b>f", "a>k")
    await routed.append("b", 1)
    await routed.settle()
    assert await routed.diff("f") == [1]
    assert await routed.diff("b") == [1], "nothing feeds it"
    await routed.append("a", 2)
    await routed.settle()
    before = catch_ups(routed)
    assert await routed.diff("k") == [2], "the board tells of sources elsewhere"
    assert catch_ups(routed) == before


async def test_a_source_elsewhere_that_may_hold_more_is_asked(routed: RoutedShards) -> None:
    await routed.route("a>b", "d>f")
    await routed.append("a", 1)
    await routed.append("d", 2)
    await routed.settle()
    routed.on_message = lambda *found: found != (0, 2, FORWARD.subject)
    await routed.append("a", 3)
    before = catch_ups(routed)
    assert await routed.diff("f") == [2]
    assert catch_ups(routed) == before, "another source has got something"
    assert await routed.diff("b") == [1]
    assert catch_ups(routed) > before
    routed.go_on()
    await routed.settle()
    await routed.route("b2>d")
    before = catch_ups(routed)
    await routed.diff("f")
    assert catch_ups(routed) > before, "its source has become a dest"
    await routed.append("b2", 4)
    await routed.settle()
    before = catch_ups(routed)
    assert await routed.diff("f") == [2, 4]
    assert catch_ups(routed) > before, "only its shard knows what feeds a source"


async def test_a_source_elsewhere_is_asked_after_its_shard_has_started(
    routed: RoutedShards,
) -> None:
    """Its log may hold records that no forward has told of."""
    await routed.route("a>b")
    await routed.append("a", 1)
    await routed.settle()
    word = routed.board.source(0, routed.topic("a").id)
    before = word[0]
    await routed.kill(0)
    routed.on_message = lambda *found: found != (0, 2, FORWARD.subject)
    routed.start(0)
    assert word[0] > before
    before = catch_ups(routed)
    assert await routed.diff("b") == [1]
    assert catch_ups(routed) > before
    routed.go_on()


@pytest.mark.usefixtures("long_barrier")
async def test_copies_end_the_wait_before_their_shard_says_so(routed: RoutedShards) -> None:
    await routed.route("a>b")
    await routed.settle()
    routed.on_message = lambda *found: found != (0, 2, FORWARD.subject)
    await routed.append("a", 1)
    found: list[list[object]] = []

    async def read() -> None:
        found.append(await routed.diff("b"))

    routed.nursery.start_soon(read)
    await routed.until(lambda: catch_ups(routed))
    routed.on_message = lambda *found: found != (0, 2, CATCH_UP.subject)
    routed.let_go()
    with trio.fail_after(PROMPT_S):
        await routed.until(lambda: found)
    assert found == [[1]]
    assert not routed.loops[2].services.barriers._watched
    routed.go_on()


async def test_a_full_dest_does_not_keep_its_readers(routed: RoutedShards) -> None:
    await routed.make("b", cap_records=1, discard="reject")
    await routed.route("a>b")
    await routed.append("a", 1, 2)
    await routed.until(lambda: routed.worker("a>b")[1].state is WorkerState.RETRYING)
    assert await diff_takes(routed, "b", [1]) < 0.8


async def test_a_shard_that_is_away_does_not_keep_readers(routed: RoutedShards) -> None:
    await routed.route("a>b", "b>f")
    await routed.append("a", 1)
    await routed.settle()
    await routed.kill(0)
    assert await diff_takes(routed, "b", [1]) < 0.8
    await routed.append("b", 2)
    assert await diff_takes(routed, "f", [1, 2]) < 0.8


@SILENT
async def test_a_silent_shard_is_waited_for_once(routed: RoutedShards) -> None:
    await routed.route("a>b")
    await routed.append("a", 1)
    await routed.settle()
    silenced = ((2, 0, CATCH_UP.subject), (0, 2, FORWARD.subject))
    routed.on_message = lambda *found: found not in silenced
    await routed.append("a", 2)
    assert 0.2 <= await diff_takes(routed, "b", [1]) < 0.9
    asked = catch_ups(routed)
    assert await diff_takes(routed, "b", [1]) < 0.19
    assert catch_ups(routed) == asked, "it is not even asked"
    await trio.sleep(1)
    assert await diff_takes(routed, "b", [1]) >= 0.2
    routed.go_on()  # late answers: it is not silent any more
    await trio.sleep(0.05)
    await routed.append("a", 3)
    assert await routed.diff("b") == [1, 2, 3]


@SILENT
async def test_a_shard_that_waits_for_a_silent_one_is_not_silent(routed: RoutedShards) -> None:
    await routed.route("a>b", "b>c")
    await routed.append("a", 1)
    await routed.settle()
    routed.on_message = lambda *found: found != (2, 0, CATCH_UP.subject)
    assert await diff_takes(routed, "c", [1]) >= 0.2
    await trio.sleep(0.1)  # by then it has answered
    await routed.append("b", 2)
    assert await routed.diff("c") == [1, 2]


async def test_after_a_start_reads_of_a_dest_wait_until_the_owner_has_told(
    routed: RoutedShards, nursery: trio.Nursery
) -> None:
    await routed.route("a>b")
    await routed.append("a", 1)
    await routed.settle()
    await routed.kill(2)
    await routed.append("a", 2)
    routed.on_message = lambda *found: found[2] not in (ROUTER_SYNC.subject, FORWARD.subject)
    routed.start(2)
    found: list[list[object]] = []

    async def read() -> None:
        found.append(await routed.diff("b"))

    nursery.start_soon(read)
    await trio.sleep(0.1)
    assert found == []
    routed.go_on()
    await routed.until(lambda: found)
    assert found == [[1, 2]]


@SILENT
async def test_an_owner_that_tells_late_is_not_silent(routed: RoutedShards) -> None:
    await routed.route("a>b")
    await routed.append("a", 1)
    await routed.settle()
    await routed.kill(2)
    routed.on_message = lambda *found: found[2] not in (ROUTER_SYNC.subject, FORWARD.subject)
    routed.start(2)
    assert await diff_takes(routed, "b", [1]) >= 0.2
    assert await diff_takes(routed, "b", [1]) < 0.19, "it was waited for"
    routed.go_on()
    await routed.until(lambda: routed.loops[2].services.registry.is_told)
    await routed.append("a", 2)
    assert await routed.diff("b") == [1, 2]


@pytest.mark.usefixtures("long_barrier")
async def test_catching_up_of_routers_that_are_not_there(routed: RoutedShards) -> None:
    with trio.fail_after(PROMPT_S):
        found = await routed.call(CATCH_UP, CatchUpParams([5, 6], []), shard=0)
    assert found == NO_RESULT
