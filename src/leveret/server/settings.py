"""Every setting of a broker process: its name, default, bounds and meaning.

Owns the table. Where values come from (file, environment, command line) is left to `configuration`, and what
the limits do to the packages that enforce them: a default that a package has is read from there. The rule: a
setting has one name everywhere, `section.key`. In TOML that is a key of a table, in the environment
`LEVERET_SECTION_KEY`, on the command line `--set section.key=value`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from leveret.broker.limits import Limits
from leveret.fronts.flight.connection_limits import Limits as FlightLimits
from leveret.fronts.http.api_limits import ApiLimits
from leveret.server import admin_log
from leveret.server.alarms import DISK_FREE_MIN_BYTES, INTERVAL_S, MEMORY_SHARE_MAX
from leveret.server.hashing import THREADS_MAX, WAITING_MAX
from leveret.server.http_connection import HttpLimits
from leveret.server.listening_sockets import BACKLOG
from leveret.server.socket import HANDSHAKE_S
from leveret.server.tls import DISTINGUISHED_NAME, LOGIN_NAMES, NONE, REQUIRED, VERSIONS, WANTED
from leveret.storage.store import Options

Value: TypeAlias = int | float | str | None

_PORT_MAX: Final = 65_535
_LIMITS, _HTTP, _API, _FLIGHT, _STORE = Limits(), HttpLimits(), ApiLimits(), FlightLimits(), Options()
_MOST: Final = 2**62
_SECONDS_MAX: Final = 7 * 86_400.0


@dataclass(frozen=True, slots=True)
class Setting:
    """`Setting("amqp.heartbeat_s", 60, "…", 0, 65535)`."""

    name: str
    default: Value
    """None: not set. Its type is the type of the setting, a whole number if it is None."""
    meaning: str
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    is_reloaded: bool = False
    """Whether SIGHUP changes the setting of a running broker."""

    @property
    def variable(self) -> str:
        """
        >>> Setting("amqp.heartbeat_s", 60, "").variable
        'LEVERET_AMQP_HEARTBEAT_S'
        """
        return f"LEVERET_{self.name.replace('.', '_').upper()}"

    @property
    def expected(self) -> str:
        """Return what a value must be, as the end of a sentence.

        >>> Setting("listeners.amqp_port", 5672, "", -1, 65535).expected
        'a whole number from -1 to 65535'
        >>> Setting("log.format", "text", "", choices=("text", "json")).expected
        'text or json'
        """
        if self.choices:
            return " or ".join([", ".join(self.choices[:-1]), self.choices[-1]])
        if isinstance(self.default, str):
            return "a text"
        number = "a number" if isinstance(self.default, float) else "a whole number"
        return number if self.least is None else f"{number} from {self.least:g} to {_shown(self.most)}"


def _shown(bound: float | None) -> str:
    return "infinity" if bound is None else str(int(bound))


def _port(name: str, default: int, meaning: str) -> Setting:
    return Setting(f"listeners.{name}", default, f"{meaning}; 0 picks a free one, -1 is off.", -1, _PORT_MAX)


SETTINGS: Final = (
    Setting("data.directory", "leveret-data", "Where messages and definitions are kept."),
    Setting("data.definitions", "", "File of definitions (JSON) that is imported at every start."),
    Setting("listeners.host", "127.0.0.1", "Address to listen on."),
    _port("amqp_port", 5672, "Port for AMQP"),
    _port("http_port", 15_672, "Port for HTTP"),
    _port("flight_port", 8815, "Port for Arrow Flight, which Spark uses (needs the extra `spark`)"),
    _port("amqps_port", 5671, "Port for AMQP over TLS, with `tls.certificate`"),
    _port("https_port", 15_671, "Port for HTTPS, with `tls.certificate`"),
    _port("metrics_port", -1, "Port for metrics without a login, for Prometheus; RabbitMQ's is 15692"),
    Setting(
        "listeners.backlog",
        BACKLOG,
        "Connections to a port that the system queues until they are accepted.",
        1,
        65_535,
    ),
    Setting(
        "tls.certificate", "", "Certificate chain (PEM). With it Flight speaks TLS only.", is_reloaded=True
    ),
    Setting("tls.key", "", "The key of the certificate (PEM, without a password).", is_reloaded=True),
    Setting(
        "tls.client_certificates",
        NONE,
        "Whether clients of AMQP and HTTPS are asked for a certificate. `wanted`: one that is given must be "
        "valid; `required`: also of Flight, and no client is let in without one.",
        choices=(NONE, WANTED, REQUIRED),
        is_reloaded=True,
    ),
    Setting(
        "tls.client_authority",
        "",
        "Certificates of the authorities that issue clients' certificates (PEM).",
        is_reloaded=True,
    ),
    Setting(
        "tls.revoked",
        "",
        "Revocation lists (PEM), one for each of these authorities. Flight does not read them.",
        is_reloaded=True,
    ),
    Setting(
        "tls.minimum_version",
        "1.2",
        "Lowest version of TLS over AMQP and HTTPS.",
        choices=tuple(VERSIONS),
        is_reloaded=True,
    ),
    Setting(
        "tls.login_from",
        DISTINGUISHED_NAME,
        "What of a client's certificate is the user's name when the client logs in with EXTERNAL.",
        choices=LOGIN_NAMES,
        is_reloaded=True,
    ),
    Setting(
        "tls.login_index",
        0,
        "Which of several alternative names is the user's; 0 is the first.",
        0,
        1_000,
        is_reloaded=True,
    ),
    # AMQP
    Setting("amqp.channel_max", _LIMITS.channel_max, "Channels of a connection.", 1, 65_535),
    Setting("amqp.frame_max", _LIMITS.frame_max, "Size of a frame in bytes.", 4096, 1 << 30),
    Setting(
        "amqp.heartbeat_s", _LIMITS.heartbeat_s, "Heartbeat that the broker suggests; 0 is none.", 0, 65_535
    ),
    Setting(
        "amqp.handshake_timeout_s",
        HANDSHAKE_S,
        "How long a client may take from its connection to `connection.open`.",
        0.1,
        _SECONDS_MAX,
    ),
    Setting("amqp.message_max_bytes", _LIMITS.message_max_bytes, "Size of a message.", 1, 512 << 20),
    Setting(
        "amqp.unfinished_max_bytes",
        _LIMITS.unfinished_max_bytes,
        "Messages of a connection that have not arrived whole, on all channels together.",
        1,
        _MOST,
    ),
    Setting(
        "amqp.consumer_timeout_ms",
        _LIMITS.consumer_timeout_ms,
        "How long a consumer may hold a delivery, where queue and consumer have no timeout of their own.",
        1,
        _MOST,
    ),
    Setting(
        "amqp.unread_replies_max_bytes",
        _LIMITS.unread_replies_max_bytes,
        "Direct replies that a client has not read; further ones are dropped.",
        0,
        _MOST,
    ),
    # logins
    Setting(
        "logins.free_failures",
        _LIMITS.login_failures_free,
        "Failed logins in a row that cost no delay.",
        0,
        _MOST,
    ),
    Setting(
        "logins.failures_kept_s",
        _LIMITS.login_failures_kept_s,
        "How long failed logins are remembered after the last one.",
        1,
        int(_SECONDS_MAX),
    ),
    Setting(
        "logins.remembered_max",
        _LIMITS.logins_remembered_max,
        "Addresses and users whose failed logins are remembered, and users with an address from which they "
        "have logged in.",
        1,
        _MOST,
    ),
    Setting(
        "logins.hash_threads_max",
        THREADS_MAX,
        "Threads that hash passwords, 19 MiB each; never more than half as many as processors.",
        1,
        64,
    ),
    Setting("logins.hashes_waiting_max", WAITING_MAX, "Passwords that wait to be hashed.", 1, _MOST),
    Setting(
        "logins.delay_max_ms",
        _LIMITS.login_delay_max_ms,
        "How long a login waits at most after failed logins; 0 is no delay.",
        0,
        600_000,
    ),
    Setting(
        "logins.waiting_max", _LIMITS.logins_waiting_max, "Logins that wait for a delay or a hash.", 1, _MOST
    ),
    Setting(
        "logins.waiting_by_source_max",
        _LIMITS.logins_waiting_by_source_max,
        "Waiting logins from one address, or from one user at an address known for this user.",
        1,
        _MOST,
    ),
    # HTTP
    Setting("http.connections_max", _HTTP.connections_max, "Connections to one port.", 1, _MOST),
    Setting(
        "http.connections_per_address_max",
        _HTTP.connections_per_address_max,
        "Connections to one port from one address.",
        1,
        _MOST,
    ),
    Setting("http.header_max_bytes", _HTTP.header_max_bytes, "Request line and header fields.", 256, 1 << 24),
    Setting(
        "http.header_timeout_s",
        _HTTP.header_timeout_s,
        "Time for the header of a request.",
        0.1,
        _SECONDS_MAX,
    ),
    Setting(
        "http.body_timeout_s", _HTTP.body_timeout_s, "Time for the body of a request.", 0.1, _SECONDS_MAX
    ),
    Setting("http.idle_timeout_s", _HTTP.idle_timeout_s, "Time between two requests.", 0.1, _SECONDS_MAX),
    Setting(
        "http.send_timeout_s",
        _HTTP.send_timeout_s,
        "How long a client may read nothing of its answer.",
        0.1,
        _SECONDS_MAX,
    ),
    Setting(
        "http.tls_handshake_timeout_s",
        _HTTP.tls_handshake_timeout_s,
        "Time for the TLS handshake.",
        0.1,
        _SECONDS_MAX,
    ),
    Setting(
        "http.body_max_bytes",
        _API.body_max_bytes,
        "Body of a request.",
        1 << 10,
        1 << 30,
    ),
    Setting(
        "http.publish_max_bytes",
        _API.publish_max_bytes,
        "Body of a request that publishes a message.",
        1 << 10,
        1 << 30,
    ),
    Setting(
        "http.definitions_max_bytes",
        _API.definitions_max_bytes,
        "File of definitions that is imported.",
        1 << 10,
        1 << 30,
    ),
    Setting(
        "http.durability_timeout_s",
        _API.durability_timeout_s,
        "Time in which a change must be on disk.",
        0.1,
        _SECONDS_MAX,
    ),
    Setting(
        "http.token_life_s",
        _API.token_life_s,
        "Time after which a token of `POST /api/login` ends.",
        1,
        _SECONDS_MAX,
    ),
    # Flight
    Setting(
        "flight.unknown_bytes_max",
        _FLIGHT.unknown_bytes_max,
        "Bytes that a connection may send before its first login.",
        1 << 10,
        _MOST,
    ),
    Setting(
        "flight.unknown_total_bytes_max",
        _FLIGHT.unknown_total_bytes_max,
        "Bytes that all connections without a login may have sent.",
        1 << 10,
        _MOST,
    ),
    Setting("flight.unknown_max", _FLIGHT.unknown_max, "Connections without a login.", 1, _MOST),
    Setting("flight.unknown_s", _FLIGHT.unknown_s, "Time for the first login.", 0.1, _SECONDS_MAX),
    Setting(
        "flight.crowded_s",
        _FLIGHT.crowded_s,
        "Time for the first login while calls without a login are turned away.",
        0.1,
        _SECONDS_MAX,
    ),
    Setting(
        "flight.unfinished_total_bytes_max",
        _FLIGHT.unfinished_total_bytes_max,
        "Bytes that all connections may have sent in unanswered calls.",
        1 << 20,
        _MOST,
    ),
    Setting(
        "flight.silent_s",
        _FLIGHT.silent_s,
        "How long a connection may send and read nothing.",
        1,
        _SECONDS_MAX,
    ),
    Setting(
        "flight.calls_max", _FLIGHT.calls_max, "Calls at once of users who logged in lately.", 1, 100_000
    ),
    Setting(
        "flight.unverified_calls_max", _FLIGHT.unverified_calls_max, "Calls at once of others.", 1, 100_000
    ),
    Setting("flight.snapshots_max", _FLIGHT.snapshots_max, "Store snapshots that audits read.", 1, 1_000),
    Setting(
        "flight.snapshots_kept_s",
        _FLIGHT.snapshots_kept_s,
        "Time after which a store snapshot that nobody reads is dropped.",
        1,
        _SECONDS_MAX,
    ),
    # alarms
    Setting(
        "alarms.memory_share",
        MEMORY_SHARE_MAX,
        "Share of the machine's memory above which publishers are held back.",
        0.01,
        1,
        is_reloaded=True,
    ),
    Setting(
        "alarms.disk_free_min_bytes",
        DISK_FREE_MIN_BYTES,
        "Free space on the disk below which publishers are held back.",
        0,
        _MOST,
        is_reloaded=True,
    ),
    Setting(
        "alarms.interval_s",
        INTERVAL_S,
        "Time between two measurements of memory and disk.",
        0.05,
        3_600,
        is_reloaded=True,
    ),
    # the store
    Setting("store.wal_bytes", _STORE.wal_bytes, "Size of a file of the write-ahead log.", 1 << 16, 1 << 40),
    Setting("store.segment_bytes", _STORE.segment_bytes, "Size of a segment.", 1 << 16, 1 << 40),
    Setting(
        "store.memory_bytes",
        _STORE.memory_bytes,
        "Messages kept in memory before a checkpoint.",
        1 << 16,
        1 << 40,
    ),
    Setting(
        "store.snapshot_bytes",
        _STORE.snapshot_bytes,
        "Size of a cursor's journal after which a snapshot of the cursor is written.",
        1 << 12,
        1 << 40,
    ),
    Setting(
        "store.reserve_bytes",
        _STORE.reserve_bytes,
        "Disk space that is held for making room on a full disk; 0 is none.",
        0,
        1 << 40,
    ),
    # the process
    Setting("process.cpus", "", "Processors for the broker alone, as 0 or 0,2-3 (Linux)."),
    Setting("process.nice", None, "Priority: -20 is first in line for a processor, 19 is last.", -20, 19),
    Setting(
        "process.stop_timeout_s",
        5.0,
        "How long clients may take to leave when the broker stops.",
        0,
        _SECONDS_MAX,
    ),
    Setting(
        "log.level",
        "info",
        "Messages below this level are not logged.",
        choices=("debug", "info", "warning", "error"),
        is_reloaded=True,
    ),
    Setting(
        "log.format",
        "text",
        "Lines of text, or a JSON object a line.",
        choices=("text", "json"),
        is_reloaded=True,
    ),
    Setting("log.file", "", "File for the log; empty is stderr. SIGHUP opens it again.", is_reloaded=True),
    Setting(
        "log.slow_sync_ms",
        1_000,
        "A sync of the disk that takes longer is logged; 0 logs none.",
        0,
        3_600_000,
        is_reloaded=True,
    ),
    Setting(
        "log.slow_turn_ms",
        500,
        "A turn of the broker, in which all clients wait, is logged if it takes longer; 0 logs none.",
        0,
        3_600_000,
        is_reloaded=True,
    ),
    Setting(
        "log.admin_file",
        admin_log.FILE,
        "File for what operators change, in the data directory or with a path of its own; empty is none.",
    ),
    Setting(
        "log.admin_file_max_bytes",
        admin_log.BYTES_MAX,
        "Size of that file at which it is renamed. One renamed file is kept.",
        1 << 16,
        _MOST,
    ),
)

BY_NAME: Final = {setting.name: setting for setting in SETTINGS}
