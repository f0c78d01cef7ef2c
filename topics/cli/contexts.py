"""Contexts: named servers, in a file that `topics.client.settings` reads. Also prints the
completion scripts for shells.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import click

from topics.cli.shell import (
    Shell,
    command,
    context_names,
    group,
    nearest,
    pass_shell,
    secret,
)
from topics.client.settings import (
    CONTEXT_NAME,
    Context,
    Contexts,
    checked_key,
    checked_url,
    contexts_file,
    read_contexts,
    read_key,
)


@group("context")
def context() -> None:
    """Manage named servers and their keys."""


@context.command("ls")
@pass_shell
def ls(shell: Shell) -> None:
    """List the contexts. * marks the current one."""
    current, by_name = read_contexts()
    rows = [
        {
            "is_current": name == current,
            "name": name,
            "url": each.url,
            "key": each.key_file or ("in the contexts file" if each.key else None),
        }
        for name, each in sorted(by_name.items())
    ]
    empty = "there are no contexts; topics context add NAME URL adds one"
    titles = {"is_current": "", "name": "NAME", "url": "URL", "key": "KEY"}
    shell.table(rows, titles, {"is_current": lambda is_current: "*" if is_current else ""}, empty)


@context.command("add")
@click.argument("name")
@click.argument("url")
@click.option("--key-file", "key_file", metavar="FILE", help="A file with the API key.")
@click.option("--key", "asks_key", is_flag=True,
              help="Prompt for the API key, or read it from stdin.")  # fmt: skip
@click.option("--use", "uses", is_flag=True, help="Also make it the current context.")
@pass_shell
def add(
    shell: Shell, name: str, url: str, key_file: str | None, asks_key: bool, uses: bool
) -> None:
    """Add or change a context.

    With --key, the key is stored in the contexts file, which only its owner can read.
    """
    if not CONTEXT_NAME.fullmatch(name):
        what = "must consist of letters, digits, - and _"
        raise click.BadParameter(what, param_hint="NAME")
    if asks_key and key_file:
        raise click.UsageError("--key and --key-file exclude each other")
    key = None
    if asks_key:
        key = checked_key(secret("Key: ").decode("utf-8", "replace"))
    if key_file:
        key_file = str(Path(key_file).expanduser().absolute())
        if not key_file.isprintable():
            raise click.BadParameter(
                "has characters that cannot be stored", param_hint="--key-file"
            )
        checked_key(read_key(key_file))
    current, by_name = read_contexts()
    known = "changed" if name in by_name else "added"
    by_name[name] = Context(checked_url(url), key, key_file)
    _write(Contexts(name if uses else current, by_name))
    how = "" if uses else f"; topics context use {name} makes it the current one"
    shell.print_note(f"{name} {known}{how}")


@context.command("use")
@click.argument("name", shell_complete=context_names)
@pass_shell
def use(shell: Shell, name: str) -> None:
    """Make a context the current one.

    It is used if neither an option nor an environment variable specifies a server.
    """
    contexts = _with(name)
    _write(contexts._replace(current=name))
    shell.print_note(f"the server is {contexts.by_name[name].url}")
    for variable in ("TOPICS_URL", "TOPICS_CONTEXT"):
        if os.environ.get(variable):
            shell.print_note(f"{variable} is set and takes precedence")


@context.command("rm")
@click.argument("name", shell_complete=context_names)
@pass_shell
def rm(shell: Shell, name: str) -> None:
    """Delete a context, with its key if the key is stored in the contexts file."""
    current, by_name = _with(name)
    del by_name[name]
    _write(Contexts(None if current == name else current, by_name))
    shell.print_note(
        f"{name} removed" + ("; there is no current context now" if current == name else "")
    )


@command("completion")
@click.argument("name", metavar="SHELL", type=click.Choice(["bash", "zsh", "fish"]))
def completion(name: str) -> None:
    """Print the completion script for bash, zsh or fish.

    \b
    bash: eval "$(topics completion bash)" in ~/.bashrc
    zsh:  eval "$(topics completion zsh)" in ~/.zshrc, after compinit
    fish: topics completion fish > ~/.config/fish/completions/topics.fish

    It completes commands, options, config fields, files and context names, and the names of the
    server's topics, routers and cursors.
    """
    from click.shell_completion import get_completion_class

    from topics.cli import root
    from topics.cli.completing import Bash

    kind = Bash if name == "bash" else get_completion_class(name)
    assert kind is not None, "click knows these shells"
    click.echo(kind(root, {}, "topics", "_TOPICS_COMPLETE").source())


def _with(name: str) -> Contexts:
    """Return all contexts. Raise `click.BadParameter` if there is none with this name."""
    contexts = read_contexts()
    if name not in contexts.by_name:
        raise click.BadParameter(f"there is no context {name!r}{nearest(name, contexts.by_name)}")
    return contexts


def _write(contexts: Contexts) -> None:
    """Replace the file atomically, readable only by its owner."""
    path = Path(os.path.realpath(contexts_file()))  # a symbolic link is kept
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.NamedTemporaryFile(  # its mode is 600
        "w", encoding="utf-8", dir=path.parent, delete=False
    ) as file:
        file.write(_toml(contexts))
        file.flush()
        os.fsync(file.fileno())
    Path(file.name).replace(path)


def _toml(contexts: Contexts) -> str:
    lines = [] if contexts.current is None else [f"current = {_string(contexts.current)}"]
    for name, each in sorted(contexts.by_name.items()):
        lines += ["", f"[contexts.{name}]"]
        lines += [f"{field} = {_string(value)}" for field, value in each._asdict().items() if value]
    return "\n".join(lines).lstrip() + "\n"


def _string(value: str) -> str:
    """Return a TOML string. It is a JSON string in which DEL is escaped as well."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
