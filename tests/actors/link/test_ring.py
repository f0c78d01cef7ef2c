"""The ring: its arithmetic, its two ends in one process, and sessions in any order."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from tests.actors.link.link_support import Fence
from topics.actors.link import fences, ring
from topics.actors.link.fences import Fences, load_fences
from topics.actors.link.ring import (
    CONSUMER_SLEEP,
    HEAD,
    PAGE_BYTES,
    PRODUCER_SLEEP,
    TAIL,
    RingConsumer,
    RingDamaged,
    RingMemory,
    RingProducer,
    SleepState,
)

SIZE = PAGE_BYTES


def bell() -> int:
    return os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)


def rings_of(fd: int) -> int:
    try:
        return os.eventfd_read(fd)
    except BlockingIOError:
        return 0


class Ends:
    """Both ends of one ring in one process and one session."""

    def __init__(self, size: int = SIZE, fences: Fences | None = None) -> None:
        self.memory = RingMemory(size)
        self.data_bell, self.room_bell = bell(), bell()
        fences = fences or load_fences()
        self.producer = RingProducer(self.memory, self.data_bell, fences)
        self.consumer = RingConsumer(self.memory, self.room_bell, fences)

    def close(self) -> None:
        os.close(self.data_bell)
        os.close(self.room_bell)


@pytest.fixture
def ends() -> Ends:
    return Ends()


# --- the two ends ---


def test_a_ring_of_an_invalid_size_is_rejected() -> None:
    for size in (0, 1024, PAGE_BYTES + 1, 3 * PAGE_BYTES):
        with pytest.raises(ValueError, match="power of two"):
            RingMemory(size)


def test_a_ring_can_be_filled_to_the_last_byte_and_drained(ends: Ends) -> None:
    everything = bytes(range(256)) * (SIZE // 256)
    assert ends.producer.write(everything) == SIZE
    assert ends.producer.free_bytes() == 0
    assert ends.producer.write(b"x") == 0
    assert ends.consumer.read() == everything
    assert ends.producer.free_bytes() == SIZE


def test_a_counter_that_was_reset_shows_no_wrong_space_or_data(ends: Ends) -> None:
    for _ in range(3):
        ends.producer.write(bytes(SIZE // 2))
        ends.consumer.read()
    ends.memory.cells[TAIL] = 0  # The consumer is one session ahead
    assert ends.producer.free_bytes() == 0
    assert ends.producer.write(b"x") == 0
    ends.memory.cells[HEAD] = 0  # The producer too
    assert ends.consumer.read() == b""


def test_more_bytes_than_the_ring_can_hold_are_damage(ends: Ends) -> None:
    ends.memory.cells[HEAD] = SIZE + 1
    with pytest.raises(RingDamaged, match=f"{SIZE + 1} bytes wait in a ring of {SIZE}"):
        ends.consumer.read()


def test_bytes_that_do_not_fit_are_left_to_the_caller(ends: Ends) -> None:
    ends.producer.write(bytes(SIZE - 3))
    assert ends.producer.write(b"abcdef") == 3
    assert ends.consumer.read() == bytes(SIZE - 3) + b"abc"


@pytest.mark.parametrize("ordered", [False, True], ids=["x86", "weakly ordered machine"])
@given(st.lists(st.tuples(st.integers(0, SIZE + 5), st.booleans()), max_size=60))
def test_bytes_are_read_in_order_across_the_end_of_the_ring(
    ordered: bool, steps: list[tuple[int, bool]]
) -> None:
    fences = Fences(full=load_fences().full, order=lambda: None) if ordered else None
    ends = Ends(fences=fences)
    written = read = b""
    for length, then_read in steps:
        chunk = bytes((len(written) + n) % 251 for n in range(length))
        written += chunk[: ends.producer.write(chunk)]
        if then_read:
            read += ends.consumer.read()
            assert read == written
    assert read + ends.consumer.read() == written
    ends.close()


def test_each_counter_has_its_own_cache_line() -> None:
    cells = [
        HEAD,
        TAIL,
        ring.PRODUCER_SESSION,
        ring.CONSUMER_SESSION,
        CONSUMER_SLEEP,
        PRODUCER_SLEEP,
    ]
    assert [cell * 8 for cell in cells] == [0x40, 0x80, 0xC0, 0x100, 0x140, 0x180]


# --- doorbells ---


def test_an_awake_consumer_is_not_notified(ends: Ends) -> None:
    ends.producer.write(b"a")
    assert rings_of(ends.data_bell) == 0


def test_a_sleeping_consumer_is_notified_once_per_sleep(ends: Ends) -> None:
    for _ in range(2):
        ends.consumer.sleep_state.begin_sleep()
        ends.producer.write(b"a")
        ends.producer.write(b"b")
        assert rings_of(ends.data_bell) == 1
        ends.consumer.sleep_state.end_sleep()
        ends.producer.write(b"c")
        assert rings_of(ends.data_bell) == 0
    assert ends.producer.bells == 2


def test_a_producer_that_waits_for_space_is_notified_once(ends: Ends) -> None:
    ends.producer.write(bytes(SIZE))
    ends.producer.sleep_state.begin_sleep()
    ends.producer.sleep_state.begin_sleep()
    ends.consumer.read()
    ends.producer.write(b"x")
    ends.consumer.read()
    assert rings_of(ends.room_bell) == 1
    assert ends.consumer.bells == 1


@pytest.mark.parametrize("died_sleeping", [False, True])
def test_the_successor_of_a_consumer_is_notified_too(ends: Ends, died_sleeping: bool) -> None:
    ends.consumer.sleep_state.begin_sleep()
    if died_sleeping:
        ends.producer.write(b"a")
    else:
        ends.consumer.sleep_state.end_sleep()
    rings_of(ends.data_bell)
    successor = RingConsumer(ends.memory, ends.room_bell, load_fences())
    ends.producer.write(b"b")
    assert rings_of(ends.data_bell) == 0
    successor.sleep_state.begin_sleep()
    ends.producer.write(b"c")
    assert rings_of(ends.data_bell) == 1


def test_the_successor_of_a_producer_that_died_waiting_for_space_is_notified_too(
    ends: Ends,
) -> None:
    ends.producer.write(bytes(SIZE))
    assert ends.producer.is_full()
    ends.consumer.read()
    assert rings_of(ends.room_bell) == 1
    successor = RingProducer(ends.memory, ends.data_bell, load_fences())
    successor.clear()
    ends.consumer.clear()
    successor.write(bytes(SIZE))
    assert successor.is_full()
    ends.consumer.read()
    assert rings_of(ends.room_bell) == 1


class Machine:
    """A machine on which the other side falls asleep exactly at the fence, as may happen on a real
    one.

    A fence at any other position than between the store and the check of the sleeper would lose the
    doorbell.
    """

    def __init__(self) -> None:
        self.ends = Ends()
        self.stored: list[tuple[int, int]] = []

    def fences(self, sleep_state: SleepState) -> Fences:
        cells = self.ends.memory.cells

        def full() -> None:
            self.stored.append((cells[HEAD], cells[TAIL]))
            sleep_state.begin_sleep()

        return Fences(full=Fence(full), order=None)


def test_a_producer_stores_then_fences_then_checks_the_sleeper() -> None:
    machine = Machine()
    ends = machine.ends
    fences = machine.fences(ends.consumer.sleep_state)
    RingProducer(ends.memory, ends.data_bell, fences).write(b"abc")
    assert machine.stored == [(3, 0)], "the store comes first"
    assert rings_of(ends.data_bell) == 1, "the check comes last"


def test_a_consumer_stores_then_fences_then_checks_the_sleeper() -> None:
    machine = Machine()
    ends = machine.ends
    ends.producer.write(b"abc")
    fences = machine.fences(ends.producer.sleep_state)
    RingConsumer(ends.memory, ends.room_bell, fences).read()
    assert machine.stored == [(3, 3)], "the store comes first"
    assert rings_of(ends.room_bell) == 1, "the check comes last"


# --- sessions ---


@settings(max_examples=80, stateful_step_count=40)
class SessionsInAnyOrder(RuleBasedStateMachine):
    """Both sides notice a new session number at any time, in two steps, and may be restarted
    between any two steps.

    Bytes contain the number of the session in which they were written. A consumer must read only
    the bytes of its own session, all of them, in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ends = Ends()
        self.board = 1
        self.producer_in = self.consumer_in = 0  # The announced sessions, 0 for none
        self.producer_cleared = self.consumer_cleared = 0
        self.written: dict[int, bytes] = {}
        self.read: dict[int, bytes] = {}

    @rule()
    def bump(self) -> None:
        self.board += 1

    @rule()
    def restart_producer(self) -> None:
        self.board += 1
        self.ends.producer = RingProducer(self.ends.memory, self.ends.data_bell, load_fences())
        self.producer_in = self.producer_cleared = 0

    @rule()
    def restart_consumer(self) -> None:
        self.board += 1
        self.ends.consumer = RingConsumer(self.ends.memory, self.ends.room_bell, load_fences())
        self.consumer_in = self.consumer_cleared = 0

    @precondition(lambda self: self.producer_in != self.board)
    @rule()
    def producer_clears(self) -> None:
        self.ends.producer.clear()
        self.producer_cleared = self.board

    @precondition(lambda self: self.producer_cleared > self.producer_in)
    @rule()
    def producer_announces(self) -> None:
        self.ends.producer.announce(self.producer_cleared)
        self.producer_in = self.producer_cleared

    @precondition(lambda self: self.consumer_in != self.board)
    @rule()
    def consumer_clears(self) -> None:
        self.ends.consumer.clear()
        self.consumer_cleared = self.board

    @precondition(lambda self: self.consumer_cleared > self.consumer_in)
    @rule()
    def consumer_announces(self) -> None:
        self.ends.consumer.announce(self.consumer_cleared)
        self.consumer_in = self.consumer_cleared

    @rule(length=st.integers(1, SIZE))
    def write_without_checking_the_board(self, length: int) -> None:
        """Write as a stale producer, which was connected once and has not noticed the new
        session.
        """
        session = self.producer_in
        open_now = self.producer_cleared == session and self.ends.producer.peer_session() == session
        if session and (open_now or session in self.written) and self.producer_cleared == session:
            chunk = bytes([session % 256]) * length
            self.written[session] = (
                self.written.get(session, b"") + chunk[: self.ends.producer.write(chunk)]
            )

    @rule()
    def read_without_checking_the_board(self) -> None:
        session = self.consumer_in
        open_now = self.consumer_cleared == session and self.ends.consumer.peer_session() == session
        if session and (open_now or session in self.read) and self.consumer_cleared == session:
            got = self.ends.consumer.read()
            self.read[session] = self.read.get(session, b"") + got
            assert self.written.get(session, b"").startswith(self.read[session])
            if (
                open_now and self.producer_cleared == session
            ):  # Otherwise its last bytes are discarded with its session
                assert self.read[session] == self.written.get(session, b"")

    def teardown(self) -> None:
        self.ends.close()


TestSessions = pytest.mark.slow(SessionsInAnyOrder.TestCase)


# --- fences ---


def test_a_machine_without_strong_memory_ordering_uses_fences_of_the_library() -> None:
    found = load_fences("aarch64")
    with found.full:
        pass
    assert found.order is not None
    found.order()


def test_a_machine_without_any_fence_is_refused_with_a_reason() -> None:
    with pytest.raises(
        RuntimeError, match=r"libnothere\.so has no atomic_thread_fence; install libatomic"
    ):
        fences._LibraryFence("libnothere.so")
    with pytest.raises(RuntimeError, match="atomic_thread_fence"):
        fences._LibraryFence("libc.so.6")
