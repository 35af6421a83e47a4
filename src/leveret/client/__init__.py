"""The client toolkit for AMQP 0-9-1 brokers: a receipt for every publish, a decision for every delivery.

    from leveret.client import App, Connection, Park, Publisher, Retry

Publishing starts at `publisher.py`, consuming at `app.py`, both on `connection.py`; docs/guide/client.md is
the manual.
"""

from leveret.client.acks import Settled
from leveret.client.app import App, Health
from leveret.client.backoff import Backoff
from leveret.client.blocking import BlockingConnection
from leveret.client.codecs import Codecs
from leveret.client.connection import Connection
from leveret.client.consumer import Consumer
from leveret.client.decisions import AckAnyway, Decision, Reject, Requeue, RetryLater
from leveret.client.delivery import Delivery
from leveret.client.errors import (
    AttemptsUsedUp,
    ChannelClosed,
    ChannelsExhausted,
    ClientError,
    Closed,
    ConfirmTimeout,
    ConnectionBlocked,
    ConnectionLost,
    ConversionError,
    HandlerTimeout,
    LoginRefused,
    NoReply,
    NotConnected,
    QueueLocked,
    SeenFailed,
    TlsFailed,
    TopologyMismatch,
    WindowFull,
)
from leveret.client.hooks import Hooks
from leveret.client.idempotence import MemorySeen, Seen, SqliteSeen
from leveret.client.listener_options import Batch
from leveret.client.message import Message
from leveret.client.processing import BatchFailed
from leveret.client.publisher import Publisher
from leveret.client.receipt import (
    ConfirmsFailed,
    MessageLost,
    MessageNacked,
    MessageReturned,
    PublishFailed,
    PublishInterrupted,
    Receipt,
    Status,
)
from leveret.client.recoverers import (
    Failure,
    ImmediateRequeue,
    Park,
    Recoverer,
    RejectAndDontRequeue,
    Republish,
)
from leveret.client.redrive import Redriven, redrive
from leveret.client.requester import Requester
from leveret.client.retry import Retry
from leveret.client.topics import partition, topic
from leveret.client.topology import Binding, Exchange, Queue, Topology, dead_letter_pair

__all__ = [
    "AckAnyway",
    "App",
    "AttemptsUsedUp",
    "Backoff",
    "Batch",
    "BatchFailed",
    "Binding",
    "BlockingConnection",
    "ChannelClosed",
    "ChannelsExhausted",
    "ClientError",
    "Closed",
    "Codecs",
    "ConfirmTimeout",
    "ConfirmsFailed",
    "Connection",
    "ConnectionBlocked",
    "ConnectionLost",
    "Consumer",
    "ConversionError",
    "Decision",
    "Delivery",
    "Exchange",
    "Failure",
    "HandlerTimeout",
    "Health",
    "Hooks",
    "ImmediateRequeue",
    "LoginRefused",
    "MemorySeen",
    "Message",
    "MessageLost",
    "MessageNacked",
    "MessageReturned",
    "NoReply",
    "NotConnected",
    "Park",
    "PublishFailed",
    "PublishInterrupted",
    "Publisher",
    "Queue",
    "QueueLocked",
    "Receipt",
    "Recoverer",
    "Redriven",
    "Reject",
    "RejectAndDontRequeue",
    "Republish",
    "Requester",
    "Requeue",
    "Retry",
    "RetryLater",
    "Seen",
    "SeenFailed",
    "Settled",
    "SqliteSeen",
    "Status",
    "TlsFailed",
    "Topology",
    "TopologyMismatch",
    "WindowFull",
    "dead_letter_pair",
    "partition",
    "redrive",
    "topic",
]
