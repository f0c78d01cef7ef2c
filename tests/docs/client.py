"""The page of the Python client, made from its signatures and docstrings.

python -m tests.docs.client --write
"""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from topics import client
from topics.client import calls, errors

PAGE: Final = Path(__file__).resolve().parents[2] / "topics/docs/client.md"
OPENING: Final = """# The Python client

This page lists each class, method and error of `topics.client`. It is made from the program by
`python -m tests.docs.client --write`. [pubsub](pubsub.md) and [queues](queues.md) show how to use
them. `pip install topics-engine` installs the client with the server.

`topics.client` is for threads. `topics.client.aio` has the same classes for asyncio and trio, with
the prefix `Async`: `AsyncTopics`, `AsyncTopic`, … There, all methods that send requests are
coroutines, iterators are asynchronous, and `async with` replaces `with`.

## Timeouts and retries

| what | how long |
|---|---|
| a connection | `connect_timeout`, 10 s |
| a request | `timeout`, 30 s; a claim or a read that waits for records has 25 s more |
| a call | retried for 60 s after a lost connection or the status 429, 502, 503 or 504 |
| an append with `key=None`, a redrive with a limit | not retried if it may have arrived |
| a watch, a worker, a publisher | retried without end |
| a record of a producer or publisher | fails 60 s after its send |
| a request after Ctrl-C or a cancellation | 0.8 s |
| the records of a producer at the exit of a program that did not close it | 5 s |

`Topics(retry=Retry(...))` replaces the rules for calls, watches, workers, producers and publishers.
The pause between attempts is the server's `Retry-After`, or 0.1 s to 5 s. The logger
`topics.client` warns of each failed attempt, unless `on_pause` is given.
"""
CLASSES: Final = (
    *(client.Topics, client.Topic, client.Queue, client.Watch, client.Cursor),
    *(client.Worker, client.Job, client.Producer, client.Publisher),
)
OPTIONS: Final = (
    *(client.Retry, calls.RecordFields, calls.AppendFields),
    *(calls.TopicConfig, calls.RouterOptions),
)
VALUES: Final = (
    *(client.Record, client.Tombstone, client.CaughtUp, client.TopicDeleted, client.Receipt),
    *(client.Deleted, client.TopicInfo, client.TopicState, client.RouterInfo),
)


INTERNAL: Final = (
    *("call", "caller", "http", "once", "opened", "pages", "report_pause"),  # of Topics
    *("load", "done", "unsaved", "saved"),  # of Cursor
    *("settle", "release"),  # of Worker
    *("lose", "failed", "nack_fields"),  # of Job
)


def text_of(thing: object) -> str:
    """The docstring as Markdown. Indented paragraphs are code."""
    return "\n\n".join(
        f"```py\n{textwrap.dedent(each)}\n```"
        if each.startswith("    ")
        else each.replace("``", "`")
        for each in (inspect.getdoc(thing) or "").split("\n\n")
    )


def signature_of(thing: Any) -> str:
    """The signature as the source has it, without ``self``."""
    found = inspect.signature(thing)
    kept = [each for each in found.parameters.values() if each.name != "self"]
    text = str(found.replace(parameters=kept))
    text = re.sub(r"(: |-> )'([^']+)'", r"\1\2", text)  # an annotation, not a default
    return re.sub(
        r"\b(?:values|calls|topics\.client\.[\w.]+?|typing|datetime)\.(?=[A-Z])", "", text
    )


def methods_of(kind: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties of a class, except those of a class with a section."""
    seen = {*INTERNAL}
    for base in kind.__mro__:
        if not base.__module__.startswith("topics.client") or (base in CLASSES and base != kind):
            continue
        for name, member in vars(base).items():
            is_shown = callable(member) or isinstance(member, property)
            if is_shown and not name.startswith("_") and name not in seen:
                seen.add(name)
                if inspect.getdoc(member):
                    yield name, member


def section(kind: type) -> Iterator[str]:
    """A class with its methods."""
    title = kind.__name__
    yield f"\n### {title}\n"
    if title in ("Topics", "Retry"):
        yield f"\n`{title}{signature_of(kind.__init__).removesuffix(' -> None')}`\n"  # type: ignore[misc]
    yield f"\n{text_of(kind)}\n"
    if kind is client.Queue:
        yield "\nIt has the methods of `Topic` as well.\n"
    fields = fields_of(kind)
    if fields:
        yield "\n| field | type |\n|---|---|\n"
        for name, type_ in fields:
            yield "| `{}` | `{}` |\n".format(name, type_.replace("|", "\\|"))
    for name, member in methods_of(kind):
        if isinstance(member, property):
            yield f"\n**`{name}`** {text_of(member)}\n"
        elif title != "Retry":
            yield f"\n**`{name}{signature_of(member)}`**\n\n{text_of(member)}\n"


def fields_of(kind: type) -> list[tuple[str, str]]:
    """The fields of a struct or of a `TypedDict`, with their types."""
    if issubclass(kind, msgspec.Struct):
        fields = {each: "" for each in kind.__struct_fields__ if not each.startswith("raw_")}
        return [(name, annotation(kind, name)) for name in fields]
    if typing.is_typeddict(kind):
        return [(name, annotation(kind, name)) for name in kind.__annotations__]
    return []


def annotation(kind: type, name: str) -> str:
    """The type of a field as the source has it."""
    for base in (*kind.__mro__, calls.RecordFields):
        if name in vars(base).get("__annotations__", {}):
            found = vars(base)["__annotations__"][name]
            return getattr(found, "__forward_arg__", None) or str(found)
    raise LookupError(name)


def error_rows() -> Iterator[str]:
    """The classes of errors and the reaction to each."""
    yield f"\n{text_of(errors.TopicsError)}\n\n"
    yield "| error | status | what to do |\n|---|---|---|\n"
    yield "| `TopicsError` | any | the base of all classes below |\n"
    for line in (inspect.getdoc(errors) or "").splitlines():
        if found := re.match(r"(\w+) {2,}(\S.*?) {2,}(\S.*)", line):
            yield f"| `{found[1]}` | {found[2]} | {found[3]} |\n"


def page() -> str:
    """The page."""
    parts = [OPENING]
    for title, kinds in (("Classes", CLASSES), ("Options", OPTIONS), ("Values", VALUES)):
        parts.append(f"\n## {title}\n")
        for kind in kinds:
            parts += section(kind)
    return "".join([*parts, "\n## Errors\n", *error_rows()])


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(page())
    else:
        print(page())
