"""Link memory: what the two ends of a link share, and the doorbells that wake them."""

from __future__ import annotations

import os

import pytest

from tests.actors.link.link_support import SMALL
from topics.actors.link.link_memory import LinkMemory, LinkSizes
from topics.actors.link.process_id import FRONT, shard_id
from topics.config import Settings


def test_the_lower_id_is_the_first_end_whoever_is_named_first() -> None:
    memory = LinkMemory(shard_id(3), FRONT, SMALL)
    assert memory.ends == (FRONT, shard_id(3))
    memory.close()


def test_both_doorbells_ring_and_are_heard_once() -> None:
    memory = LinkMemory(FRONT, shard_id(0), SMALL)
    memory.ring_doorbells()
    for bell in memory.bells:
        assert os.eventfd_read(bell) == 1
        with pytest.raises(BlockingIOError):
            os.eventfd_read(bell)
    memory.close()


def test_a_process_in_which_the_link_does_not_end_keeps_no_doorbell() -> None:
    memory = LinkMemory(FRONT, shard_id(0), SMALL)
    memory.close()
    for bell in memory.bells:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(bell)


def test_no_doorbell_outlives_an_exec() -> None:
    memory = LinkMemory(FRONT, shard_id(0), SMALL)
    assert not any(os.get_inheritable(bell) for bell in memory.bells)
    memory.close()


def test_a_link_of_one_process_or_with_a_ring_of_an_odd_size_is_not_made() -> None:
    with pytest.raises(AssertionError, match="two ends"):
        LinkMemory(FRONT, FRONT, SMALL)
    with pytest.raises(ValueError, match="ring"):
        LinkMemory(FRONT, shard_id(0), LinkSizes(5000, 1000, 0))


def test_the_settings_choose_the_sizes() -> None:
    settings = Settings(ring_bytes=1 << 16, inline_bytes=4096, arena_bytes=1 << 20)
    assert LinkSizes.of(settings) == LinkSizes(1 << 16, 4096, 1 << 20)
