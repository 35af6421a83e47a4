"""The Celery application that the workers of `test_celery.py` run, and that the tests send tasks with.

Owns its queues (a plain one, one with priorities, one behind a topic exchange) and tasks that can be held
in the middle: such a task reports to a socket of the test and goes on when it is answered.
"""

import os
import socket

from celery import Celery, Task, shared_task
from kombu import Exchange, Queue


def make_app(broker_url: str, queue: str) -> Celery:
    """
    >>> make_app(url, "jobs").signature("interop.add", (1, 2)).delay().get(timeout=10)
    3
    """
    app = Celery("interop", broker=broker_url, backend="rpc://", set_as_current=False)
    app.conf.update(
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        task_default_queue=queue,
        task_queues=[
            Queue(queue, Exchange(queue), routing_key=queue),
            Queue(f"{queue}.priority", Exchange(queue), routing_key="priority", max_priority=10),
            Queue(f"{queue}.reports", Exchange(f"{queue}.topic", "topic"), routing_key="report.#"),
        ],
        worker_prefetch_multiplier=1,
        worker_hijack_root_logger=False,
        broker_connection_retry_on_startup=False,
        broker_transport_options={"confirm_publish": True},
    )
    return app


@shared_task(name="interop.add")
def add(left: int, right: int) -> int:
    return left + right


@shared_task(name="interop.fail")
def fail(text: str) -> None:
    raise ValueError(text)


@shared_task(name="interop.flaky", bind=True)
def flaky(self: Task, failures: int) -> dict[str, object]:
    """Works after that many retries."""
    if self.request.retries < failures:
        raise self.retry(countdown=0.1, max_retries=failures)
    return {"retries": self.request.retries}


@shared_task(name="interop.held", bind=True)
def held(self: Task, port: int, label: str) -> str:
    """Reports to the test, and goes on when the test says so."""
    redelivered = self.request.delivery_info["redelivered"]
    with socket.create_connection(("127.0.0.1", port), timeout=60) as gate:
        gate.sendall(f"{label} {os.getpid()} {redelivered}\n".encode())
        gate.recv(1)
    return label


if "INTEROP_BROKER_URL" in os.environ:  # in a worker
    app = make_app(os.environ["INTEROP_BROKER_URL"], os.environ["INTEROP_QUEUE"])
    app.set_current()
