"""The command `leveret`: parse, call, print. One module per command; `main.py` registers them.

demo/         leveret demo
serve.py      leveret serve      `broker_process.py` runs the broker, `preflight.py` checks what it needs
config.py     leveret config
backup.py     leveret backup
publish.py    leveret publish    the options; `publishing.py` does the work, `inputs.py` reads the input
consume.py    leveret consume    the options; `consuming.py` does the work, `outputs.py` writes the output
redrive.py    leveret redrive    with `filters.py`, the language of --where
topic.py      leveret topic
groups.py     leveret groups     `group_page.py` describes one, with `partition_chart.py`;
                                 `group_moves.py` has seek, skip, pause, resume and redrive
queue_map.py  leveret queues map
message_timeline.py leveret messages timeline
users.py      leveret users      `admin_recovery.py` for `users recover`
audit.py      leveret audit
pipeline.py   leveret pipeline
api.py        requests to the broker's HTTP API, for topics, groups and users
message_json.py     messages as lines of JSON, written and read without loss
command_runner.py   signals, errors and exit codes; `background_calls.py` for calls that block
screen.py     messages and progress bars on stderr
tables.py     tables, pages and JSON on stdout; `durations.py` formats and parses times
"""
