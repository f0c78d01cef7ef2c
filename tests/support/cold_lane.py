"""The command ``topics`` with a server that sends every request but streams through its cold lane:
``python -m tests.support.cold_lane serve``.
"""

from __future__ import annotations

import sys

from topics.cli import main
from topics.front.server import Server

if __name__ == "__main__":
    defaults = Server.__init__.__kwdefaults__
    assert defaults is not None
    assert defaults["use_fast_lane"] is True, "the front takes the fast lane unless it is told"
    defaults["use_fast_lane"] = False
    sys.exit(main())
