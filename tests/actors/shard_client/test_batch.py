"""A batch sends once, at its end, over every link."""

from __future__ import annotations

import pytest

from topics.actors.shard_client.batch import Batch


class Counting:
    """A link that counts."""

    def __init__(self) -> None:
        self.flushes = 0

    def flush(self) -> None:
        self.flushes += 1


def test_the_end_of_a_batch_flushes_every_link() -> None:
    links = [Counting(), Counting()]
    batch = Batch(links)
    with batch:
        assert (batch.is_open, [link.flushes for link in links]) == (True, [0, 0])
    assert (batch.is_open, [link.flushes for link in links]) == (False, [1, 1])


def test_a_batch_that_fails_is_sent_and_over() -> None:
    link = Counting()
    batch = Batch([link])
    with pytest.raises(ValueError, match="a bug"), batch:
        raise ValueError("a bug")
    assert (batch.is_open, link.flushes) == (False, 1)
