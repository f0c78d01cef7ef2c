"""A model of the content of a disk after a power loss.

    file    durable bytes + pending writes and lengths --sync of the file--> durable
    folder  durable names + pending renames, links, ... --see NAMES--> durable

Operations are numbered in one order. `Durable.lose_power` draws one of POLICIES:

    keep    all pending operations are kept
    drop    all pending operations are lost
    prefix  operations before some moment are kept; the write at the cut is torn
    torn    all operations are kept, but the last write is torn
    zeros   no bytes, some lengths and names
    subset  of each sector some version, some lengths and names

A version of a sector is its durable content, or its content after one of the writes. The model
invents no bytes. Lengths and names are metadata and are lost in order. Bytes beyond a lost length
are lost.

A failed sync behaves as in Linux: some of the pending sectors are on the disk. The others count as
written, and no later sync writes them (``decisions/0014``).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, TypeAlias

SECTOR, PAGE = 512, 4096
POLICIES = ("keep", "drop", "prefix", "torn", "zeros", "subset", "subset")
# ext4: one journal, so any sync makes all names durable, and they are lost in order.
# strict: only a sync of their folder makes names durable, and each folder loses its own in order.
NAMES = ("ext4", "strict")
_NEVER: Final = 1 << 62

# Number, offset, bytes. Bytes None: set the length of the file; empty: extend it to this length.
Op: TypeAlias = tuple[int, int, bytes | None]
# Return whether a sector keeps the write with this number; called in order.
Keeps: TypeAlias = Callable[[int, int], bool]


class File:
    """An inode. ``path``: its last name. ``era``: the number of power losses before its
    creation.
    """

    def __init__(self, path: str, era: int, durable: bytes | bytearray = b"") -> None:
        self.path, self.era = path, era
        self.links = self.descriptors = 0
        self.durable, self.pending = bytearray(durable), list[Op]()
        self.pages = {*pages(0, len(durable))}  # pages that have a block
        self.unreadable: set[int] = set()  # pages that cannot be read


class Folder:
    """A directory."""

    def __init__(self, path: str, era: int) -> None:
        self.path, self.era = path, era
        self.links = self.descriptors = 0
        self.names: dict[str, File | Folder] = {}
        self.durable: dict[str, File | Folder] = {}

    def walk(self, which: str, path: str = "") -> Iterator[tuple[str, File | Folder]]:
        """Yield all entries below the folder, in order of their names. ``which``: names or
        durable.
        """
        for name, node in sorted(getattr(self, which).items()):
            yield join(path, name), node
            if isinstance(node, Folder):
                yield from node.walk(which, join(path, name))


class _Renaming(NamedTuple):
    """A pending rename: ``name`` in ``folder`` becomes ``node``, or is removed if it is None.
    ``source`` is the previous name.
    """

    number: int
    folder: Folder
    name: str
    node: File | Folder | None
    source: tuple[Folder, str] | None

    def settle(self) -> File | Folder | None:
        """Make the rename durable. Return the node that lost the name."""
        if self.source and self.source[0].durable.get(self.source[1]) is self.node:
            del self.source[0].durable[self.source[1]]
        lost = self.folder.durable.pop(self.name, None)
        if self.node is not None:
            self.folder.durable[self.name] = self.node
        return lost


class Durable:
    """The model. ``tree``: the modelled folder. ``count``: the number of recorded operations."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.names_model = rng, rng.choice(NAMES)
        self.tree, self.count = Folder("", 0), 0
        self._dirty: dict[File, None] = {}  # files with pending operations
        self._renamings: list[_Renaming] = []

    def find(self, path: str) -> File | Folder | None:
        """Return the node that currently has this name."""
        node: File | Folder | None = self.tree
        for part in path.split("/") if path else ():
            node = node.names.get(part) if isinstance(node, Folder) else None
        return node

    def _parent(self, path: str) -> tuple[Folder, str]:
        above, _, name = path.rpartition("/")
        folder = self.find(above)
        assert isinstance(folder, Folder), f"{above} is a folder"
        return folder, name

    # Operations

    def write(self, file: File, offset: int, data: bytes | None) -> None:
        """Record a write, or a new length (see `Op`)."""
        self.count += 1
        file.pending.append((self.count, offset, data))
        self._dirty[file] = None

    def name(
        self, path: str, node: File | Folder | None, source: str | None = None
    ) -> File | Folder | None:
        """Let ``path`` name ``node`` instead of ``source``. Return the node that lost the name."""
        folder, name = self._parent(path)
        lost = folder.names.pop(name, None)
        if lost is not None:
            lost.links -= 1
        origin = None if source is None else self._parent(source)
        if node is not None:
            folder.names[name] = node
            node.links += 1
            _move(node, path)
            if origin is not None:
                del origin[0].names[origin[1]]
                node.links -= 1
        self.count += 1
        self._renamings.append(_Renaming(self.count, folder, name, node, origin))
        return lost

    def sync(self, node: File | Folder, mark: int) -> None:
        """Complete a sync that began when ``count`` was ``mark``. It may miss later operations."""
        if isinstance(node, File):
            for op in node.pending:
                if op[0] <= mark:
                    _apply(node.durable, op)
            self._set_pending(node, [op for op in node.pending if op[0] > mark])
        waiting, self._renamings = self._renamings, []
        for each in waiting:
            applies = self.names_model == "ext4" or each.folder is node
            if each.number > mark or not applies:
                self._renamings.append(each)
            elif isinstance(lost := each.settle(), File) and not lost.links:
                self._dirty.pop(lost, None)

    def fail(self, file: File, mark: int) -> None:
        """Let a sync fail. Lengths remain pending for the journal. Each sector keeps some of its
        first writes as pending. The other writes are lost.
        """
        surviving, lost, share = list[Op](), set[int](), self.rng.choice((0.1, 0.5, 1.0))
        for op in file.pending:
            number, offset, data = op
            if number > mark or data is None:
                surviving.append(op)
                continue
            for at, part in _sectors(offset, data):
                if self.rng.random() < share:
                    lost.add(at // SECTOR)
                if at // SECTOR not in lost:
                    surviving.append((number, at, part))
            surviving.append((number, offset + len(data), b""))
        self._set_pending(file, surviving)

    def _set_pending(self, file: File, pending: list[Op]) -> None:
        file.pending = pending
        if not pending:
            self._dirty.pop(file, None)

    # Power loss

    def lose_power(self) -> str:
        """Make the surviving pending operations durable, and discard the others. Return how they
        were chosen.
        """
        policy = self.rng.choice(POLICIES)
        keeps_of, kept_to = self._draw(policy)
        for file in self._dirty:
            file.durable, file.pending = (
                _surviving(file.durable, file.pending, keeps_of(), kept_to()),
                [],
            )
        ends: dict[Folder, int] = {}
        for each in self._renamings:
            if each.folder not in ends:
                ends[each.folder] = kept_to()
            if each.number < ends[each.folder]:
                each.settle()
        self._dirty, self._renamings = {}, []
        return f"{policy}, {self.names_model}"

    def _draw(self, policy: str) -> tuple[Callable[[], Keeps], Callable[[], int]]:
        """Draw, for each file, the surviving sectors, and for each file or folder the number of the
        last surviving length or name.
        """
        writes = {op[0]: op for file in self._dirty for op in file.pending if op[2]}
        numbers = [op[0] for file in self._dirty for op in file.pending]
        moments = [*sorted(numbers + [each.number for each in self._renamings]), _NEVER]
        some = self.rng.choice(moments)
        if policy in {"zeros", "subset"}:
            keeps_of = self._random_keeps if policy == "subset" else lambda: _nothing
            one_journal = self.names_model == "ext4"
            return keeps_of, lambda: some if one_journal else self.rng.choice(moments)
        if policy == "prefix":
            cut, kept = some, some + self.rng.randint(0, 1)
        elif policy == "torn":
            cut, kept = max(writes, default=_NEVER), _NEVER
        else:
            cut = kept = _NEVER if policy == "keep" else 0
        _, offset, data = writes.get(cut, (0, 0, b""))
        tear = self.rng.randint(offset // SECTOR, (offset + len(data or b"")) // SECTOR)

        def keeps(number: int, sector: int) -> bool:
            return number < cut or (number == cut and sector < tear)

        return lambda: keeps, lambda: kept

    def _random_keeps(self) -> Keeps:
        """Let each write of a sector have a chance to be the last one."""
        share = self.rng.choice((0.1, 0.5, 0.9))
        return lambda *_: self.rng.random() < share


def _apply(content: bytearray, op: Op) -> None:
    _, offset, data = op
    if data is None:
        del content[offset:]
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    if data:
        content[offset : offset + len(data)] = data


def _sectors(offset: int, data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the part of each sector, and its offset."""
    end = offset + len(data)
    for at in range(offset - offset % SECTOR, end, SECTOR):
        start = max(at, offset)
        yield start, data[start - offset : min(at + SECTOR, end) - offset]


def _surviving(durable: bytearray, ops: list[Op], keeps: Keeps, lengths_to: int) -> bytearray:
    """Return the content of a file that survives: the sectors that ``keeps`` selects, and all
    changes of its length up to operation ``lengths_to``.
    """
    now, surviving, size, end = bytearray(durable), bytearray(durable), len(durable), _NEVER
    for op in ops:
        number, offset, data = op
        _apply(now, op)
        first, stop = offset - offset % SECTOR, offset + len(data or b"")
        has_length = number < lengths_to
        if data is not None:
            size = max(size, stop) if has_length else size
        elif has_length:  # the last sector is written before the journal
            size = offset
            _apply(surviving, (number, first, None))
            surviving += now[first:]
        else:  # the blocks beyond are still the old ones; later writes go to other blocks
            end = min(end, first)
        for at in range(first, min(stop, end), SECTOR):
            if keeps(number, at // SECTOR):
                _apply(surviving, (number, at, bytes(now[at : at + SECTOR])))
    _apply(surviving, (0, size, None))
    return surviving


def _nothing(_: int, __: int) -> bool:
    return False


def pages(offset: int, length: int) -> range:
    return range(offset // PAGE, -(-(offset + length) // PAGE) if length else offset // PAGE)


def join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _move(node: File | Folder, path: str) -> None:
    node.path = path
    if isinstance(node, Folder):
        for name, below in node.names.items():
            _move(below, join(path, name))
