"""The command apply: creates and changes topics and routers as specified in a TOML file.

    file --> changes of topics and routers --> checks --> question --> one request for each change

Before the first change, the file is checked against the server's rules, and its topics are checked
by dry runs. So an invalid file changes nothing.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from contextlib import suppress
from typing import IO, Any, Final

import click

from topics.cli import units
from topics.cli.configs import Change, Kind, change
from topics.cli.shell import InvalidInput, Shell, command, nearest, pass_shell
from topics.cli.topics import yes
from topics.client import Refused, Topics
from topics.client.watching import CURSOR_PREFIX
from topics.errors import ExitCode

KINDS: Final[dict[str, Kind]] = {"topics": "topic", "routers": "router"}
SYMBOLS: Final = {"create": "+", "change": "~", "remove": "-", "keep": "="}
# A removed router frees its dest for another router. A new router needs the final topics.
ORDER: Final = """remove router, create topic, change topic, keep topic,
    change router, create router, keep router, remove topic"""


@command("apply")
@click.argument("file", type=click.File("rb"))
@click.option("--plan", is_flag=True, help="Change nothing; exit code 7 if there are changes.")
@click.option(
    "--prune", is_flag=True, help="Also remove topics and routers that are not in the file."
)
@yes
@pass_shell
def apply(shell: Shell, file: IO[bytes], plan: bool, prune: bool, is_sure: bool) -> ExitCode:
    """Create and change topics and routers as specified in a file.

    \b
        [topics.orders]
        durability = "fsync"
        ttl_ms = "7d"
        [routers."orders->audit"]
        source = "orders"
        dest = "audit"

    Each topic and router is a line of the output: + created, ~ changed, - removed, = unchanged.
    Fields that the file does not specify keep their values. The entire file is checked before the
    first change. If a change removes topics, routers or records, the command asks for confirmation.
    A router whose source or dest changes starts at the end of its source.

    --prune removes all other topics and routers that the key may see. It keeps cursors. It also
    keeps topics that the file names as the source or dest of a router or as dead_letter.
    """
    path = str(getattr(file, "name", "-"))
    wanted = [*_read(file, path)]
    with shell.client() as client:
        changes = _changes(client, path, wanted)
        if prune:
            changes += _unnamed(client, changes, path)
        changes.sort(key=lambda each: ORDER.index(f"{each.verb} {each.kind}"))
        changes = _checked_routers(client, path, changes)
        dropped: dict[str, int] = {}
        for each in changes:
            # A plan may be computed with a key that may not change configs.
            with suppress(*(Refused,) if plan else ()):
                if (count := each.dropped(client)) or each.changes_limits:
                    dropped[each.name] = count
        if not plan:
            _confirm(shell, changes, dropped, is_sure)
        for each in changes:
            count = 0 if plan else each.apply(client)
            _show(shell, each, count or dropped.get(each.name) if each.changes_limits else None)
    if not changes:
        shell.print_note(f"{path} specifies no topics and no routers")
    is_same = all(each.verb == "keep" for each in changes)
    return ExitCode.DIFFERENT if plan and not is_same else ExitCode.DONE


def _confirm(shell: Shell, changes: list[Change], dropped: dict[str, int], is_sure: bool) -> None:
    """Request confirmation if anything would be removed. Raise if the user does not confirm."""
    removed = [
        " ".join([each.kind, each.name, *each.lines()]) for each in changes if each.verb == "remove"
    ]
    removed += [f"{units.counted(count)} of {name}" for name, count in dropped.items() if count]
    if removed:
        shell.confirm(f"Remove {', '.join(removed)}?", is_sure)


def _show(shell: Shell, each: Change, dropped: int | None) -> None:
    """Print a change. ``dropped`` is the number of removed records, None if no limit changes."""
    if shell.is_json:
        each.emit(shell, **({} if dropped is None else {"dropped": dropped}))
        return
    lines = [*each.lines(), *([f"removes {units.counted(dropped)}"] if dropped else [])]
    click.echo(f"{SYMBOLS[each.verb]} {each.kind} {each.name}  {', '.join(lines)}".rstrip())


def _read(file: IO[bytes], path: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield table, name and fields of each entry in the file. Raise `InvalidInput`."""
    try:
        document = tomllib.loads(file.read().decode("utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"{path}: {error}") from None
    for table, named in document.items():
        if table not in KINDS or not isinstance(named, dict):
            raise InvalidInput(f"{path}: unknown table {table}{nearest(table, KINDS)}")
        for name, fields in named.items():
            if not isinstance(fields, dict):
                raise InvalidInput(f"{path}: [{table}] {name} must be a table: [{table}.{name}]")
            for field, value in fields.items():
                if isinstance(value, dict):  # [topics.jobs.dead]
                    raise InvalidInput(
                        f'{path}: quote a name with dots: [{table}."{name}.{field}"]'
                    )
            yield table, name, fields


def _changes(
    client: Topics, path: str, wanted: list[tuple[str, str, dict[str, Any]]]
) -> list[Change]:
    """Return the changes that the file specifies. Raise `InvalidInput`."""
    changes = []
    for table, name, fields in wanted:
        try:
            changes.append(change(client, KINDS[table], name, fields))
        except click.ClickException as error:
            where = f"{path}: [{table}.{name}]"
            raise type(error)(f"{where} {error.message}") from None
    return changes


def _unnamed(client: Topics, changes: list[Change], path: str) -> Iterator[Change]:
    """Yield the removal of each topic and router not named in the file. Raise `InvalidInput`."""
    named: set[tuple[Kind, str | None]] = {(each.kind, each.name) for each in changes}
    if not any(kind == "topic" for kind, _ in named):
        raise InvalidInput(f"{path} specifies no topic: --prune would remove all")
    for config in (each.new or {} for each in changes):
        named |= {("topic", config.get(end)) for end in ("source", "dest", "dead_letter")}
    for router in client.routers():
        if ("router", router.name) not in named:
            yield Change("router", router.name, {}, {}, None)
    for topic in client.topics():
        if ("topic", topic.name) not in named and not topic.name.startswith(CURSOR_PREFIX):
            yield Change("topic", topic.name, {}, {}, None, topic.count)


def _checked_routers(client: Topics, path: str, changes: list[Change]) -> list[Change]:
    """Return the changes in an order that the server accepts. Raise `InvalidInput` if there is no
    such order.

    Another router may have to be changed first, because it feeds this router's dest or is part of
    the cycle that this router would close.
    """
    routers = [each for each in changes if each.kind == "router" and each.new is not None]
    if not routers:
        return changes
    removed = {each.name for each in changes if each.kind == "router" and each.new is None}
    graph = Graph()
    for router in client.routers():
        if router.name not in removed:
            graph.put(router.name, router.source, router.dest)
    first, ordered = changes.index(routers[0]), list[Change]()
    while routers:
        refused: dict[str, Change] = {}
        for each in routers:
            if (refusal := graph.refusal(each)) is not None:
                refused[f"{path}: [routers.{each.name}] {refusal}"] = each
                continue
            assert each.new is not None
            graph.put(each.name, each.new["source"], each.new["dest"])
            ordered.append(each)
        if len(refused) == len(routers):
            raise InvalidInput(next(iter(refused)))
        routers = [*refused.values()]
    return [*changes[:first], *ordered, *changes[first + len(ordered) :]]


class Graph:
    """Routers as a graph, with the server's rules (§6): all routers into a topic have the same
    source, and a router may close a cycle only with ``allow_cycle``.
    """

    def __init__(self) -> None:
        self._ends: dict[str, tuple[str, str]] = {}
        self._into: dict[str, dict[str, str]] = {}  # by dest: the source of each router

    def put(self, name: str, source: str, dest: str) -> None:
        """Add a router, or change its ends."""
        if name in self._ends:
            del self._into[self._ends[name][1]][name]
        self._ends[name] = source, dest
        self._into.setdefault(dest, {})[name] = source

    def refusal(self, change: Change) -> str | None:
        """Return why the server would refuse a router, or None."""
        new, old = change.new or {}, change.old
        source, dest = new["source"], new["dest"]
        is_moved = old is None or (old["source"], old["dest"]) != (source, dest)
        for other, its_source in self._into.get(dest, {}).items() if is_moved else ():
            if other != change.name and its_source != source:
                return f"{dest} is already the dest of {its_source} (router {other})"
        if new["allow_cycle"] or not (is_moved or (old or {})["allow_cycle"]):
            return None
        # Each topic has at most one source, so there is only one path back from the router's
        # source.
        way = [dest, source]
        while way[-1] != dest:
            into = self._into.get(way[-1], {})
            before = next((found for name, found in into.items() if name != change.name), None)
            if before is None or len(way) > len(self._into) + 1:  # a cycle without this router
                return None
            way.append(before)
        return f"would close a cycle: {' -> '.join(reversed(way))}; allow_cycle = true permits it"
