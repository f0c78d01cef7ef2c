"""Link sessions: deaths and restarts in any order, and blocks that delay the next session."""

from __future__ import annotations

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from tests.actors.link.link_support import End, Pair, exchange
from topics.actors.link.arena import PAGE_BYTES
from topics.actors.link.process_id import FRONT, shard_id
from topics.formats.wire.message import Message, PeerClosed

ENDS = {"front": FRONT, "shard": shard_id(0)}


@hypothesis_settings(max_examples=60, stateful_step_count=40)
class LinksInAnyOrder(RuleBasedStateMachine):
    """Two ends with new sessions and deaths at any moment. The messages of each session must
    arrive as a prefix of the sent messages.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair()
        self.sent: dict[tuple[str, int], list[bytes]] = {}
        self.got: dict[tuple[str, int], list[bytes]] = {}
        self.held: dict[str, list[tuple[Message, bytes]]] = {"front": [], "shard": []}
        self.number = 0

    def end(self, name: str) -> End:
        return self.pair.front if name == "front" else self.pair.shard

    @rule(name=st.sampled_from(["front", "shard"]))
    def run_once(self, name: str) -> None:
        end, other = self.end(name), "shard" if name == "front" else "front"
        for frame in end.run_once():
            got = self.got.setdefault((other, end.link._session), [])
            got.append(bytes(frame.attachment))
            assert self.sent[other, end.link._session][: len(got)] == got
            if isinstance(frame.attachment, memoryview):
                self.held[name].append((frame, bytes(frame.attachment)))

    @rule(
        name=st.sampled_from(["front", "shard"]),
        length=st.sampled_from([0, 1, 900, 3000, 9000, 40_000]),
        flush=st.booleans(),
    )
    def send(self, name: str, length: int, flush: bool) -> None:
        link = self.end(name).link
        self.number += 1
        body = (b"%d," % self.number) * (length // 4 + 1)
        if link.connected:
            link.send("s", b"", body)
            self.sent.setdefault((name, link._session), []).append(body)
        else:
            with pytest.raises(PeerClosed):
                link.send("s", b"", body)
        if flush:
            link.flush()

    @rule(name=st.sampled_from(["front", "shard"]))
    def release_one(self, name: str) -> None:
        if self.held[name]:
            self.end(name).link.release(self.held[name].pop(0)[0])

    @rule()
    def held_attachments_are_unchanged(self) -> None:
        assert all(
            bytes(frame.attachment) == body for held in self.held.values() for frame, body in held
        )

    @rule()
    def bump(self) -> None:
        self.pair.bump()

    @rule(name=st.sampled_from(["front", "shard"]))
    def die(self, name: str) -> None:
        self.held[name].clear()
        self.pair.bump()
        setattr(self.pair, name, self.pair.end(ENDS[name]))

    @precondition(lambda self: not self.held["front"] and not self.held["shard"])
    @rule()
    def settle(self) -> None:
        """Let both ends run, after which they must be connected and have received all messages."""
        for _ in range(3):
            self.run_once("front")
            self.run_once("shard")
        assert self.pair.front.link.connected
        assert self.pair.shard.link.connected
        while (
            self.pair.front.link.backlog_bytes
            or self.pair.shard.link.backlog_bytes
            or self.held["front"]
            or self.held["shard"]
        ):
            for name in ("front", "shard"):
                self.run_once(name)
                self.release_one(name)
        self.run_once("front")
        self.run_once("shard")
        session = self.pair.board.session(*self.pair.memory.ends)
        for name in ("front", "shard"):
            assert self.got.get((name, session), []) == self.sent.get((name, session), [])

    def teardown(self) -> None:
        self.pair.close()


TestLinks = pytest.mark.slow(LinksInAnyOrder.TestCase)


def test_a_block_of_a_closed_session_cannot_be_sent_but_is_freed(pair: Pair) -> None:
    block = pair.front.link.reserve(PAGE_BYTES)
    assert block is not None
    pair.restart_shard()
    pair.connect()
    with pytest.raises(PeerClosed):
        pair.front.link.send("a", b"", block)
    pair.bump()
    pair.shard.run_once()
    pair.connect()


def test_a_session_waits_while_a_reader_still_uses_its_half_of_the_arena(pair: Pair) -> None:
    pair.shard.link.send("r", b"", b"s" * 2000)
    [frame] = exchange(pair.shard, pair.front)
    pair.restart_shard()
    pair.connect()
    assert bytes(frame.attachment) == b"s" * 2000, (
        "the next session works alongside the slow reader"
    )
    pair.restart_shard()
    for end in (pair.shard, pair.front, pair.shard, pair.front):
        end.run_once()
    assert not pair.front.link.connected
    pair.front.link.release(frame)
    pair.connect()
