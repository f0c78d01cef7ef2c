"""A few long walks through the life of topics; ``python -m tests.engine.topic_walk --walks 5000``
takes more.
"""

from __future__ import annotations

import pytest

from tests.engine.topic_walk import TopicWalk


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 40, 10))
def test_topics_are_their_model_after_every_step_of_a_walk(first: int) -> None:
    for seed in range(first, first + 10):
        TopicWalk.walk(seed)
