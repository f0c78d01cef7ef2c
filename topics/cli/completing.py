"""Completion: the names that a shell offers for an argument.

    shell --COMP_WORDS--> `topics` with _TOPICS_COMPLETE --> click --> `Name.shell_complete`
          <--------------------------- names ---------------------------------'

The names are requested from the server that the options before the argument specify. Completion
never prints an error. If there is no response, it offers nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    split_arg_string,
)

from topics.cli.shell import Shell
from topics.client import Topics, TopicsError, calls
from topics.client.watching import CURSOR_PREFIX

RESPONSE_MAX_S: Final = 2.0  # the user waits for the response
# Bash splits words at the characters in COMP_WORDBREAKS, which include the colon of names and the
# equals sign of FIELD=VALUE. It replaces only the last part, so a reply must not repeat the others.
BASH: Final = """\
%(complete_func)s() {
    local line="${COMP_LINE:0:COMP_POINT}" breaks="${COMP_WORDBREAKS//[^:=]/}" cut="" kind value
    local word="${line##*[[:space:]]}"
    [[ $breaks ]] && cut="${word%%"${word##*[$breaks]}"}"
    COMPREPLY=()
    while IFS=, read -r kind value; do
        case $kind in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain) COMPREPLY+=("${value#"$cut"}") ;;
        esac
        case $value in *=) compopt -o nospace ;; esac
    done < <(COMP_WORDS="$line" %(complete_var)s=bash_complete "$1")
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""


@add_completion_class
class Bash(BashComplete):
    """Completion for Bash that supports names with a colon."""

    source_template = BASH

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the complete words of the line, and the incomplete one."""
        line = os.environ["COMP_WORDS"]
        words = split_arg_string(line)
        incomplete = "" if line[-1:].isspace() else words.pop()
        return words[1:], incomplete


class Name(click.ParamType[str]):
    """A type of arguments that are names. ``names`` returns the first page of matching names."""

    def __init__(self, name: str, names: Callable[[Topics, str], list[str]]) -> None:
        self.name, self._names = name, names

    def shell_complete(
        self, context: click.Context, parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem[str]]:
        """Return the names that begin with ``incomplete``."""
        del parameter
        shell = context.find_object(Shell) or Shell()
        try:
            with shell.client() as client:
                client.timeout = RESPONSE_MAX_S
                return [CompletionItem(name) for name in self._names(client, incomplete)]
        except (TopicsError, OSError):
            return []


def _topics(client: Topics, prefix: str) -> list[str]:
    found = [each.name for each in client.call(calls.list_topics(prefix, None)).items]
    is_cursor = prefix.startswith(CURSOR_PREFIX)
    return [name for name in found if is_cursor or not name.startswith(CURSOR_PREFIX)]


def _cursors(client: Topics, prefix: str) -> list[str]:
    return [name.removeprefix(CURSOR_PREFIX) for name in _topics(client, CURSOR_PREFIX + prefix)]


def _routers(client: Topics, prefix: str) -> list[str]:
    return [each.name for each in client.call(calls.list_routers(None, prefix=prefix)).items]


TOPIC: Final = Name("topic", _topics)
ROUTER: Final = Name("router", _routers)
CURSOR: Final = Name("cursor", _cursors)
