"""Future timestamps: finds topics whose newest `$ts` is in the future (decision 0076).

`$ts` never decreases within a topic. If the wall clock was ahead for a moment, all later records of
the topic get the `$ts` of that moment, until the clock reaches it. The age of these records is
measured from this `$ts`, so they expire too late. No other check detects this. Each call of `sweep`
checks a bounded number of topics.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from topics.engine.now import Now
from topics.engine.topic import Topic

FUTURE_MIN_MS: Final = 3_600_000  # tolerates clock drift and a time zone that is wrong by an hour
SWEEP_TOPICS: Final = 1024  # number of topics that `sweep` checks in a tenth of a millisecond


class FutureTimestamps:
    """Tracks which topics of one shard are ahead of the clock. ``found`` contains their ids, as of
    the last check of each topic.
    """

    def __init__(self) -> None:
        self.found: set[int] = set()
        self._unchecked: list[int] = []

    def sweep(self, by_id: Mapping[int, Topic], now: Now) -> list[Topic]:
        """Check the next topics. Return the topics that are ahead of the clock now and were not at
        their last check.
        """
        if not self._unchecked:
            self._unchecked = [*by_id]
            self.found &= by_id.keys()
        some, self._unchecked = self._unchecked[-SWEEP_TOPICS:], self._unchecked[:-SWEEP_TOPICS]
        last_ts, new = now.ts + FUTURE_MIN_MS, list[Topic]()
        for topic_id in some:
            topic = by_id.get(topic_id)
            if topic is None or topic.last_ts <= last_ts:
                self.found.discard(topic_id)
            elif topic_id not in self.found:
                self.found.add(topic_id)
                new.append(topic)
        return new
