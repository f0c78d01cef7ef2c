"""ADR 011 §5: a request that is not answered in time is answered with 1103. Virtual time: nothing
here sleeps for real.

pytest-trio takes the clock from the test's own arguments, so every test that lets time pass names
it.
"""

from __future__ import annotations

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from tests.support.wire import Bench, FakeBlock, Inbound
from topics.actors.rpc.inbound import AlreadyAnsweredError
from topics.actors.rpc.message_router import MessageRouter, RouterConfig
from topics.formats.wire.message import ARENA

TIMEOUT = {"subject": "rpc/append", "t": "E", "cid": 7, "code": 1103, "message": "Handler timeout"}


class Silent:
    """A router whose handler keeps every request and answers none; ``sweeping()`` runs its
    deadlines.
    """

    def __init__(self, nursery: trio.Nursery, timeout_ms: int = 30_000) -> None:
        self.bench = Bench(MessageRouter(RouterConfig(rpc_timeout_ms=timeout_ms)))
        self.kept: list[Inbound] = []
        self.bench.router.route("rpc/append", self._keep)
        nursery.start_soon(self.bench.router.expire_overdue)

    def _keep(self, message: Inbound) -> None:
        assert message.rpc is not None
        self.kept.append(message.rpc)


@pytest.fixture
async def silent(nursery: trio.Nursery) -> Silent:
    return Silent(nursery)


async def test_s5_silence_is_answered_after_thirty_seconds_to_the_moment(
    autojump_clock: MockClock, silent: Silent
) -> None:
    start = trio.current_time()
    silent.bench.request()
    await trio.sleep_until(start + 29.999)
    assert silent.bench.wire.answers() == []
    with capture_logs() as logs:
        await trio.sleep_until(start + 30.001)
    assert silent.bench.wire.answers() == [TIMEOUT]
    assert [(entry["event"], entry["cid"]) for entry in logs] == [("rpc timed out", 7)]


async def test_s5_the_time_is_configured(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    silent = Silent(nursery, timeout_ms=50)
    silent.bench.request()
    await trio.sleep(0.049)
    assert silent.bench.wire.answers() == []
    await trio.sleep(0.002)
    assert silent.bench.wire.answers() == [TIMEOUT]


async def test_s5_each_request_has_its_own_deadline(
    autojump_clock: MockClock, silent: Silent
) -> None:
    other = Bench(silent.bench.router)
    start = trio.current_time()
    for cid, (bench, at) in enumerate(
        [(silent.bench, 0), (other, 1), (silent.bench, 5), (other, 20)]
    ):
        await trio.sleep_until(start + at)
        bench.request(cid=cid)
    silent.kept[2].reply()
    assert [answer["cid"] for answer in silent.bench.wire.answers()] == [2]
    expired: list[str] = []
    for then in (29.9, 30.1, 31.1, 35.1, 49.9, 50.1):
        await trio.sleep_until(start + then)
        cids = [answer["cid"] for answer in silent.bench.wire.answers() + other.wire.answers()]
        expired.append(f"{then}: {cids}")
    assert expired == ["29.9: []", "30.1: [0]", "31.1: [1]", "35.1: []", "49.9: []", "50.1: [3]"]


async def test_s5_a_request_after_an_idle_time_is_timed_too(
    autojump_clock: MockClock, silent: Silent
) -> None:
    for _ in range(3):
        await trio.sleep(100)
        silent.bench.request()
        await trio.sleep(30.001)
        assert silent.bench.wire.answers() == [TIMEOUT]


async def test_s5_an_answer_in_time_leaves_nothing_behind(
    autojump_clock: MockClock, silent: Silent
) -> None:
    silent.bench.request()
    assert len(silent.bench.session.unanswered) == 1
    await trio.sleep(29)
    silent.kept[0].reply("in time")
    assert not silent.bench.session.unanswered
    await trio.sleep(100)
    assert [answer["t"] for answer in silent.bench.wire.answers()] == ["R"]


async def test_s5_a_late_answer_is_dropped_and_logged_once(
    autojump_clock: MockClock, silent: Silent
) -> None:
    silent.bench.request(flags=ARENA)
    await trio.sleep(31)
    assert silent.bench.wire.answers() == [TIMEOUT]
    assert silent.bench.wire.released == []  # the handler may still be reading
    block = FakeBlock()
    with capture_logs() as logs:
        silent.kept[0].reply("late", block)
    assert [(entry["event"], entry["cid"]) for entry in logs] == [("late answer dropped", 7)]
    assert (silent.bench.wire.sent, silent.bench.wire.released, block.freed) == ([], [7], 1)
    with pytest.raises(AlreadyAnsweredError):
        silent.kept[0].reply("later still")


async def test_s5_an_async_handler_is_timed_and_not_stopped(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    bench = Bench()
    nursery.start_soon(bench.router.expire_overdue)

    async def slow(message: Inbound) -> None:
        assert message.rpc is not None
        await trio.sleep(40)
        bench.record.append(f"open {message.is_open}")
        message.rpc.reply("late")

    bench.router.route("rpc/append", slow)
    nursery.start_soon(lambda: bench.request(flags=ARENA))
    await trio.sleep(30.5)
    assert (bench.wire.answers(), bench.record) == ([TIMEOUT], [])
    await trio.sleep(10)
    assert (bench.wire.answers(), bench.record, bench.wire.released) == ([], ["open False"], [7])


async def test_s5_a_handler_that_raises_after_its_time_is_logged(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    bench = Bench()
    nursery.start_soon(bench.router.expire_overdue)

    async def slow(message: Inbound) -> None:
        await trio.sleep(40)
        raise ValueError("too late")

    bench.router.route("rpc/append", slow)
    nursery.start_soon(lambda: bench.request(flags=ARENA))
    with capture_logs() as logs:
        await trio.sleep(41)
    assert [entry["event"] for entry in logs] == ["rpc timed out", "handler failed"]
    assert (bench.wire.answers(), bench.wire.released) == ([TIMEOUT], [7])


async def test_s5_a_closed_session_is_not_timed_any_more(
    autojump_clock: MockClock, silent: Silent
) -> None:
    silent.bench.request()
    silent.bench.session.close()
    assert not silent.bench.session.unanswered
    with capture_logs() as logs:
        await trio.sleep(100)
    assert (silent.bench.wire.sent, logs) == ([], [])


async def test_s5_a_peer_that_is_gone_at_the_deadline_is_no_error(
    autojump_clock: MockClock, silent: Silent
) -> None:
    silent.bench.request()
    silent.bench.wire.broken = True
    await trio.sleep(31)
    silent.bench.wire.broken = False
    silent.bench.request(cid=8)
    await trio.sleep(31)
    assert [answer["cid"] for answer in silent.bench.wire.answers()] == [8]
