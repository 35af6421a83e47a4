"""The command `leveret`: parse, call, print. One module per command; `main.py` puts them together.

demo/         leveret demo
serve.py      leveret serve
publish.py    leveret publish    the options; `publishing.py` does the work, `inputs.py` reads
consume.py    leveret consume    the options; `consuming.py` does the work, `outputs.py` writes
redrive.py    leveret redrive    with `filters.py`, the language of --where
topic.py      leveret topic
groups.py     leveret groups     with `moves.py` (seek, skip, pause …), `describing.py` (a group as a page)
                                 and `picture.py` (where a partition stands, as a line of signs)
audit.py      leveret audit
pipeline.py   leveret pipeline
api.py        the broker's HTTP API, which topics and groups are asked of
envelope.py   messages as lines of JSON, there and back without loss
running.py    signals, errors and exit codes, the same for all; `background.py` for calls that block
screen.py     what people see on stderr; stdout carries what programs read
pages.py      tables and pages on stdout; `spans.py` times as people write and read them
"""
