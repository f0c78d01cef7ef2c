"""Grants: which leases the answers had whose callers had to wait, in case they reached nobody.

answered --the client has hung up, or its front gave the call up--> taken: give the leases back
    '--FORGET_S, or GRANTS_MAX newer ones, or the end of the session--> forgotten
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

import trio

from topics.actors.rpc.inbound import PeerSession
from topics.engine.topic import Topic

GRANTS_MAX = 4096
FORGET_S = 60.0


class Grant(NamedTuple):
    """The leases of one answer. ``cid``: the call that was answered. ``jobs``: seqs, and the
    numbers of their leases.
    """

    session: PeerSession
    cid: int
    topic: Topic
    jobs: Sequence[tuple[int, int]]


class Grants:
    """The newest grants, by a serial from 1 on and by call."""

    def __init__(self) -> None:
        self._by_serial: dict[int, tuple[float, Grant]] = {}  # with the time when it is forgotten
        self._by_call: dict[tuple[PeerSession, int], int] = {}
        self._serial = 0

    def __len__(self) -> int:
        return len(self._by_serial)

    def add(self, grant: Grant) -> int:
        """Remember a grant; its serial."""
        now = trio.current_time()
        self._serial += 1
        self._by_serial[self._serial] = (now + FORGET_S, grant)
        self._by_call[grant.session, grant.cid] = self._serial
        self._forget_old(now)
        return self._serial

    def take(self, session: PeerSession, serial: int) -> Grant | None:
        """The grant of that serial, if it was given to that session. It is forgotten."""
        found = self._by_serial.get(serial)
        if found is None or found[1].session is not session:
            return None
        self._forget(serial)
        return found[1]

    def take_call(self, session: PeerSession, cid: int) -> Grant | None:
        """The grant with which that call was answered. It is forgotten."""
        serial = self._by_call.get((session, cid))
        return None if serial is None else self.take(session, serial)

    def forget_session(self, session: PeerSession) -> None:
        """Its front has gone: nobody will speak of its grants."""
        for serial, (_, grant) in tuple(self._by_serial.items()):
            if grant.session is session:
                self._forget(serial)

    def _forget_old(self, now: float) -> None:
        surplus = len(self._by_serial) - GRANTS_MAX
        for position, serial in enumerate(tuple(islice(self._by_serial, max(surplus, 2)))):
            if position < surplus or self._by_serial[serial][0] <= now:
                self._forget(serial)

    def _forget(self, serial: int) -> None:
        _, grant = self._by_serial.pop(serial)
        del self._by_call[grant.session, grant.cid]
