"""The command `leveret`: parse, call, print. One module per command; `main.py` registers them.

demo/         leveret demo
serve.py      leveret serve      `broker_process.py` runs the broker, `preflight.py` checks what it needs
config.py     leveret config
backup.py     leveret backup
publish.py    leveret publish    the options; `publishing.py` does the work, `inputs.py` reads the input
consume.py    leveret consume    the options; `consuming.py` does the work, `outputs.py` writes the output
redrive.py    leveret redrive    with `filters.py`, the language of --where
status.py     leveret status
top.py        leveret top
queues.py, exchanges.py, bindings.py    `declaring.py` has the options of declarations
clients.py    leveret connections, channels, consumers
resources.py  `list` and `show` of all of these; `watching.py` shows an answer again and again
messages.py   leveret messages
doctor.py     leveret doctor     `machine_checks.py` and `data_checks.py` find out
topic.py      leveret topic
groups.py     leveret groups     `group_page.py` describes one, with `partition_chart.py`;
                                 `group_moves.py` has seek, skip, pause, resume and redrive
queue_map.py  leveret queues map
message_timeline.py leveret messages timeline
users.py      leveret users      `admin_recovery.py` for `users recover`
audit.py      leveret audit
pipeline.py   leveret pipeline
api.py        requests to the broker's HTTP API, for all commands that have `--http`
message_json.py     messages as lines of JSON, written and read without loss
command_runner.py   signals, errors and exit codes; `background_calls.py` for calls that block
screen.py     messages and progress bars on stderr
tables.py     tables, pages and JSON on stdout; `durations.py` formats and parses times
"""
