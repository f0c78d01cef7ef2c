"""The requests of Spark's sources, sinks and jobs. No module imports Spark or the server.

http.py     a client: raw records, counts, and RequestError with advice
ranges.py   the records between two seqs, and the losses among them
servers.py  a list of servers, and the server that has a topic
"""

import sys

from topics.imports import without_packages

if "pyspark.worker_util" in sys.modules:  # one of Spark's Python workers
    with without_packages("trio", "h2"):  # unused here; they take 0.15 s of CPU in each worker
        import httpcore2 as httpcore2
