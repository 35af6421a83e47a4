"""The account of every message: what was published, confirmed, delivered, settled, lost, doubled.

`leveret.audit.job.audit` runs it; the command is `leveret audit`.
"""
