"""AMQP 0-9-1: translates connections, channels and methods of clients for the broker, and back.

connection.py    channels, settlements, errors, closing; `handshake.py` and `login.py` open it
wire.py          state of a connection, negotiated limits, bytes to write
channel.py       one channel: the broker's deliveries, confirms and answers as frames
publishing.py    runs of publishes; `requeue.py`: publishes that ask for a requeue
methods/         all other methods, a file for each class of the protocol
errors.py        table from the broker's errors to AMQP's reply codes
"""
