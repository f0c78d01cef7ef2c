"""Service: the one way in which a part of a shard attaches to its loop.

    register            which calls and events it handles
    on_config           a topic is made, configured or deleted: that change is committed
    on_due              a turn ends, and the service has set `is_due`: what it adds to the log and
                        to the links goes with the turn
    on_loss             the log has lost changes: they are undone
    on_session_closed   a front has gone
    run                 a task beside the loop, for work that waits for files

Hooks run inside a turn and never wait. A service leaves out what it does not need; the loop calls
only the hooks that a class defines. Who cares for some topics alone follows those
(`Topic.follow`), for most have no readers, no routers and nobody who waits.
"""

from __future__ import annotations

from topics.actors.rpc.message_router import MessageRouter
from topics.actors.rpc.session import LinkSession
from topics.engine.changes.change import Change


class Service:
    """Base of all services of a shard. ``is_due``: call `on_due` at the end of this turn, or of the
    next if that has been."""

    is_due = False

    def register(self, router: MessageRouter) -> None:
        """Route the calls that this service handles to it."""

    def on_config(self, change: Change) -> None:
        """Note a topic that was made, configured or deleted."""

    def on_due(self) -> None:
        """Do what is due. ``is_due`` is False by now."""

    def on_loss(self) -> None:
        """Note that changes were undone: leases are free again, topics were never made."""

    def on_session_closed(self, session: LinkSession) -> None:
        """Forget what belongs to a front that has gone."""

    async def run(self) -> None:
        """Work beside the loop until cancelled, or return."""
