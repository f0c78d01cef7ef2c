"""Key reload: after a hang-up (SIGHUP) the key files are read again, and the front told.

                  files stay as they are for SETTLE_S
    idle ──SIGHUP──▶ settling ────────────────────────▶ read ──right──▶ published, logged
                      ▲    │ they change, for              └───wrong──▶ logged and counted; the
                      └────┘ GIVE_UP_S at most                          earlier keys stay

An operator may send the signal while an editor still writes. Half a file can look like a whole one
in which the last entry has lost its scopes, so it is read when it has come to rest. Further
hang-ups meanwhile are the same reload.
"""

from __future__ import annotations

import math
from typing import Final

import structlog

from topics.actors.link.board import Board
from topics.actors.link.key_table import KeyTable
from topics.engine.access import Access
from topics.process.keys import FileState, KeySources

SETTLE_S: Final = 0.25
GIVE_UP_S: Final = 5.0

log = structlog.get_logger()


class KeyReload:
    """The supervisor's keys, from the first fork to the last. ``table`` is what the front sees."""

    def __init__(self, board: Board, sources: KeySources, access: Access) -> None:
        """Publishes the keys of the start."""
        self._board, self._sources = board, sources
        self._access = access
        self.table = KeyTable.of(access)
        self.next_at = math.inf  # when `advance` has something to do, as monotonic seconds
        self._give_up_at = math.inf
        self._seen: list[FileState] = []

    def hang_up(self, now: float) -> None:
        """A hang-up came: read the key files soon."""
        if not self._sources.files:
            log.info("hang-up ignored", reason="there is no key file")
        elif self.next_at == math.inf:
            self._give_up_at = now + GIVE_UP_S
            self._look_again(now)

    def advance(self, now: float) -> None:
        """Read the key files if a hang-up asks for it and they have come to rest."""
        if now < self.next_at:
            return
        if now < self._give_up_at and self._sources.state() != self._seen:
            self._look_again(now)
            return
        try:
            access = self._read()
            if access is None and now < self._give_up_at:
                self._look_again(now)
                return
            self._publish(access)
        except ValueError as error:
            self._board.keys_reload_failed += 1
            log.error("keys not reloaded, the earlier ones stay", reason=str(error))  # noqa: TRY400
        self.next_at = self._give_up_at = math.inf

    def _look_again(self, now: float) -> None:
        self._seen, self.next_at = self._sources.state(), now + SETTLE_S

    def _read(self) -> Access | None:
        """The keys of the files, or None when a file has changed meanwhile."""
        try:
            access = self._sources.read_again()
        except ValueError:
            if self._sources.state() != self._seen:
                return None
            raise
        return access if self._sources.state() == self._seen else None

    def _publish(self, access: Access | None) -> None:
        if access is None:
            raise ValueError("the key files do not come to rest")
        changes = _changes(self._access, access)
        if any(changes.values()):
            self.table.publish(access)
            self._access = access
        log.info("keys reloaded", keys=len(access.principals), **changes)


def _changes(before: Access, after: Access) -> dict[str, int]:
    """How many keys came, went and got other rights, as fields of a log line."""
    kept = [(one, now) for one in before.principals if (now := after.current(one)) is not None]
    return {
        "added": len(after.principals) - len(kept),
        "removed": len(before.principals) - len(kept),
        "changed": sum(not now.has_rights_of(one) for one, now in kept),
    }
