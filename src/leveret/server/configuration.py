"""The configuration of a broker process: values of all settings, and where each comes from.

    configuration = read(text, file="leveret.toml", environment=os.environ, flags={"listeners.amqp_port": 0})
    configuration["amqp.heartbeat_s"]      # 60
    configuration.origin("amqp.heartbeat_s")  # "default"

A value on the command line takes precedence over the environment, the environment over the file, the file
over the default. Owns the checks of single values and of values that exclude one another, and the objects
that the parts of the server are given. `settings` owns the table of settings. The rule: a configuration with
a mistake is refused as a whole, and all mistakes are named at once.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any, Final

from leveret.broker.limits import Limits
from leveret.fronts.flight.connection_limits import Limits as FlightLimits
from leveret.fronts.http.limits import ApiLimits
from leveret.server.http_connection import HttpLimits
from leveret.server.settings import BY_NAME, SETTINGS, Setting, Value
from leveret.server.tls import NONE, OFF, TlsSettings
from leveret.storage.store import Options

DEFAULT: Final = "default"
_HEADER: Final = re.compile(r"\s*\[([\w.\s\"'-]+)\]")
_KEY: Final = re.compile(r"\s*([\w.\s\"'-]+?)\s*=")
_NOT_IN_NAMES: Final = re.compile(r"[\s\"']")
_LISTENERS: Final = ("amqp_port", "http_port", "flight_port", "amqps_port", "https_port", "metrics_port")
_TLS_LISTENERS: Final = ("amqps_port", "https_port")
_LOGIN_FIELDS: Final = {
    "login_delay_max_ms": "logins.delay_max_ms",
    "logins_waiting_max": "logins.waiting_max",
    "logins_waiting_by_source_max": "logins.waiting_by_source_max",
    "login_failures_free": "logins.free_failures",
    "login_failures_kept_s": "logins.failures_kept_s",
    "logins_remembered_max": "logins.remembered_max",
}


_LINE = ", line "


class ConfigurationError(Exception):
    """The configuration is refused. `mistakes` has a sentence for each mistake."""

    def __init__(self, mistakes: Sequence[str]) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = tuple(mistakes)


@dataclass(frozen=True)
class Configuration:
    """`configuration["amqp.heartbeat_s"]`."""

    values: Mapping[str, Value] = field(
        default_factory=lambda: {each.name: each.default for each in SETTINGS}
    )
    origins: Mapping[str, str] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def origin(self, name: str) -> str:
        """Return where the value comes from: default, a line of the file, a variable, or a flag."""
        return self.origins.get(name, DEFAULT)

    def port(self, listener: str) -> int:
        """Return the port of a listener, as `http_port`.

        With a free port for AMQP (0), listeners whose port is not chosen get a free one too.
        """
        name = f"listeners.{listener}"
        port = int(self[name])
        if port != OFF and self.origin(name) == DEFAULT and self["listeners.amqp_port"] == 0:
            return 0
        return port

    @property
    def tls(self) -> TlsSettings | None:
        """Return the certificate and the ports that show it, or None without a certificate."""
        if not self["tls.certificate"]:
            return None
        ports = [self.port(listener) for listener in _TLS_LISTENERS]
        return TlsSettings(ports[0], ports[1], **self._section("tls", TlsSettings))

    @property
    def files(self) -> list[str]:
        """The paths of the files from which values come."""
        places = (origin.rpartition(_LINE) for origin in self.origins.values())
        return list(dict.fromkeys(file for file, _, _ in places if file))

    @property
    def limits(self) -> Limits:
        names = {each.name: _LOGIN_FIELDS.get(each.name, f"amqp.{each.name}") for each in fields(Limits)}
        return Limits(**{name: self[setting] for name, setting in names.items()})

    @property
    def http_limits(self) -> HttpLimits:
        return HttpLimits(**self._section("http", HttpLimits))

    @property
    def api_limits(self) -> ApiLimits:
        return ApiLimits(**self._section("http", ApiLimits))

    @property
    def flight_limits(self) -> FlightLimits:
        return FlightLimits(**self._section("flight", FlightLimits))

    @property
    def store_options(self) -> Options:
        return Options(**self._section("store", Options))

    def _section(self, section: str, taker: Any) -> dict[str, Any]:
        """Return the section's values that are fields of a dataclass."""
        names = {each.name: f"{section}.{each.name}" for each in fields(taker)}
        return {name: self[setting] for name, setting in names.items() if setting in self.values}


def read(
    text: str = "",
    *,
    file: str = "",
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, tuple[str, str | int | float]] | None = None,
) -> Configuration:
    """Return the configuration, or raise `ConfigurationError` with all mistakes.

    `flags` has for each setting the flag as the user wrote it, and the value.
    """
    reading = _Reading()
    reading.read_file(text, file)
    for setting in SETTINGS:
        if environment and (written := environment.get(setting.variable)) is not None:
            reading.take_text(setting.name, written, setting.variable)
    for name, (flag, written_flag) in (flags or {}).items():
        reading.take_text(name, str(written_flag), flag)
    configuration = Configuration(reading.values, reading.origins)
    mistakes = reading.mistakes or _contradictions(configuration)
    if mistakes:
        raise ConfigurationError(mistakes)
    return configuration


class _Reading:
    """Values that were read so far, and mistakes."""

    def __init__(self) -> None:
        self.values: dict[str, Value] = {setting.name: setting.default for setting in SETTINGS}
        self.origins: dict[str, str] = {}
        self.mistakes: list[str] = []

    def read_file(self, text: str, file: str) -> None:
        try:
            document = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            self.mistakes.append(f"{file}: {error}")
            return
        lines = _lines(text)
        sections = {name.partition(".")[0] for name in BY_NAME}
        for section, table in document.items():
            where = f"{file}{_LINE}{lines.get(section, 1)}"
            if not isinstance(table, dict):
                self.mistakes.append(f"{where}: {section!r} stands outside of a table such as [listeners]")
            elif section not in sections:
                self.mistakes.append(f"{where}: [{section}] is not a section{_nearest(section, sections)}")
            else:
                for key, value in table.items():
                    # Keys of an inline table are in the line of the table.
                    line = lines.get(f"{section}.{key}", lines.get(section, 1))
                    self._take(f"{section}.{key}", value, f"{file}{_LINE}{line}")

    def take_text(self, name: str, text: str, origin: str) -> None:
        """Take a value that is written as text: in the environment or on the command line."""
        setting = BY_NAME.get(name)
        value: object = text
        if setting is not None and not isinstance(setting.default, str):
            try:
                value = int(text)
            except ValueError:
                try:
                    value = float(text)
                except ValueError:
                    value = None if setting.default is None and not text else text
        self._take(name, value, origin)

    def _take(self, name: str, value: object, origin: str) -> None:
        setting = BY_NAME.get(name)
        if setting is None:
            self.mistakes.append(f"{origin}: {name} is not a setting{_nearest(name, BY_NAME)}")
        elif not _fits(setting, value):
            self.mistakes.append(f"{origin}: {name} is {value!r}, and must be {setting.expected}")
        else:
            self.values[name] = float(value) if isinstance(setting.default, float) else value  # type: ignore[arg-type,assignment]
            self.origins[name] = origin


def _lines(text: str) -> dict[str, int]:
    """Return the lines of sections and keys; `tomllib` does not tell them.

    >>> _lines("[http]\\nidle_timeout_s = 3")
    {'http': 1, 'http.idle_timeout_s': 2}
    """
    lines: dict[str, int] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            name = _NOT_IN_NAMES.sub("", header[1])
            section = f"{name}."
            lines[name] = number
        elif key := _KEY.match(line):
            name = section + _NOT_IN_NAMES.sub("", key[1])
            lines[name] = number
            lines.setdefault(name.partition(".")[0], number)
    return lines


def _fits(setting: Setting, value: object) -> bool:
    if setting.default is None and value is None:
        return True
    if isinstance(setting.default, str):
        return isinstance(value, str) and (not setting.choices or value in setting.choices)
    kinds = (int, float) if isinstance(setting.default, float) else (int,)
    if not isinstance(value, kinds) or isinstance(value, bool):
        return False
    least, most = setting.least, setting.most
    return (least is None or value >= least) and (most is None or value <= most)


def _nearest(name: str, known: Mapping[str, object] | set[str]) -> str:
    """
    >>> _nearest("http.idle_timout_s", BY_NAME)
    "; did you mean 'http.idle_timeout_s'?"
    """
    near = get_close_matches(name, list(known), 1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _contradictions(configuration: Configuration) -> list[str]:
    """Return what is wrong with values that are right one by one."""
    mistakes = []
    certificate, key = configuration["tls.certificate"], configuration["tls.key"]
    if bool(certificate) != bool(key):
        given, missing = ("tls.certificate", "tls.key") if certificate else ("tls.key", "tls.certificate")
        mistakes.append(
            f"{configuration.origin(given)}: {given} is set and {missing} is not; set both or neither"
        )
    asked = configuration["tls.client_certificates"]
    if asked != NONE:
        where = configuration.origin("tls.client_certificates")
        mistakes += [
            f"{where}: tls.client_certificates is {asked} and {needed} is not set"
            for needed in ("tls.client_authority", "tls.certificate")
            if not configuration[needed]
        ]
    if configuration["listeners.amqp_port"] == OFF:
        where = configuration.origin("listeners.amqp_port")
        nobody = f"{where}: nobody could connect: listeners.amqp_port is off, and "
        if not certificate:
            mistakes.append(f"{nobody}there is no TLS")
        elif configuration["listeners.amqps_port"] == OFF:
            mistakes.append(f"{nobody}so is listeners.amqps_port")
    ports: dict[int, str] = {}
    for listener in _LISTENERS:
        port = configuration.port(listener)
        if port <= 0 or (listener in _TLS_LISTENERS and not certificate):
            continue
        name = f"listeners.{listener}"
        other = ports.setdefault(port, name)
        if other != name:
            if configuration.origin(name) == DEFAULT:
                name, other = other, name
            mistakes.append(
                f"{configuration.origin(name)}: {name} is {port}, and so is {other} "
                f"({configuration.origin(other)}); choose another port for one of them"
            )
    return mistakes
