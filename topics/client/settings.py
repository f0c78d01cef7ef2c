"""Settings of the client: the URL of the server and the API key.

    url    the argument, TOPICS_URL, the context's ``url``, http://127.0.0.1:4000
    key    the argument, TOPICS_API_KEY, the context's ``key`` or ``key_file``, none

The first of these sources that is set applies. Contexts are tables ``[contexts.NAME]`` in a TOML
file. ``current`` in this file names the default context, which applies unless the caller or
TOPICS_CONTEXT specifies a different one. If the URL comes from the argument or TOPICS_URL, the key
of the context is not used, because a key must not be sent to another server.
"""

from __future__ import annotations

import os
import re
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from topics.client.errors import Invalid, Refused

if TYPE_CHECKING:
    from ssl import SSLContext

DEFAULT_URL = "http://127.0.0.1:4000"
CONTEXT_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Context(NamedTuple):
    """A named server with its key."""

    url: str
    key: str | None = None
    key_file: str | None = None


class Contexts(NamedTuple):
    """The content of the contexts file."""

    current: str | None
    by_name: dict[str, Context]


class Target(NamedTuple):
    """The server and the key for requests. ``url`` has no trailing slash. If ``ssl_context`` is
    None, the system's certificates are trusted.
    """

    url: str
    key: str | None
    ssl_context: SSLContext | None = None


def contexts_file() -> Path:
    """Return the path of the contexts file. Raise `Invalid` if the user has no home directory."""
    try:
        base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    except RuntimeError:  # the user has no home directory
        raise Invalid("no home directory; set XDG_CONFIG_HOME", code="bad_context") from None
    return Path(base) / "topics" / "contexts.toml"


def read_contexts(path: Path | None = None) -> Contexts:
    """Return the contexts of the file, or no contexts if it does not exist. Raise `Invalid`."""
    try:
        path = path or contexts_file()
    except Invalid:
        return Contexts(None, {})
    import tomllib  # imported here because it compiles patterns, which Spark executors do not need

    try:
        content = tomllib.loads(path.read_text("utf-8"))
        tables = {name: Context(**table) for name, table in content.get("contexts", {}).items()}
        for each in (content.get("current", ""), *chain(*tables.values())):
            if not isinstance(each, str | None):
                raise TypeError(f"{each!r} is not a string")
    except FileNotFoundError:
        return Contexts(None, {})
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise Invalid(f"{path}: {error}", code="bad_context") from None
    return Contexts(content.get("current"), tables)


def resolve(url: str | None = None, key: str | None = None, context: str | None = None) -> Target:
    """Return the server and the key. Raise `Invalid` or `Refused`."""
    chosen = context or os.environ.get("TOPICS_CONTEXT")
    given = url or (None if context else os.environ.get("TOPICS_URL"))
    if key is None and not context:
        key = os.environ.get("TOPICS_API_KEY")
    known = _context(chosen) if given is None or context else None
    if known is not None and given is None:
        key = key or known.key or (read_key(known.key_file) if known.key_file else None)
        given = known.url
    return Target(checked_url(given or DEFAULT_URL), checked_key(key) if key else None)


def checked_url(url: str) -> str:
    """Check a URL and return it without a trailing slash. Raise `Invalid`."""
    url = url.rstrip("/")
    try:
        parts = urlsplit(url)
        is_address = bool((parts.hostname or "").encode("idna")) and parts.port != 0
        is_address = is_address and url.isprintable() and " " not in url
    except ValueError:
        is_address = False
    if not is_address or parts.scheme not in ("http", "https") or parts.query or parts.path:
        raise Invalid(f"{url!r} is not the URL of a server: http://HOST:PORT", code="bad_url")
    return url


def checked_key(key: str) -> str:
    """Check that a header field can contain the key, and return it. Raise `Refused`."""
    if not (key and key.isascii() and key.isprintable()):
        raise Refused(
            "the key contains characters that are not allowed in a header field", code="bad_key"
        )
    return key


def _context(name: str | None) -> Context | None:
    contexts = read_contexts()
    name = name or contexts.current
    if name is None:
        return None
    if name not in contexts.by_name:
        raise Invalid(f"there is no context {name!r} in {contexts_file()}", code="bad_context")
    return contexts.by_name[name]


def read_key(path: str) -> str:
    """Return the first line of a key file. Raise `Invalid`."""
    try:
        key = Path(path).expanduser().read_text().split("\n", 1)[0].strip()
    except (OSError, RuntimeError, UnicodeDecodeError) as error:
        raise Invalid(f"the key cannot be read: {error}", code="bad_key_file") from None
    if not key:
        raise Invalid(f"{path} contains no key", code="bad_key_file")
    return key
