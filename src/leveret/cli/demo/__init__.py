"""`leveret demo`: the whole of it in about a minute, with everything going wrong that can go wrong.

command.py     the options; what is missing here, what is said at the end
scenes.py      what happens, one thing after the other
orders.py      the orders: which ones are poisonous, which ones nobody takes, which one hangs
topology.py    exchange, queues and topic
broker.py      the broker as a process: started, killed, started again, asked
publishers.py  send the orders, and count receipts
worker.py      takes orders from the queue, as a process of its own; member.py does so in the group
records.py     what workers and members write down, and how it is read
jobs.py        the pipeline and the audit, as processes; what is in the table
letters.py     what is among the dead letters and the rejects, and why
processes.py   all processes of the demo, from their start to their end; child.py is around each of them
verdict.py     figures, and whether they are what they should be
display.py     what people see
"""
