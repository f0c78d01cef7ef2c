"""Generates the reference page from the descriptions of settings, errors, metrics and commands.

python -m tests.docs.reference --write
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import re
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import click

from tests.support.api import Api
from tests.support.server import Server
from topics import cli
from topics.config import API_KEYS, Settings, variable_of
from topics.errors import ExitCode, TopicsError
from topics.front.error_answers import status_of

PAGE: Final = Path(__file__).resolve().parents[2] / "topics/docs/reference.md"
OF_THE_MACHINE: Final = {"shards": "cores", "max_held_bytes": "96 MiB"}  # derived defaults
OPENING: Final = """# Reference

This page lists all settings, errors, metrics and commands. It is generated from the program by
`python -m tests.docs.reference --write`.

[Settings](#settings) · [Errors](#errors) · [Metrics](#metrics) · [Commands](#commands)
"""
ABOUT_ERRORS: Final = """
## Errors

Each error response is `{"error": {"code", "message", "detail"?}}` (§0.5 of [api](api.md)).

"""
ABOUT_SETTINGS: Final = """
## Settings

Settings are environment variables. `topics serve --print-config` shows the effective values;
`deploy/topics.env.example` is a file with all settings. Sizes are in bytes, and times are in ms.

"""


def table(titles: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [titles, ["---"] * len(titles), *rows]
    cells = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def plain(text: str) -> str:
    """Return the first lines of a docstring as one line of Markdown."""
    return " ".join(text.split()).replace("``", "`")


def settings() -> Iterator[Sequence[str]]:
    """Return variable, default and meaning of each setting."""
    (body,) = [
        node.body
        for node in ast.parse(inspect.getsource(Settings)).body
        if isinstance(node, ast.ClassDef)
    ]
    meanings: dict[str, str] = {}
    for field, text in itertools.pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            meanings[ast.unparse(field.target)] = ast.literal_eval(text.value)
    yield f"`{API_KEYS}`", "", "Keys, as in a file of keys, separated by commas."
    for field_ in dataclasses.fields(Settings):
        default = shown_default(field_.name, field_.default)
        yield f"`{variable_of(field_.name)}`", default, plain(meanings[field_.name])


def shown_default(name: str, value: object) -> str:
    """Return the default in the syntax of an environment file, with readable sizes."""
    if name in OF_THE_MACHINE:
        return OF_THE_MACHINE[name]
    if value in (None, ()):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def errors() -> Iterator[Sequence[str]]:
    """Return code, status, cause and remedy of each error."""
    found = [kind for kind in TopicsError.__subclasses__() if kind.__module__ == "topics.errors"]
    for kind in sorted(found, key=lambda kind: status_of(kind.restore(kind, "", {}))):
        cause, action = map(plain, inspect.getdoc(kind).split("Action: "))  # type: ignore[union-attr]
        action = action[0].upper() + action[1:]
        yield f"`{kind.code}`", str(status_of(kind.restore(kind, "", {}))), cause, action


def metrics(page: str) -> Iterator[Sequence[str]]:
    """Return name, type and help of each metric, from a page that Prometheus reads."""
    for name, text, kind in re.findall(r"# HELP (\S+) (.*)\n# TYPE \S+ (\S+)\n", page):
        yield f"`{name}`", kind, text


def commands(group: click.Group, context: click.Context) -> Iterator[str]:
    """Return a section for each command: its help, its arguments and options."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        with click.Context(command, context, info_name=name) as own:
            if isinstance(command, click.Group):
                yield from commands(command, own)
                continue
            usage = " ".join([own.command_path, *command.collect_usage_pieces(own)])
            text = "\n\n".join(map(paragraph, inspect.cleandoc(command.help or "").split("\n\n")))
            yield f"\n### {own.command_path}\n\n`{usage}`\n\n{text}\n"
            rows = [*options(command.params, own)]
            if rows:
                yield f"\n{table(('option', 'meaning'), iter(rows))}"


def options(parameters: Sequence[click.Parameter], context: click.Context) -> Iterator[list[str]]:
    """Return the options with their descriptions."""
    for parameter in parameters:
        record = parameter.get_help_record(context)
        if record is not None and isinstance(parameter, click.Option):
            yield [f"`{record[0]}`", escaped(plain(record[1]))]


def paragraph(text: str) -> str:
    """Return a paragraph of a command's help. click keeps the line breaks after a \\b."""
    lines = text.removeprefix("\b\n")
    return escaped(text) if lines == text else f"```text\n{textwrap.dedent(lines)}\n```"


def escaped(text: str) -> str:
    """Return text of a command as Markdown with escaped stars."""
    return text.replace("*", "\\*").replace("<", "&lt;")


def shown_metrics() -> str:
    """Return the metrics of a new server."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Server(Path(folder) / "data", shards=1) as server,
        Api(server.address) as api,
    ):
        return api.call("GET", "/v0/metrics").body.decode()


def reference() -> str:
    """Return the page."""
    with click.Context(cli.root, info_name="topics") as context:
        parts = [
            OPENING,
            ABOUT_SETTINGS,
            table(("variable", "default", "meaning"), settings()),
            ABOUT_ERRORS,
            table(("code", "status", "cause", "remedy"), errors()),
            "\n## Metrics\n\n`GET /v0/metrics` returns these metrics.\n\n",
            table(("name", "type", "meaning"), metrics(shown_metrics())),
            f"\n## Commands\n\n{ExitCode.summary()}\n\nEvery command takes these options:\n\n",
            table(("option", "meaning"), options(cli.root.params, context)),
            *commands(cli.root, context),
        ]
    return "".join(parts)


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(reference())
    else:
        sys.stdout.write(reference())
