"""Bands: what a front knows of the priorities of topics (`topics.engine.priority`).

Shards tell a topic's band with each append. A topic that nobody has read lately is in the band of
new topics, as most are: only the others are kept, the latest `KEPT_MAX` of them.
"""

from __future__ import annotations

from typing import Final

from topics.engine.priority import NEW_BAND

KEPT_MAX: Final = 65_536  # topics


class Bands:
    """The bands of topics, as last heard."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._known)

    def of(self, topic: str) -> int:
        """The topic's band."""
        return self._known.get(topic, NEW_BAND)

    def learn(self, topic: str, band: int) -> None:
        """A shard has told the topic's band."""
        known = self._known
        if known.get(topic, NEW_BAND) == band:
            return
        known.pop(topic, None)
        if band == NEW_BAND:
            return
        if len(known) >= KEPT_MAX:
            del known[next(iter(known))]
        known[topic] = band
