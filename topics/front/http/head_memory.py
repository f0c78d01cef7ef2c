"""Head memory: what was decided about request heads, by the digests of their bytes.

    young --full--> old --full again--> forgotten
      ^--- found -----'

Two generations: a head that comes again stays, however many others come only once (topics that are
made, appends to a hundred thousand topics). No entries are sorted, or searched for the oldest one.
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar

YOUNG_MAX: Final = 4096  # entries of a generation

T = TypeVar("T")


class HeadMemory(Generic[T]):
    """At most ``2 * young_max`` entries."""

    def __init__(self, young_max: int = YOUNG_MAX) -> None:
        self._young_max = young_max
        self._young: dict[bytes, T] = {}
        self._old: dict[bytes, T] = {}

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def entries(self) -> dict[bytes, T]:
        """All of them."""
        return {**self._old, **self._young}

    def get(self, digest: bytes) -> T | None:
        """What is known under the digest, which counts as young again."""
        found = self._young.get(digest)
        if found is None and (found := self._old.get(digest)) is not None:
            self.put(digest, found)
        return found

    def put(self, digest: bytes, value: T) -> None:
        """Keep it. When the young generation is full, the old one is forgotten."""
        young = self._young
        if len(young) >= self._young_max:
            self._old, self._young = young, (young := {})
        young[digest] = value

    def clear(self) -> None:
        """Forget everything."""
        self._young, self._old = {}, {}
