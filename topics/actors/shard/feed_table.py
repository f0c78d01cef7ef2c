"""Feed table: all feeds of a shard, by session and number and by topic."""

from __future__ import annotations

from topics.actors.rpc.session import LinkSession
from topics.engine.topic import Topic
from topics.formats.api.diff_body import Diff


class Feed:
    """A cursor that follows the head of a topic: ``seq`` is where its last page ended.

    ``strong``: it follows only what is synced. ``under_way`` counts pages that the front has not
    taken yet.
    """

    __slots__ = ("number", "seq", "session", "strong", "topic", "under_way", "view")

    def __init__(
        self, session: LinkSession, number: int, topic: Topic, view: Diff, strong: bool, seq: int
    ) -> None:
        self.session, self.number, self.topic = session, number, topic
        self.view, self.strong, self.seq = view, strong, seq
        self.under_way = 0


class FeedTable:
    """The open feeds. A session names each of its feeds by a number."""

    def __init__(self) -> None:
        self._by_session: dict[LinkSession, dict[int, Feed]] = {}
        self._by_topic: dict[int, dict[Feed, None]] = {}
        self.has_feeds = self._by_topic.__contains__  # whether a feed follows the topic of this id

    def __len__(self) -> int:
        return sum(map(len, self._by_session.values()))

    def add(self, feed: Feed) -> None:
        """Add a feed whose number is free."""
        self._by_session.setdefault(feed.session, {})[feed.number] = feed
        self._by_topic.setdefault(feed.topic.id, {})[feed] = None

    def remove(self, feed: Feed) -> bool:
        """Remove a feed; False when it is not here any more."""
        if self.find(feed.session, feed.number) is not feed:
            return False
        of_session, of_topic = self._by_session[feed.session], self._by_topic[feed.topic.id]
        del of_session[feed.number], of_topic[feed]
        if not of_session:
            del self._by_session[feed.session]
        if not of_topic:
            del self._by_topic[feed.topic.id]
        return True

    def find(self, session: LinkSession, number: int) -> Feed | None:
        """The feed of that number, if it is open."""
        return self._by_session.get(session, {}).get(number)

    def of_topic(self, topic_id: int) -> tuple[Feed, ...]:
        """All feeds of a topic, oldest first."""
        return tuple(self._by_topic.get(topic_id, ()))

    def of_session(self, session: LinkSession) -> tuple[Feed, ...]:
        """All feeds of a session."""
        return tuple(self._by_session.get(session, {}).values())

    def of_deleted_topics(self) -> list[Feed]:
        """All feeds whose topic is deleted."""
        return [
            feed
            for feeds in self._by_topic.values()
            if next(iter(feeds)).topic.deleted
            for feed in feeds
        ]
