#!/usr/bin/env -S sh -c 'trap "" HUP; p="${0%/*}/.venv/bin/python"; test -x "$p"||p=python3; exec "$p" "$0" "$@"'
"""Starts a server. ``./supervisor.py`` takes the options of ``topics serve``.

This process becomes the supervisor (`topics.process.supervisor`). The first line of this file makes
the shell ignore SIGHUP until the command blocks the signal, so that an early SIGHUP does not
terminate the process.
"""

import sys

from topics.cli import main

if __name__ == "__main__":
    raise SystemExit(main(["serve", *sys.argv[1:]]))
