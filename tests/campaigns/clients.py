"""Clients of a server whose processes are killed: threads that find it again, and repeat what was
not answered.

An answer that an outage explains is `Refused`; one that the contract does not have is `Wrong`.
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
GIVE_UP_S = 40.0
BROKEN = (OSError, EOFError, http.client.HTTPException)


class Wrong(Exception):
    """The server contradicts the contract, or what it has acknowledged."""


class Refused(Exception):
    """There is no answer, or one that promises nothing: try again."""


class Line:
    """Requests to the server, wherever it is now."""

    def __init__(self, address: Address, timeout_s: float = GIVE_UP_S) -> None:
        self.abandoned = threading.Event()
        self._address, self._timeout_s = address, timeout_s
        self._api: Api | None = None

    @property
    def api(self) -> Api:
        """The connection that is open, or a new one."""
        if self._api is None:
            self._api = Api(self._address(), timeout_s=self._timeout_s)
        return self._api

    def ask(self, method: str, path: str, body: Any = None) -> Answer:
        """The success of one attempt."""
        try:
            answer = self.api.call(method, path, body)
        except BROKEN as error:
            self.close()
            raise Refused(f"{method} {path}: {error!r}") from error
        if answer.status in (429, 503):
            raise Refused(f"{method} {path}: {answer}")
        if answer.status not in (200, 201):
            raise Wrong(f"{method} {path} {str(body)[:200]}: {answer}")
        return answer

    def insist(self, method: str, path: str, body: Any = None) -> Any:
        """The body of the success, however often it takes; None when it was abandoned."""
        deadline = time.monotonic() + GIVE_UP_S
        while not self.abandoned.is_set():
            try:
                return self.ask(method, path, body).json()
            except Refused as refused:
                if time.monotonic() > deadline:
                    raise Wrong(f"no answer in {GIVE_UP_S} s, the last: {refused}") from None
            self.abandoned.wait(RETRY_S)
        return None

    def close(self) -> None:
        """Hang up."""
        if self._api is not None:
            self._api.close()
            self._api = None


class Actor(threading.Thread):
    """Takes its turns until it is to end or something is wrong."""

    def __init__(self, name: str, address: Address, dice: random.Random) -> None:
        super().__init__(name=name, daemon=True)
        self.address, self.dice, self.line = address, dice, Line(address)
        self.ending = threading.Event()
        self.problems: list[str] = []
        self.counts: Counter[str] = Counter()

    def run(self) -> None:
        while not self.ending.is_set() and not self.problems:
            self.attempt(self.turn)
        self.line.close()

    def turn(self) -> None:
        """Do one thing."""
        raise NotImplementedError

    def attempt(self, act: Callable[[], object]) -> None:
        """Do it; an outage ends it, what is wrong is noted."""
        try:
            act()
        except (Refused, *BROKEN):
            self.line.close()
            self.ending.wait(RETRY_S)
        except Exception as error:
            self.wrong(f"{self.name}: {error!r}")

    def wrong(self, text: str) -> None:
        self.problems.append(text)


def end(actors: Sequence[Actor]) -> None:
    """Let all come to the end of their turns."""
    for actor in actors:
        actor.ending.set()
    for actor in actors:
        actor.join(2 * GIVE_UP_S)
        assert not actor.is_alive(), f"{actor.name} hangs"
