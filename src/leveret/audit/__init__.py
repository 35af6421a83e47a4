"""The account of every message: published, confirmed, delivered, settled, lost or doubled.

`leveret.audit.job.run` makes it as a job of Spark; the command is `leveret audit`.
"""
