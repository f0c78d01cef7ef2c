"""The Spark sink ``format("topics")``: rows of a batch or a stream, appended to topics.

    options.py    options of writes
    columns.py    the columns that a record is made of
    encoding.py   Arrow batches to JSON records
    opening.py    opens and creates topics
    sending.py    sends the rows of a task on an executor
    writer.py     the writers that Spark calls, and their summaries

Exactly once. An append cannot be undone, so it cannot wait for Spark's commit: a record can be read
as soon as a task has sent it. Instead, the server appends only once for each idempotency key of a
request. The key is made of the write, the partition, the topic, the number of the request in the
partition, and its bytes. So rows in the same partitions and order have the same keys in every
attempt: of a retried or speculative task, a repeated micro-batch, or a restarted driver. The write
is identified by

    df.write         the option jobId; if it is absent, only the tasks of one write may be repeated
    df.writeStream   the id of the query in its checkpoint, and the number of the micro-batch
    foreachBatch     a batch write with .option("jobId", f"{query_name}:{batch_id}")

Rows may be appended twice if they differ between attempts or if the topic has lost the keys. The
section "Write" of topics/docs/spark.md lists these cases. No record is ever lost.
"""
