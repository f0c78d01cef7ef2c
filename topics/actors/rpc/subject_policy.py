"""Subject policy: which subjects may pass, and what kind of message each means (ADR 011 §3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from topics.formats.wire.envelope import EVENT_PREFIX, RPC_PREFIX

SubjectKind: TypeAlias = Literal["rpc", "event", "custom", "reserved"]
Mode: TypeAlias = Literal["exclusive", "broadcast"]

KINDS: Final = frozenset(get_args(SubjectKind))
MODES: Final = frozenset(get_args(Mode))

DEFAULT_MODES: Final[dict[SubjectKind, Mode]] = {
    "rpc": "exclusive",
    "event": "broadcast",
    "custom": "broadcast",
}
"""The mode of a registration that names none. Nothing is ever delivered for ``reserved``."""


@dataclass(frozen=True, slots=True)
class SubjectPolicy:
    """Checks a subject's prefix: reserved first, then allowed; then ``classify`` gives the kind.

    A subject under a reserved prefix is refused with 1003 even when an allowed prefix covers it
    too, one under no allowed prefix with 1002. ``classify`` sees only subjects that passed both.
    Without it ``rpc/`` is rpc, ``event/`` is event and everything else custom. Messages of kind rpc
    must carry a valid envelope, whatever their prefix.
    """

    allowed_prefixes: tuple[str, ...] = (RPC_PREFIX, EVENT_PREFIX, "stream/", "app/")
    reserved_prefixes: tuple[str, ...] = ("stream/",)
    classify: Callable[[str], SubjectKind] | None = None

    def kind_of(self, subject: str) -> SubjectKind | None:
        """None: no allowed prefix. Raises ValueError when ``classify`` returns no kind."""
        if subject.startswith(self.reserved_prefixes):
            return "reserved"
        if not subject.startswith(self.allowed_prefixes):
            return None
        if self.classify is None:
            return _kind_by_prefix(subject)
        kind = self.classify(subject)
        if kind not in KINDS:
            raise ValueError(
                f"classify({subject!r}) gave {kind!r}, not one of {', '.join(sorted(KINDS))}"
            )
        return kind

    def check_reachable(self, pattern: str, *, is_prefix: bool) -> None:
        """Raises ValueError for a registration that no message can ever reach."""
        if pattern.startswith(self.reserved_prefixes):
            raise ValueError(f"{pattern!r} is reserved: no message will ever reach this handler")
        covers_allowed = is_prefix and any(
            prefix.startswith(pattern) for prefix in self.allowed_prefixes
        )
        if not pattern.startswith(self.allowed_prefixes) and not covers_allowed:
            raise ValueError(
                f"{pattern!r} is under no allowed prefix: no message will ever reach this handler"
            )


def _kind_by_prefix(subject: str) -> SubjectKind:
    if subject.startswith(RPC_PREFIX):
        return "rpc"
    return "event" if subject.startswith(EVENT_PREFIX) else "custom"
