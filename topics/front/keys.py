"""Keys of a front: those that count now, and what has become of those that counted earlier.

key table --KeySource--> Server, each beat  --> Keys.access: requests are checked against it
                                                |-> remembered heads: forgotten
                                                |-> waiting calls:    ended, if refused now
                                                '-> streams, watch sessions: ended, if the key
                                                    is gone or has other rights
"""

from __future__ import annotations

from typing import Protocol

from topics.engine.access import ANYONE, Access, Principal
from topics.errors import Unauthorized


class KeySource(Protocol):
    """Where a front has its keys from."""

    @property
    def access(self) -> Access:
        """The keys at the start."""

    def changed(self) -> Access | None:
        """The keys, when they have changed since the last call."""


class Keys:
    """The keys that count. ``access`` is replaced when they change."""

    def __init__(self, access: Access | None = None) -> None:
        """No keys, unless there are some."""
        self.access = Access() if access is None else access

    def refusal(self, principal: Principal) -> Unauthorized | None:
        """Why what a principal began must end: its key is gone, or has other rights."""
        if principal is ANYONE:
            return None
        now = self.access.current(principal)
        if now is None:
            return key_is_gone()
        if now is principal or now.has_rights_of(principal):
            return None
        return Unauthorized("the rights of this key have changed")

    def check(self, principal: Principal) -> None:
        """Raises what `refusal` tells."""
        if (failure := self.refusal(principal)) is not None:
            raise failure


def key_is_gone() -> Unauthorized:
    """The failure of what a key began that was removed meanwhile."""
    return Unauthorized("this key was removed")
