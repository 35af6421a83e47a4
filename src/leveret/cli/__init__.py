"""The command `leveret`: parse, call, print. One module per command; `main.py` puts them together.

demo/         leveret demo
serve.py      leveret serve
publish.py    leveret publish    the options; `publishing.py` does the work, `inputs.py` reads
consume.py    leveret consume    the options; `consuming.py` does the work, `outputs.py` writes
redrive.py    leveret redrive    with `filters.py`, the language of --where
topic.py      leveret topic
groups.py     leveret groups     `group_moves.py` (seek, skip, pause …), `group_page.py` (a group as a page),
                             `partition_chart.py` (the state of a partition as a line of signs)
audit.py      leveret audit
pipeline.py   leveret pipeline
api.py        the broker's HTTP API, which topics and groups are asked of
message_json.py   messages as lines of JSON, there and back without loss
running.py    signals, errors and exit codes, the same for all; `background_calls.py` for calls that block
screen.py     what people see on stderr; stdout carries what programs read
pages.py      tables and pages on stdout; `durations.py` times as people write and read them
"""
