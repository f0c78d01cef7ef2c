"""The memory fence of the machine, or the reason why there is none."""

from __future__ import annotations

import pytest

from topics.actors.link import fences
from topics.actors.link.fences import load_fences


def test_this_machine_has_a_fence() -> None:
    with load_fences().full:
        pass


def test_a_machine_without_strong_ordering_calls_the_library() -> None:
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
