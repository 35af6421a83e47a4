"""Declared pipelines: from a queue, through SQL, into tables, with an account of every message.

    leveret pipeline run orders.toml

`declaration` is what a file may say, `checks` what it must hold; `running` is the query that it becomes.
"""
