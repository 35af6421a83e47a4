"""The Flight endpoint: bulk reads and writes, in a process of their own beside the broker.

`endpoint` starts and ends the process and answers it, in the broker's loop; `answers` has what is answered.
`process` is the other side: it speaks Arrow Flight to clients, reads segments by itself, and asks the broker
for everything that is state. `wire` is what the two say to each other. What both take from the loop and from
the system is passed in by `leveret.server`.
"""
