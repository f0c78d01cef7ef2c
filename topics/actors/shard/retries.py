"""Retries: changes that make room, and met a log without room beside others (decision 0015).

Such a change may use the log's reserve when all frames of its group make room. One that shares its
group with an append may not, and the log refuses both; its request is then handled once more, in a
group without appends.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from topics.actors.rpc.replies import answer_error
from topics.actors.shard.group_commit import GroupCommit
from topics.actors.shard.held_topics import Handler, Request, handle_late
from topics.actors.shard.room import unwritable
from topics.actors.shard.service import Service
from topics.storage.wal.file import NoRoom


class Retries(Service):
    """The requests that are handled once more. No hook of a turn submits changes before it."""

    def __init__(self, commits: GroupCommit) -> None:
        self._commits = commits
        self._waiting: list[tuple[Handler, Request]] = []

    def refuse(
        self, handler: Callable[..., None], request: Request, error: OSError, *, again: bool
    ) -> None:
        """The log has refused the change of ``request`` with ``error``: call ``handler`` once more,
        with ``again=True``, or answer if that was done or does not help.
        """
        if isinstance(error, NoRoom) and not again:
            self._waiting.append((partial(handler, again=True), request))
            self.is_due = True
        else:
            answer_error(request, unwritable(error))

    def on_due(self) -> None:
        """Handle them; the log goes on by now."""
        waiting, self._waiting = self._waiting, []
        for handler, request in waiting:
            handle_late(handler, request)
        self._commits.flush(at_once=False)
