"""ADR 011 §8: link sessions and their end."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from tests.support.wire import Bench, FakeBlock, Inbound, rpc_of
from topics.actors.rpc.session import LinkSession
from topics.formats.wire.message import ARENA, PeerGone

# §8: cleanup


def test_s8_closed_listeners_still_see_the_registrations() -> None:
    bench = Bench()
    bench.session.router.route("app/x", bench.note("session"))
    seen: list[str] = []

    def listener(session: LinkSession) -> None:
        seen.append(f"closed {session.closed}, {len(session.router.matching('app/x'))} registered")

    bench.session.on_closed(listener)
    bench.session.on_closed(listener)
    bench.session.close()
    assert seen == ["closed True, 1 registered"] * 2
    assert bench.session.router.matching("app/x") == []


def test_s8_close_is_told_once() -> None:
    bench, seen = Bench(), list[str]()
    bench.session.on_closed(lambda session: seen.append("first"))
    bench.session.on_closed(lambda session: session.close())
    bench.session.close()
    bench.session.close()
    assert seen == ["first"]


def test_s8_a_listener_that_raises_stops_neither_the_next_nor_the_cleanup() -> None:
    bench, seen = Bench(), list[str]()

    def fail(session: LinkSession) -> None:
        raise ValueError("listener failed")

    bench.session.router.route("app/x", bench.note("session"))
    bench.session.on_closed(fail)
    bench.session.on_closed(lambda session: seen.append("next"))
    with capture_logs() as logs:
        bench.session.close()
    assert [(entry["event"], str(entry["exc_info"])) for entry in logs] == [
        ("closed listener failed", "listener failed")
    ]
    assert (seen, bench.session.router.matching("app/x")) == (["next"], [])


def test_s8_global_handlers_survive_a_reconnect_and_session_ones_do_not() -> None:
    first = Bench()
    first.router.route("app/x", first.note("global"))
    first.session.router.route("app/x", first.note("session"))
    first.put("app/x", b"")
    first.session.close()
    second = Bench(first.router)
    second.put("app/x", b"")
    assert first.record == ["session", "global", "global"]


def test_s8_closing_the_router_closes_the_sessions_and_clears_all() -> None:
    bench, seen = Bench(), list[str]()
    other = Bench(bench.router)
    bench.router.route("app/x", bench.note("global"))
    for each in (bench, other):
        each.session.router.route("app/x", each.note("session"))
        each.session.on_closed(
            lambda session: seen.append(
                f"{len(session.router.matching('app/x'))} + {len(bench.router.matching('app/x'))}"
            )
        )
    bench.router.close()
    assert seen == ["1 + 1", "1 + 1"]
    assert bench.session.closed
    assert other.session.closed
    assert bench.router.matching("app/x") == []


def test_s8_what_arrives_on_a_closed_session_is_dropped_and_its_memory_goes_back() -> None:
    bench = Bench()
    bench.router.route("app/x", bench.note("called"))
    bench.session.close()
    assert bench.put("app/x", b"", flags=ARENA) is None
    assert (bench.record, bench.wire.sent, bench.wire.released) == ([], [], [7])


def test_s8_the_router_does_not_keep_what_has_closed() -> None:
    bench = Bench()
    bench.session.close()
    assert not bench.router._sessions


async def test_s8_an_answer_after_the_end_goes_nowhere() -> None:
    bench, seen = Bench(), list[Inbound]()
    bench.router.route("rpc/append", seen.append)
    bench.request()
    bench.session.close()
    block = FakeBlock()
    rpc_of(seen[0]).reply(None, block)
    with pytest.raises(PeerGone, match="the link session with front-0 is closed"):
        seen[0].send("event/x", b"", block)
    assert (bench.wire.sent, block.freed) == ([], 2)


async def test_s8_a_handler_may_close_its_session() -> None:
    bench = Bench()

    def close(message: Inbound) -> None:
        message.session.close()

    bench.router.route("rpc/append", close)
    assert bench.request() is None
    assert not bench.session.unanswered
