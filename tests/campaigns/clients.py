"""Clients of a server whose processes are killed: threads that reconnect and repeat requests
without a response.

A failure that an outage explains is `Refused`. A response that violates the contract is
`Violation`.
"""

from __future__ import annotations

import http.client
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from tests.support.api import Answer, Api

Address = Callable[[], tuple[str, int]]

RETRY_S = 0.02
RETRY_LIMIT_S = 40.0
BROKEN = (OSError, EOFError, http.client.HTTPException)


class Violation(Exception):
    """The server violates the contract, or contradicts a response that it has sent."""


class Refused(Exception):
    """No response was received, or a response without guarantees. The request can be retried."""


class RetryingClient:
    """Requests to the server at its current address."""

    def __init__(self, address: Address, timeout_s: float = RETRY_LIMIT_S) -> None:
        self.abandoned = threading.Event()
        self._address, self._timeout_s = address, timeout_s
        self._api: Api | None = None

    @property
    def api(self) -> Api:
        """Return the open connection, or a new one."""
        if self._api is None:
            self._api = Api(self._address(), timeout_s=self._timeout_s)
        return self._api

    def request(self, method: str, path: str, body: Any = None) -> Answer:
        """Send a request once. Return the successful response."""
        try:
            answer = self.api.call(method, path, body)
        except BROKEN as error:
            self.close()
            raise Refused(f"{method} {path}: {error!r}") from error
        if answer.status in (429, 503):
            raise Refused(f"{method} {path}: {answer}")
        if answer.status not in (200, 201):
            raise Violation(f"{method} {path} {str(body)[:200]}: {answer}")
        return answer

    def request_until_done(self, method: str, path: str, body: Any = None) -> Any:
        """Retry until success. Return the body, or None if the client was abandoned."""
        deadline = time.monotonic() + RETRY_LIMIT_S
        while not self.abandoned.is_set():
            try:
                return self.request(method, path, body).json()
            except Refused as failure:
                if time.monotonic() > deadline:
                    text = f"no response within {RETRY_LIMIT_S} s; last failure: {failure}"
                    raise Violation(text) from None
            self.abandoned.wait(RETRY_S)
        return None

    def close(self) -> None:
        """Close the connection."""
        if self._api is not None:
            self._api.close()
            self._api = None


class Actor(threading.Thread):
    """Calls ``step`` repeatedly until it is stopped or has found an error."""

    def __init__(self, name: str, address: Address, rng: random.Random) -> None:
        super().__init__(name=name, daemon=True)
        self.address, self.rng, self.client = address, rng, RetryingClient(address)
        self.ending = threading.Event()
        self.problems: list[str] = []
        self.counts: Counter[str] = Counter()

    def run(self) -> None:
        while not self.ending.is_set() and not self.problems:
            self.attempt(self.step)
        self.client.close()

    def step(self) -> None:
        """Execute one step."""
        raise NotImplementedError

    def attempt(self, act: Callable[[], object]) -> None:
        """Execute a step. An outage aborts it, and an error is recorded."""
        try:
            act()
        except (Refused, *BROKEN):
            self.client.close()
            self.ending.wait(RETRY_S)
        except Exception as error:
            self.add_problem(f"{self.name}: {error!r}")

    def add_problem(self, text: str) -> None:
        self.problems.append(text)


def stop_actors(actors: Sequence[Actor]) -> None:
    """Wait until all actors have finished their current step."""
    for actor in actors:
        actor.ending.set()
    for actor in actors:
        actor.join(2 * RETRY_LIMIT_S)
        assert not actor.is_alive(), f"{actor.name} hangs"
