"""Cold call: what a request of the cold lane holds, beside the head that Hypercorn reads.

Imports nothing of Hypercorn or Quart: the fast lane serves before they are loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from topics.formats.buffers import Buffer
from topics.front.request import Body, Request

CALL = "topics.call"  # in the ASGI scope's state


@dataclass(slots=True)
class ColdCall:
    """What the application answers. ``at``: monotonic ns. ``close``: the answer is the last of its
    connection.
    """

    request: Request
    body: Body | None
    at: int
    close: bool
    has_answered: bool = False
    status: int = 0  # of the answer
    on_unsent: Callable[[], None] | None = None  # as that of `Answer`

    def take_body(self) -> Body:
        """The body changes hands here; once."""
        assert self.body is not None, "the body is taken once"
        body, self.body = self.body, None
        return body

    def drop_body(self) -> None:
        """Free a body that was not taken."""
        body, self.body = self.body, None
        if body is not None and not isinstance(body, Buffer):
            body.free()
