"""No library at all, beside the libraries of `bench.client`: what the broker can do for a free client.

The load generator of `bench.broker`: every frame is encoded beforehand, so that sending is slicing. A library
that comes near these rates is held up by the broker, and then only its CPU time tells how good it is. `fill`
puts the messages into a queue that the libraries consume.
"""

from __future__ import annotations

import select

from bench.client_job import Job
from bench.frames import Load, Shape, make_load
from bench.peer import Client
from bench.streams import Consuming, Publishing, Stall

STALL_S = 30.0
PREFETCH = 2_000


def shape(queue: str) -> Shape:
    return Shape(keys=(queue,))


def publish_all(client: Client, load: Load, window: int) -> None:
    """Returns when everything is confirmed."""
    publishing = Publishing(client.socket, load)
    client.socket.setblocking(False)
    with select.epoll() as poll:
        poll.register(client.socket, select.EPOLLIN)
        while publishing.confirms.count < load.count:
            publishing.allow(publishing.confirms.count + window)
            poll.modify(client.socket, select.EPOLLIN | (select.EPOLLOUT if publishing.wants_to_send else 0))
            turn(poll, publishing)


def consume_all(client: Client, load: Load) -> None:
    """Returns when everything is acked."""
    consuming = Consuming(client.socket, load, auto_ack=False)
    client.socket.setblocking(False)
    with select.epoll() as poll:
        poll.register(client.socket, select.EPOLLIN)
        while consuming.acked < load.count:
            poll.modify(client.socket, select.EPOLLIN | (select.EPOLLOUT if consuming.wants_to_send else 0))
            turn(poll, consuming)


def turn(poll: select.epoll, end: Publishing | Consuming) -> None:
    events = poll.poll(STALL_S)
    if not events:
        raise Stall(f"the broker was silent for {STALL_S:.0f} s")
    if events[0][1] & ~select.EPOLLOUT:
        end.receive()
    if end.wants_to_send:
        end.send()


def fill(host: str, port: int, *, queue: str, messages: int) -> None:
    """Puts messages into a queue: the ones that `consume` expects."""
    client = Client(host, port)
    client.confirm_select()
    publish_all(client, make_load(shape(queue), messages), window=10_000)
    client.close()


def publish(job: Job) -> None:
    client = Client(job.host, job.port)
    client.confirm_select()
    load = make_load(shape(job.queue), job.messages)
    with job.measured():
        publish_all(client, load, job.window)
    client.close()


def consume(job: Job) -> None:
    client = Client(job.host, job.port)
    load = make_load(shape(job.queue), job.messages)
    with job.measured():
        client.consume(job.queue, prefetch=PREFETCH, auto_ack=False)
        consume_all(client, load)
        client.close_channel()
    client.close()


WAYS = {"publish": {"encoded beforehand": publish}, "consume": {"encoded beforehand": consume}}
