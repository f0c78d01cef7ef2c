"""Feed calls: what a front asks of the shards on behalf of readers, each question once.

    feed.open   subscribe; the answer says where the feed stands
    feed.read   one page for readers that catch up
    feed.taken  a page has been received: the shard may send the next one
    feed.close  unsubscribe

Readers that ask the same question while it is in flight share one call and its answer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import trio

from topics.errors import TopicsError
from topics.front.backend import Backend, Reply
from topics.front.live.pages import FeedPage
from topics.front.live.subscriptions import FeedSubscription, Reader

Answered = Callable[[dict[str, Any]], None]


class FeedCalls:
    """The questions in flight, and the notifications, of all feeds of a front."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._in_flight: dict[tuple[Any, ...], SharedAnswer] = {}

    async def open(self, feed: FeedSubscription) -> None:
        """Subscribe. Raises `TopicsError`."""
        params = {"feed": feed.number, "topic": feed.topic, "view": feed.view.as_map()}
        opened = partial(_note_open, feed)
        await self._share(("open", feed.number), feed.shard, "feed.open", params, opened).wait()

    async def read(self, reader: Reader, until_seq: int | None) -> tuple[FeedPage, int]:
        """The page from where the reader stands, to ``until_seq`` at most, and the topic's epoch.
        Raises `TopicsError`.
        """
        key = (reader.topic, reader.view, reader.seq, until_seq, reader.epoch)
        params = {
            "topic": reader.topic,
            "view": reader.view.as_map(),
            "from_seq": reader.seq,
            "until_seq": until_seq,
            "epoch": reader.epoch,
        }
        shared = self._share(key, reader.shard, "feed.read", params, _ignore)
        result, body = await shared.wait()
        if shared.page is None:
            shared.page = FeedPage(reader.topic, result, body)
        return shared.page, result["epoch"]

    def taken(self, feed: FeedSubscription) -> None:
        """Tell the shard that a page has been received; the link flushes behind each batch."""
        self._backend.notify(feed.shard, "feed.taken", {"feed": feed.number})

    def close(self, feed: FeedSubscription) -> None:
        """Unsubscribe."""
        self._backend.notify(feed.shard, "feed.close", {"feed": feed.number})
        self._backend.flush(feed.shard)

    def _share(
        self,
        key: tuple[Any, ...],
        shard: int,
        method: str,
        params: dict[str, Any],
        answered: Answered,
    ) -> SharedAnswer:
        shared = self._in_flight.get(key)
        if shared is None:
            shared = self._in_flight[key] = SharedAnswer()

            def then(answer: Reply | TopicsError) -> None:
                self._in_flight.pop(key, None)
                if not isinstance(answer, TopicsError):
                    # At once: the feed's first page may be the next message of the same batch.
                    answered(answer.result)
                shared.settle(answer)

            self._backend.ask(shard, method, params, b"", then)
            self._backend.flush(shard)
        return shared


class SharedAnswer:
    """The answer to one question, for all readers that wait for it."""

    def __init__(self) -> None:
        self.page: FeedPage | None = None
        self._done = trio.Event()
        self._answer: tuple[dict[str, Any], bytes] | TopicsError

    def settle(self, answer: Reply | TopicsError) -> None:
        """The answer has come; its shared memory is released here."""
        if isinstance(answer, TopicsError):
            self._answer = answer
        else:
            self._answer = answer.result, bytes(answer.body)
            answer.release()
        self._done.set()

    async def wait(self) -> tuple[dict[str, Any], bytes]:
        """Result and body. Raises the shard's `TopicsError`."""
        await self._done.wait()
        if isinstance(self._answer, TopicsError):
            raise self._answer
        return self._answer


def _note_open(feed: FeedSubscription, result: dict[str, Any]) -> None:
    feed.is_open = True
    feed.seq = feed.head_seq = result["head_seq"]
    feed.epoch = result["epoch"]


def _ignore(_: dict[str, Any]) -> None:
    pass
