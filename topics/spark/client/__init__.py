"""What Spark adds to `topics.client`. It imports no Spark and no module of the server.

http.py           the requests of sources, sinks and jobs: retries, raw records, counts
ranges.py         the records between two seqs, and what of them is lost
servers.py        several servers as one: which of them has a topic
request_error.py  RequestError: what the server said and what to do about it
"""

import sys

from topics.imports import without

if "pyspark.worker_util" in sys.modules:  # one of Spark's Python workers
    with without("trio", "h2"):  # none of them waits by these: each starts 0.15 s of CPU sooner
        import httpcore2 as httpcore2
