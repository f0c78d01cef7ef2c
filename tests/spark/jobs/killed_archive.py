"""An archive of its own process, which may end itself in the middle of the renames: arguments are
the server, the pattern, the directory, and after how many renames to end (0: not).
"""

from __future__ import annotations

import os
import sys

from topics.spark.jobs.archive import ArchiveJob, archive
from topics.spark.jobs.files import LocalFiles
from topics.spark.jobs.streams import local_session

ENDED = 77


def main() -> None:
    url, pattern, directory, renames = sys.argv[1:]
    plain, done = LocalFiles.move, 0

    def move(self: LocalFiles, source: str, dest: str) -> None:
        nonlocal done
        plain(self, source, dest)
        done += 1
        if done == int(renames):
            os._exit(ENDED)

    LocalFiles.move = move  # type: ignore[method-assign]
    job = ArchiveJob(
        subscribe=pattern,
        directory=directory,
        is_pattern=True,
        options={"servers": f"a={url}"},
        batch_records=150,
    )
    spark = local_session(2, "killed")
    archive(spark, job)
    spark.stop()


if __name__ == "__main__":
    main()
