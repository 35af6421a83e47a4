"""The Flight endpoint: bulk reads and writes, served by a child process of the broker.

In the broker's event loop, `endpoint` starts and stops the process and `answers` answers its questions.
`process` is the child: it speaks Arrow Flight to clients, reads segments itself, and asks the broker for all
state. `process_protocol` defines their messages. `leveret.server` passes in the event loop's turns and the
operating system's functions.
"""
