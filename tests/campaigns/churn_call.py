"""Requests that are repeated until they are acknowledged, whatever dies meanwhile."""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.support.api import Answer, Api

RETRY_S = 0.02
GIVE_UP_S = 40.0


class Wrong(Exception):
    """The server contradicts what it has acknowledged."""


@dataclass(slots=True)
class Report:
    """What an owner did."""

    steps: int = 0
    records: int = 0
    deleted: int = 0
    checks: int = 0
    outages: int = 0
    problem: str | None = None


class Caller:
    """Asks for one topic, on a connection that it opens again when it breaks."""

    def __init__(self, address: Callable[[], tuple[str, int]], topic: str, report: Report) -> None:
        self.is_broken = False  # since its owner set it back, there was an outage
        self._address, self._topic, self._report = address, topic, report
        self._api: Api | None = None

    def call(self, method: str, tail: str, body: Any = None) -> Answer:
        """Until it is acknowledged. `Wrong` for any answer that an outage does not explain."""
        deadline = time.monotonic() + GIVE_UP_S
        answer: Answer | None = None
        while time.monotonic() < deadline:
            answer = self._try(method, tail, body)
            if answer is not None and answer.status in (200, 201):
                return answer
            if answer is not None and answer.status not in (429, 503):
                raise Wrong(f"{method} {tail} {str(body)[:200]}: {answer}")
            self.is_broken = True
            self._report.outages += 1
            time.sleep(RETRY_S)
        raise Wrong(f"{method} {tail}: no answer in {GIVE_UP_S} s (last: {answer})")

    def _try(self, method: str, tail: str, body: Any) -> Answer | None:
        try:
            if self._api is None:
                self._api = Api(self._address(), timeout_s=GIVE_UP_S)
            return self._api.call(method, f"/v0/topics/{self._topic}{tail}", body)
        except (OSError, http.client.HTTPException):
            self.close()
            return None

    def close(self) -> None:
        """Hang up."""
        if self._api is not None:
            self._api.close()
            self._api = None
