"""Judges of what is said: the clients of the tests tell them of each answer, event and message.
`tests.specs.judge` holds these to the specifications, in the contract tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from tests.support.api import Answer


class Judge(Protocol):
    """Each of these fails for what should not be."""

    def answered(self, method: str, target: str, answer: Answer, body: bytes | None = None) -> None:
        """A request got this answer; ``body``: that of the request, if it is plain JSON."""

    def answered_unknown(self, answer: Answer) -> None:
        """So did bytes of which nobody knows what the server took them for."""

    def came(self, target: str, event: str | None, data: str) -> None:
        """A stream had this event."""

    def said(self, message: Any, command: Any = None) -> None:
        """A WebSocket had this message; ``command``: what it answers."""


judges: list[Judge] = []


def heard(method: str, target: str, answer: Answer, body: bytes | None = None) -> None:
    """Tell all judges."""
    for judge in judges:
        judge.answered(method, target, answer, body)


def heard_of(answer: Answer) -> None:
    """Tell all judges, of an answer to who knows what."""
    for judge in judges:
        judge.answered_unknown(answer)
