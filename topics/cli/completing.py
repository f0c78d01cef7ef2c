"""Completion: the names that a shell offers for an argument.

The names come from the server, which the options before the argument may specify, or from the file
of contexts. Completion never prints an error: without an answer it offers nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import click
from click.shell_completion import CompletionItem

from topics.cli.shell import Shell
from topics.client import Topics, TopicsError, calls
from topics.client.settings import read_contexts
from topics.client.watching import CURSOR_PREFIX

ANSWER_S: Final = 2.0  # a person waits for it


class Name(click.ParamType[str]):
    """A name. ``names`` returns those that begin with a prefix; one page of them is enough."""

    def __init__(self, name: str, names: Callable[[Topics, str], Iterable[str]]) -> None:
        self.name, self._names = name, names

    def shell_complete(
        self, context: click.Context, parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem[str]]:
        """Return the names that begin with ``incomplete``."""
        del parameter
        shell = context.find_object(Shell) or Shell()
        try:
            with shell.client() as client:
                client.timeout = ANSWER_S
                return [CompletionItem(name) for name in self._names(client, incomplete)]
        except (TopicsError, OSError):
            return []


def _topics(client: Topics, prefix: str) -> Iterable[str]:
    found = client.call(calls.list_topics(prefix, None)).items
    shows_cursors = prefix.startswith(CURSOR_PREFIX)
    return [each.name for each in found if shows_cursors or not each.name.startswith(CURSOR_PREFIX)]


def _routers(client: Topics, prefix: str) -> Iterable[str]:
    return [each.name for each in client.call(calls.list_routers(None, prefix=prefix)).items]


def _cursors(client: Topics, prefix: str) -> Iterable[str]:
    found = client.call(calls.list_topics(CURSOR_PREFIX + prefix, None)).items
    return [each.name.removeprefix(CURSOR_PREFIX) for each in found]


def contexts(_context: object, _parameter: object, incomplete: str) -> list[str]:
    """Return the names of contexts that begin with ``incomplete``."""
    try:
        return [name for name in sorted(read_contexts().by_name) if name.startswith(incomplete)]
    except (TopicsError, OSError):
        return []


TOPIC: Final = Name("topic", _topics)
ROUTER: Final = Name("router", _routers)
CURSOR: Final = Name("cursor", _cursors)
