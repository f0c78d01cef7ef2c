"""Which Accept fields allow an event stream."""

from __future__ import annotations

import pytest

from topics.front.live.watches import accepts_events


@pytest.mark.parametrize(
    ("accept", "allowed"),
    [
        (b"", True),
        (b"*/*", True),
        (b"text/*", True),
        (b"text/event-stream;q=0.5", True),
        (b"application/json", False),
        (b"text/event-stream;q=0, */*", False),
        (b"text/*;q=0.0, text/event-stream", True),
    ],
)
def test_the_most_specific_range_counts(accept: bytes, allowed: bool) -> None:
    assert accepts_events(accept) is allowed
