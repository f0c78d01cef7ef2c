"""File aside: a file that is written under another name, and gets its own when it is whole.

NAME.suffix, written and synced -> renamed to NAME -> folder synced
"""

from __future__ import annotations

import os
from pathlib import Path

from topics.storage.disk import sync_directory


class FileAside:
    """Opened to write: ``fd``. Either `publish` or `abandon` ends it; `abandon` also after a
    `publish` that came to nothing.
    """

    def __init__(self, path: Path, suffix: str) -> None:
        """Raises OSError."""
        self.path, self._named = path, path.with_suffix(suffix)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self.fd = os.open(self._named, flags, 0o600)

    def publish(self) -> None:
        """Make the file durable under its own name. Raises OSError."""
        os.fdatasync(self.fd)
        self._close()
        self._named = self._named.replace(self.path)
        sync_directory(self.path.parent)

    def abandon(self) -> None:
        """Remove the file, whatever its name is by now."""
        self._close()
        self._named.unlink(missing_ok=True)

    def _close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
