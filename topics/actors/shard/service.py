"""Service: the interface by which the parts of a shard are attached to its loop.

    register            route calls and events to the service
    on_config           a change that creates, configures or deletes a topic is committed
    on_due              an iteration ends and the service has set `is_due`; its frames and messages
                        are sent with the iteration
    on_rollback         the log has lost changes, and they are undone
    on_session_closed   the session with a front has closed
    run                 task that runs concurrently with the loop, for work that waits for files

Hooks never block. They run inside an iteration, except `on_session_closed`, which can request an
iteration by waking the deadline queue. A service defines only the hooks that it needs, and the loop
calls only the defined hooks. A service that must be notified of commits to some topics follows
these topics (`Topic.follow`), because most topics have no readers, no routers and no waiting
clients.
"""

from __future__ import annotations

from topics.actors.rpc.message_router import MessageRouter
from topics.actors.rpc.session import LinkSession
from topics.engine.changes.change import Change


class Service:
    """Base of all services of a shard.

    Set ``is_due`` to have `on_due` called at the end of this iteration, or of the next one if this
    iteration has already called it.
    """

    is_due = False

    def register(self, router: MessageRouter) -> None:
        """Route the calls that this service handles to it."""

    def on_config(self, change: Change) -> None:
        """Handle the creation, configuration or deletion of a topic."""

    def on_due(self) -> None:
        """Perform the due work. The loop has already set ``is_due`` to False."""

    def on_rollback(self) -> None:
        """Handle undone changes: the leases and topics that they created do not exist."""

    def on_session_closed(self, session: LinkSession) -> None:
        """Drop the state of a front whose session has closed."""

    async def run(self) -> None:
        """Work concurrently with the loop, until the work is done or until cancelled."""
