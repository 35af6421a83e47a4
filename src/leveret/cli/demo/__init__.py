"""`leveret demo`: every part of Leveret in about a minute, while processes are killed.

command.py      the options; what is missing on this machine; the output at the end
scenes.py       the steps of the demo, one after the other
orders.py       the orders: which are invalid, which are unroutable, which one makes a member hang
topology.py     exchange, queues and topic
broker.py       the broker as a process: started, killed, restarted, queried
publishers.py   publish the orders, and count receipts
worker.py       a process that takes orders from the queue; member.py does so in the group
records.py      the files in which workers and members record what they did
jobs.py         the pipeline and the audit, as processes; what is in the table
dead_letters.py which orders are dead letters or rejects, and why
processes.py    start, watch and end the processes; child.py wraps each of them
verdict.py      figures, and whether they are as expected
display.py      the lines on the terminal
"""
