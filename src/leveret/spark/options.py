"""The options of source and sink: read once from Spark's strings, checked before anything runs.

Owns the names and types of options, and which of them go together; readers and writers act on them. Spark
ignores the case of names. The rule: text made of options (`repr`, errors) shows no password and no URL with
user info.
"""

from __future__ import annotations

import difflib
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any, Final, Literal, Self
from urllib.parse import quote, urlsplit, urlunsplit

from pyspark.sql.types import StructType

from leveret.client.endpoint import Endpoint as AmqpEndpoint
from leveret.spark import option_values
from leveret.spark.errors import BadOption
from leveret.spark.option_values import DAY_S, Position
from leveret.spark.shared_directory import without_keys

URL: Final = "amqp://guest:guest@localhost:5672/"
_HIDDEN: Final = "***"

Decode = Literal["binary", "text", "json"]
AckMode = Literal["commit", "none"]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BrokerOptions:
    """Options of both source and sink: where the broker is, and the login."""

    url: str = URL
    """One AMQP URL, or several with commas between them: the first that answers is used."""
    user: str | None = None
    password: str | None = None
    tls_ca_file: str | None = None
    flight_url: str | None = None
    """Address of the Flight endpoint if it is not the one the broker tells, for example a mapped port."""
    broker_timeout_s: float = 60.0

    def __repr__(self) -> str:
        shown = {field.name: getattr(self, field.name) for field in fields(self)}
        shown["url"] = self.where
        if self.password is not None:
            shown["password"] = _HIDDEN
        # Only the source has a spool location.
        if shown.get("spool_location") is not None:
            shown["spool_location"] = without_keys(shown["spool_location"])
        inside = ", ".join(f"{name}={value!r}" for name, value in shown.items())
        return f"{type(self).__name__}({inside})"

    @property
    def amqp_urls(self) -> tuple[str, ...]:
        """The URLs with the user and password to log in with; they must never be shown."""
        return tuple(_with_user(url, self.user, self.password) for url in _split(self.url))

    @property
    def vhost(self) -> str:
        return AmqpEndpoint.parse(self.amqp_urls[0]).vhost

    @property
    def where(self) -> str:
        """Return the URLs without users and passwords."""
        return ",".join(_without_user(url) for url in _split(self.url))

    def ssl_context(self) -> ssl.SSLContext | None:
        """Return the TLS context for `amqps` URLs; None means what the URLs say."""
        if not self.tls_ca_file:
            return None
        named = AmqpEndpoint.parse(self.amqp_urls[0]).tls_options
        return replace(named, ca_file=self.tls_ca_file).context()

    def check_broker(self) -> None:
        vhosts = set()
        for url in _split(self.url):
            try:
                # A slash in a password makes the rest of it part of the path.
                if "@" in urlsplit(url).path:
                    raise ValueError
                vhosts.add(AmqpEndpoint.parse(url).vhost)
            except ValueError:
                # The text of the caught error may hold a part of the password.
                raise BadOption(
                    "option url is not an AMQP URL",
                    hint="amqp://user:password@host:5672/vhost; special characters percent-encoded",
                ) from None
        if len(vhosts) != 1:
            raise BadOption(f"the URLs of option url name different vhosts: {', '.join(sorted(vhosts))}")
        if self.tls_ca_file is not None:
            try:
                self.ssl_context()
            except ValueError as error:
                raise BadOption(f"option tlsCaFile: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SourceOptions(BrokerOptions):
    """`SourceOptions.parse({"queue": "orders", "cursor": "to-lake"})`."""

    queue: str | None = None
    stream: str | None = None
    topic: str | None = None
    cursor: str | None = None
    spool_location: str | None = None
    starting: Position = "earliest"
    starting_offset: int | None = None
    ending_offset: int | None = None
    starting_timestamp: datetime | None = None
    ending_timestamp: datetime | None = None
    max_messages: int | None = None
    max_bytes: int | None = None
    min_partitions: int = 1
    decode: Decode = "binary"
    json_schema: str | None = None
    include_properties: bool = False
    pushdown: bool = False
    lease_timeout_s: float = DAY_S
    dedup_window_s: float = DAY_S
    fail_on_data_loss: bool = True
    ack_mode: AckMode = "commit"
    body_type: StructType | None = None
    """The type of `json_schema`, after Spark has read it."""

    @classmethod
    def parse(cls, mapping: Mapping[str, str]) -> Self:
        """Return checked options; raise `BadOption` with one sentence for what is wrong."""
        options = cls(**_values(mapping, _SOURCE, ignored=_OF_READS, side="source"))
        options.check_broker()
        options._check_subject()
        options._check_body()
        return options

    @property
    def subject(self) -> str:
        """Name of the queue, stream or topic that is read."""
        ((_, name),) = self._subjects()
        return name

    @property
    def described(self) -> str:
        """Kind and name of what is read: `queue 'orders'`."""
        ((kind, name),) = self._subjects()
        return f"{kind} '{name}'"

    def _subjects(self) -> list[tuple[str, str]]:
        subjects = [("queue", self.queue), ("stream", self.stream), ("topic", self.topic)]
        return [(kind, name) for kind, name in subjects if name is not None]

    def _check_subject(self) -> None:
        given = [kind for kind, _ in self._subjects()]
        if len(given) != 1:
            *names, last = given or ("queue", "stream", "topic")
            state = f"{'both' if len(names) == 1 else 'all'} {'given' if given else 'missing'}"
            hint = "say what is read with exactly one"
            raise BadOption(f"options {', '.join(names)} and {last} are {state}", hint=hint)
        if self.queue is not None and self.starting != "earliest":
            raise BadOption(
                "option startingPosition of a queue can only be 'earliest'",
                hint="a queue gives what is in it; positions are for streams and topics, and startingOffset "
                "and startingTimestamp for batch reads",
            )
        if self.topic is None and isinstance(self.starting, Mapping):
            raise BadOption(
                "option startingPosition has offsets by partition, which only a topic has",
                hint="give the offset alone",
            )

    def _check_body(self) -> None:
        if self.decode == "json" and self.json_schema is None:
            raise BadOption(
                "option decode=json needs option jsonSchema", hint="a DDL string: 'id LONG, name STRING'"
            )
        if self.decode != "json" and self.json_schema is not None:
            raise BadOption("option jsonSchema is given without decode=json")

    def check_stream(self) -> None:
        """Check the options of a streaming read."""
        if self.queue is not None or (self.topic is not None and self.ack_mode == "commit"):
            self.check_cursor()
        for name in _RANGES:
            if getattr(self, _SOURCE[name][0]) is not None:
                raise BadOption(f"option {name} is for batch reads (spark.read) alone")

    def check_cursor(self) -> None:
        """Check that the query has a name at the broker."""
        if self.cursor is None:
            raise BadOption(
                "option cursor is missing", hint="the query's name at the broker: any name, kept for its life"
            )

    def check_batch(self) -> None:
        """Check the options of a batch read."""
        for name in _OF_STREAMS:
            if getattr(self, _SOURCE[name][0]) is not None:
                raise BadOption(f"option {name} is for streaming reads (spark.readStream) alone")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SinkOptions(BrokerOptions):
    """`SinkOptions.parse({"exchange": "orders"})`."""

    exchange: str = ""
    routing_key: str | None = None
    mandatory: bool = True
    unroutable_exchange: str | None = None
    stage_timeout_s: float = DAY_S
    query_name: str | None = None
    batch_id: int | None = None

    @classmethod
    def parse(cls, mapping: Mapping[str, str]) -> Self:
        options = cls(**_values(mapping, _SINK, ignored=_OF_WRITES, side="sink"))
        options.check_broker()
        if options.batch_id is not None and options.query_name is None:
            raise BadOption(
                "option batchId needs option queryName", hint="together they say which write this is"
            )
        return options


_Table = Mapping[str, tuple[str, Callable[[str], Any]]]
_BROKER: Final[_Table] = {
    "url": ("url", option_values.text),
    "user": ("user", option_values.text),
    "password": ("password", option_values.any_text),
    "tlsCaFile": ("tls_ca_file", option_values.text),
    "flightUrl": ("flight_url", option_values.flight_url),
    "brokerTimeout": ("broker_timeout_s", option_values.duration),
}
_SOURCE: Final[_Table] = {
    **_BROKER,
    "queue": ("queue", option_values.text),
    "stream": ("stream", option_values.text),
    "topic": ("topic", option_values.text),
    "cursor": ("cursor", option_values.text),
    "spoolLocation": ("spool_location", option_values.text),
    "startingPosition": ("starting", option_values.position),
    "startingOffset": ("starting_offset", option_values.offset),
    "endingOffset": ("ending_offset", option_values.offset),
    "startingTimestamp": ("starting_timestamp", option_values.instant),
    "endingTimestamp": ("ending_timestamp", option_values.instant),
    "maxMessagesPerTrigger": ("max_messages", option_values.count),
    "maxBytesPerTrigger": ("max_bytes", option_values.size),
    "minPartitions": ("min_partitions", option_values.count),
    "decode": ("decode", option_values.one_of("binary", "text", "json")),
    "jsonSchema": ("json_schema", option_values.text),
    "includeProperties": ("include_properties", option_values.flag),
    "pushdown": ("pushdown", option_values.flag),
    "leaseTimeout": ("lease_timeout_s", option_values.duration),
    "dedupWindow": ("dedup_window_s", option_values.duration),
    "failOnDataLoss": ("fail_on_data_loss", option_values.flag),
    "ackMode": ("ack_mode", option_values.one_of("commit", "none")),
}
_SINK: Final[_Table] = {
    **_BROKER,
    "exchange": ("exchange", option_values.any_text),
    "routingKey": ("routing_key", option_values.any_text),
    "mandatory": ("mandatory", option_values.flag),
    "unroutableExchange": ("unroutable_exchange", option_values.text),
    "stageTimeout": ("stage_timeout_s", option_values.duration),
    "queryName": ("query_name", option_values.text),
    "batchId": ("batch_id", option_values.offset),
}
_RANGES: Final = ("startingOffset", "endingOffset", "startingTimestamp", "endingTimestamp")
_OF_STREAMS: Final = ("cursor", "maxMessagesPerTrigger", "maxBytesPerTrigger", "spoolLocation")
_OF_READS: Final = frozenset[str]()
_OF_WRITES: Final = frozenset(("checkpointlocation", "asyncprogresstrackingcheckpointintervalms"))
"""Options of Spark itself, which it passes on to sinks."""
_ASYNC: Final = "asyncprogresstrackingenabled"


def _values(
    mapping: Mapping[str, str], table: _Table, *, ignored: frozenset[str], side: str
) -> dict[str, Any]:
    known = {name.lower(): name for name in table}
    values: dict[str, Any] = {}
    for key, value in mapping.items():
        lowered = key.lower()
        if lowered == _ASYNC:
            _refuse_async(value)
        elif lowered in known:
            name = known[lowered]
            field, parse = table[name]
            values[field] = _parsed(name, value, parse)
        elif lowered not in ignored:
            raise BadOption(f"the {side} has no option '{key}'", hint=_nearest(key, known))
    return values


def _parsed(name: str, value: str, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(value)
    except ValueError as error:
        shown = "" if name in ("url", "password", "flightUrl") else f" '{value}'"
        raise BadOption(f"option {name}{shown} {error}") from None


def _refuse_async(value: str) -> None:
    if value.lower() == "true":
        raise BadOption(
            "asynchronous progress tracking can't be used with leveret",
            hint="offsets would be acked before Spark has committed them: leave out "
            "asyncProgressTrackingEnabled",
        )


def _nearest(key: str, known: Mapping[str, str]) -> str:
    near = difflib.get_close_matches(key.lower(), known, n=1, cutoff=0.6)
    if near:
        return f"did you mean {known[near[0]]}?"
    return f"there are {', '.join(sorted(known.values()))}"


# URLs


def _split(url: str) -> list[str]:
    return [part.strip() for part in re.split(r",(?=\s*amqps?://)", url)]


def _with_user(url: str, user: str | None, password: str | None) -> str:
    """Return the URL with user and password of the options, where these are set."""
    if user is None and password is None:
        return url
    parsed = AmqpEndpoint.parse(url)
    parts = urlsplit(url)
    login = (parsed.user if user is None else user, parsed.password if password is None else password)
    encoded = ":".join(quote(part, safe="") for part in login)
    return urlunsplit(parts._replace(netloc=f"{encoded}@{_host(parts.netloc)}"))


def _without_user(url: str) -> str:
    """Return only what follows the last @: a malformed URL may have its password anywhere before."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{_host(rest).partition('?')[0]}" if rest else _HIDDEN


def _host(netloc: str) -> str:
    return netloc.rpartition("@")[2]
