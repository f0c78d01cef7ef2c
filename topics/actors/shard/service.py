"""Service: the one way in which a part of a shard attaches to its loop.

    register            which calls and events it handles
    on_commit           a change is committed; its caller is answered in the same turn
    on_turn             the batch is decided: what it adds to the log and to the links goes with it
    on_session_closed   a front has gone
    run                 a task beside the loop, for work that waits for files

Hooks run inside a turn and never wait. A service leaves out what it does not need; the loop calls
only the hooks that a class defines.
"""

from __future__ import annotations

from topics.actors.rpc.inbound import PeerSession
from topics.actors.rpc.message_router import MessageRouter
from topics.engine.changes.change import Change


class Service:
    """Base of all services of a shard."""

    def register(self, router: MessageRouter) -> None:
        """Route the calls that this service handles to it."""

    def on_commit(self, change: Change) -> None:
        """Note a committed change."""

    def on_turn(self) -> bool:
        """Do what the turn has made due; whether something is left for another turn."""
        return False

    def on_session_closed(self, session: PeerSession) -> None:
        """Forget what belongs to a front that has gone."""

    async def run(self) -> None:
        """Work beside the loop until cancelled, or return."""
