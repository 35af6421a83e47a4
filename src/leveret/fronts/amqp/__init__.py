"""AMQP 0-9-1: connections, channels and methods of clients, translated for the broker and back.

connection.py    channels of a connection, errors, closing; `handshake` and `login` before that
channel.py       one channel: what the broker says there, as frames
publishing.py    runs of publishes; `requeue` those that are none
settling.py      runs of acks, nacks and rejects
methods/         everything else a client can ask for, a file for each class of the protocol
errors.py        the one table from the broker's errors to AMQP's codes
"""
