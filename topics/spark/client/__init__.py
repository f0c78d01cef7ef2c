"""Requests made by the Spark sources, sinks and jobs. No module in this package imports Spark or
the server.

    http.py     a client that returns raw records and counts, and raises RequestError with advice
    ranges.py   the records between two seqs, and the losses among them
    servers.py  a list of servers, and the server on which a topic is created
"""

import sys

from topics.imports import without_packages

if "pyspark.worker_util" in sys.modules:  # one of Spark's Python workers
    with without_packages("trio", "h2"):  # unused here; they take 0.15 s of CPU in each worker
        import httpcore2 as httpcore2
