"""A broker in the process that loses power: what was confirmed is there, and is said to be redelivered."""

from random import Random

import pika

from leveret.testing.broker import Broker

with Broker() as broker:
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    channel = connection.channel()
    channel.queue_declare("orders", durable=True)
    channel.confirm_delivery()
    for number in range(3):
        channel.basic_publish("", "orders", b"order %d" % number, pika.BasicProperties(delivery_mode=2))
    channel.basic_get("orders")  # taken, and not acked

    broker.crash(Random(1))  # the power goes
    broker.start()

    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    channel = connection.channel()
    for _ in range(3):
        method, properties, body = channel.basic_get("orders")
        assert method is not None
        print(body.decode(), "(redelivered)" if method.redelivered else "")
        channel.basic_ack(method.delivery_tag)
    connection.close()
