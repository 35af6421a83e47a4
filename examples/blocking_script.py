"""A blocking script: the same receipts and decisions, for code without an event loop.

For scripts, threads and Spark executors. Each connection has its event loop in a thread of its own; every
call here waits for its answer, or raises.
"""

from playground import broker

from leveret.client import BlockingConnection, Message, Queue, Topology

ORDERS, FAILED = "blocking_script.orders", "blocking_script.failed"
TOPOLOGY = Topology(
    Queue(ORDERS, dead_letter_exchange="", dead_letter_key=FAILED),
    Queue(FAILED),
)


def main(url: str) -> None:
    with BlockingConnection(url, topology=TOPOLOGY) as connection:
        with connection.publisher() as publisher:
            receipt = publisher.publish({"id": 1}, ORDERS).check()
            print(f"One order: {receipt.status.value}.")
            receipts = publisher.publish_many(Message({"id": n}, ORDERS) for n in range(2, 1001))
            print(f"{len(receipts)} more: {sum(receipt.confirmed for receipt in receipts)} confirmed.")

        count = 0
        for delivery in connection.consume(ORDERS, limit=1000):
            count += 1
            if delivery.value["id"] == 500:
                delivery.reject()  # to the dead letters
            else:
                delivery.ack()
        print(f"{count} came, one was rejected.")

        moved = connection.redrive(FAILED)
        print(f"{moved.moved} was brought back from the dead letters.")
        for delivery in connection.consume(ORDERS, limit=1):
            print(f"It is {delivery.value}.")
            delivery.ack()


with broker(ORDERS, FAILED) as url:
    main(url)
