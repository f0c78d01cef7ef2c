"""Keys of a front: the current keys, and the effects of a change on requests in flight.

key table --KeySource--> Server, each tick --> Keys.access: requests are checked against it
                                            |-> cached heads: dropped
                                            |-> waiting calls: ended if they are now refused
                                            '-> streams, watch sessions: closed if the key
                                                was removed or its rights have changed
"""

from __future__ import annotations

from typing import Protocol

from topics.engine.access import ANYONE, Access, Principal
from topics.errors import Unauthorized


class KeySource(Protocol):
    """The source of the keys of a front."""

    @property
    def access(self) -> Access:
        """The keys at startup."""

    def changed(self) -> Access | None:
        """Return the keys if they have changed since the last call, otherwise None."""


class Keys:
    """The current keys. ``access`` is replaced when they change."""

    def __init__(self, access: Access | None = None) -> None:
        """``access`` None means a server without keys."""
        self.access = Access() if access is None else access

    def refusal(self, principal: Principal) -> Unauthorized | None:
        """Return the error if a stream or session of the principal must end, otherwise None.

        It must end if its key was removed or its rights have changed.
        """
        if principal is ANYONE:
            return None
        now = self.access.current(principal)
        if now is None:
            return key_removed_error()
        if now is principal or now.has_rights_of(principal):
            return None
        return Unauthorized("the rights of this key have changed")

    def check(self, principal: Principal) -> None:
        """Raise the error if `refusal` returns one."""
        if (failure := self.refusal(principal)) is not None:
            raise failure


def key_removed_error() -> Unauthorized:
    """Return the error for a request whose key was removed in the meantime."""
    return Unauthorized("this key was removed")
