"""The Spark source ``format("topics")``: topics as batch and streaming DataFrames.

    data_source.py  the class that Spark instantiates, for reads and writes
    connection.py   options for reads and writes: servers, API key, certificates, retries
    options.py      options for reads
    offsets.py      offsets in options and in checkpoints
    columns.py      converts records to Arrow batches
    plan.py         the seq ranges of a batch or micro-batch
    survey.py       the heads and epochs of topics on the servers
    reading.py      batch reads; reads the ranges of a task on an executor
    stream.py       streaming reads
    lag.py          the lag of a query

As in Kafka, the offsets that users specify are inclusive at the start of a range and exclusive at
its end. Everywhere else, a range is (after, last], in the same way as ``from_seq`` (§3). Only
offsets.py converts between them.
"""
