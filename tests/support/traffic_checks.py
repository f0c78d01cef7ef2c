"""Checks of the traffic: the test clients report each response, event and message to them.

`tests.specs.judge` compares these with the specifications in the contract tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from tests.support.api import Answer


class TrafficCheck(Protocol):
    """A checker of traffic. Each method raises for traffic that violates the specifications."""

    def answered(self, method: str, target: str, answer: Answer, body: bytes | None = None) -> None:
        """Check the response to a request. ``body`` is the request body if it is plain JSON."""

    def answered_unknown(self, answer: Answer) -> None:
        """Check a response to bytes that the client cannot identify as a request."""

    def came(self, target: str, event: str | None, data: str) -> None:
        """Check an event of a stream."""

    def said(self, message: Any, command: Any = None) -> None:
        """Check a message of a WebSocket. ``command`` is the command that it responds to."""


checks: list[TrafficCheck] = []


def check_response(method: str, target: str, answer: Answer, body: bytes | None = None) -> None:
    """Report a response to all checks."""
    for check in checks:
        check.answered(method, target, answer, body)


def check_unknown(answer: Answer) -> None:
    """Report a response to an unidentified request to all checks."""
    for check in checks:
        check.answered_unknown(answer)
