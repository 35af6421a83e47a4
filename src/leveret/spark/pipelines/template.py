"""The file that `leveret pipeline new` writes: a complete pipeline, with a comment on each part."""

from __future__ import annotations

from typing import Final

TEMPLATE: Final = '''\
# A pipeline: from a queue, through SQL, into a table. See `leveret pipeline explain` for what it does.

name = "{name}"                       # also the query's name at the broker
checkpoint = "{name}-checkpoint"      # a path beside this file, an absolute one, or a URI

[source]
url = "amqp://guest:guest@localhost:5672"    # ${{NAME}} stands for an environment variable
queue = "{name}"                             # or: stream, topic
max_messages = 100000                        # in a batch

[parse]
format = "json"                              # or: csv, text
schema = "id LONG NOT NULL, amount DOUBLE, at TIMESTAMP"

# Times: rows that come late are rejected; of rows with the same key, the first is taken.
# [watermark]
# column = "at"
# delay = "10 minutes"                       # behind the latest `at`
# [dedup]
# columns = ["id"]
# within = "1 hour"                          # so long a key is remembered
# [windows]                                  # rows wait until theirs is over; see column `_window`
# length = "1 hour"                          # or sessions: gap = "30 minutes", by = ["customer"]

# SQL over `input`, the parsed rows, and over the steps before. `_message` says which message a row was.
[[steps]]
name = "dated"
sql = """
    SELECT *, date(at) AS day
    FROM input
"""

# A row for which this is not true is rejected, with the reason.
[[expectations]]
that = "amount > 0"

[rejects]
routing_key = "{name}.rejected"              # of the default exchange; or: exchange = "..."
max_share = 0.1                              # more of them stop the pipeline

[[sinks]]
name = "table"
from = "dated"
format = "parquet"                           # or: csv, json, orc, leveret, console, any that Spark finds
path = "{name}-table"
partition_by = ["day"]

[trigger]
every = "10 seconds"

[spark]
master = "local[*]"
'''


def template(name: str) -> str:
    return TEMPLATE.format(name=name)
