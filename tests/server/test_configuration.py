"""The configuration of a broker process: each setting by file, environment and flag, and what is refused."""

import doctest
import tomllib

import pytest

from leveret.server import configuration as module
from leveret.server import settings
from leveret.server.configuration import DEFAULT, Configuration, ConfigurationError, read
from leveret.server.settings import SETTINGS, Setting, Value

TEXTS = {"data.directory": "elsewhere", "tls.certificate": "c.pem", "tls.key": "k.pem", "log.file": "b.log"}
HASHING = ("logins.hash_threads_max", "logins.hashes_waiting_max")
TLS = {
    "tls.certificate": ("--tls-cert", "c.pem"),
    "tls.key": ("--tls-key", "k.pem"),
    "tls.client_authority": ("--set", "a.pem"),
}


def another_value(setting: Setting) -> Value:
    """Return a value of the setting that is allowed and is not its default."""
    if setting.choices:
        return next(choice for choice in setting.choices if choice != setting.default)
    if isinstance(setting.default, str):
        return TEXTS.get(setting.name, "0")
    assert setting.least is not None
    if setting.least == setting.default:
        return setting.default + 1
    least = setting.least + 0.5 if isinstance(setting.default, float) else int(setting.least)
    return least if setting.name != "listeners.amqp_port" else 5000


def mistakes(*arguments: object, **named: object) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as refused:
        read(*arguments, **named)  # type: ignore[arg-type]
    return refused.value.mistakes


def parts(configuration: Configuration) -> list[object]:
    """Return all that the server makes of a configuration, and the values that it reads by name."""
    read_by_name = [
        configuration[name]
        for name in configuration.values
        if name.partition(".")[0] in {"data", "listeners", "alarms", "process", "log", "tls"}
    ]
    made = [configuration.limits, configuration.http_limits, configuration.api_limits]
    others = [configuration[name] for name in ("amqp.handshake_timeout_s", *HASHING)]
    return [*read_by_name, *made, configuration.flight_limits, configuration.store_options, *others]


@pytest.mark.parametrize("checked", [module, settings], ids=lambda checked: checked.__name__)
def test_the_examples_of_a_module_hold(checked: object) -> None:
    assert doctest.testmod(checked).failed == 0  # type: ignore[arg-type]


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_a_setting_is_taken_from_file_environment_and_flag_in_that_order(setting: Setting) -> None:
    section, key = setting.name.split(".")
    value = another_value(setting)
    text = f"[{section}]\n# a comment\n{key} = {value!r}\n".replace("None", '""')
    assert tomllib.loads(text)
    others = {name: flag for name, flag in TLS.items() if name != setting.name}
    others = others if section == "tls" else {}
    reached = parts(read(text, flags=others)) != parts(Configuration())
    assert reached, "the value is in what the server is given"
    by_file = read(text, file="leveret.toml", flags=others)
    assert (by_file[setting.name], by_file.origin(setting.name)) == (value, "leveret.toml, line 3")
    variables = {setting.variable: str(value)}
    wrong = "" if setting.default is None else f"[{section}]\n{key} = {setting.default!r}"
    by_variable = read(wrong, file="leveret.toml", environment=variables, flags=others)
    assert (by_variable[setting.name], by_variable.origin(setting.name)) == (value, setting.variable)
    flags = others | {setting.name: ("--set", str(value))}
    default = "" if setting.default is None else str(setting.default)
    by_flag = read(environment={setting.variable: default}, flags=flags)
    assert (by_flag[setting.name], by_flag.origin(setting.name)) == (value, "--set")


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_a_wrong_value_names_file_line_and_key(setting: Setting) -> None:
    section, key = setting.name.split(".")
    (mistake,) = mistakes(f"[{section}]\n{key} = [1]\n", file="leveret.toml")
    assert mistake == f"leveret.toml, line 2: {setting.name} is [1], and must be {setting.expected}"
    if setting.most is not None:
        beyond = str(int(setting.most) + 1)
        (mistake,) = mistakes(environment={setting.variable: beyond})
        assert mistake.startswith(f"{setting.variable}: {setting.name} is {beyond}, and must be ")


def test_without_anything_all_is_as_the_parts_of_the_server_have_it() -> None:
    configuration = read()
    assert {configuration.origin(setting.name) for setting in SETTINGS} == {DEFAULT}
    assert parts(configuration) == parts(Configuration())


def test_all_mistakes_are_named_at_once_with_the_nearest_known_name() -> None:
    text = "port = 3\n[http]\nidle_timout_s = 3\nbody_timeout_s = true\n[listener]\nhost = '::1'\n"
    assert mistakes(text, file="f.toml", flags={"amqp.hartbeat_s": ("--set", "3")}) == (
        "f.toml, line 1: 'port' stands outside of a table such as [listeners]",
        "f.toml, line 3: http.idle_timout_s is not a setting; did you mean 'http.idle_timeout_s'?",
        "f.toml, line 4: http.body_timeout_s is True, and must be a number from 0.1 to 604800",
        "f.toml, line 5: [listener] is not a section; did you mean 'listeners'?",
        "--set: amqp.hartbeat_s is not a setting; did you mean 'amqp.heartbeat_s'?",
    )


def test_a_file_that_is_not_toml_is_refused_with_the_place() -> None:
    (mistake,) = mistakes("[http\n", file="f.toml")
    assert mistake.startswith("f.toml: ")
    assert "line 1" in mistake


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("\n[http]\n'idle_timeout_s' = 'x'", 3),
        ("\nhttp.idle_timeout_s = 'x'", 2),
        ("\n\nhttp = {idle_timeout_s = 'x'}", 3),
        ("[log]\nlevel = 'info'\n[ http ] # a comment\n\nidle_timeout_s='x'", 5),
    ],
)
def test_the_line_of_a_mistake_is_named_however_the_key_is_written(text: str, line: int) -> None:
    (mistake,) = mistakes(text, file="f.toml")
    assert mistake.startswith(f"f.toml, line {line}: http.idle_timeout_s is 'x', and must be a number")


def test_clients_can_not_be_asked_for_certificates_that_nobody_can_check() -> None:
    assert mistakes("[tls]\nclient_certificates = 'required'", file="f.toml") == (
        "f.toml, line 2: tls.client_certificates is required and tls.client_authority is not set",
        "f.toml, line 2: tls.client_certificates is required and tls.certificate is not set",
    )


def test_two_listeners_can_not_have_one_port() -> None:
    text = "[listeners]\namqp_port = 7000\nhttp_port = 7000\n"
    assert mistakes(text, file="f.toml") == (
        "f.toml, line 3: listeners.http_port is 7000, and so is listeners.amqp_port (f.toml, line 2); "
        "choose another port for one of them",
    )
    flags = {"listeners.flight_port": ("--flight-port", "15672")}
    assert mistakes(flags=flags, environment={"LEVERET_LISTENERS_AMQPS_PORT": "15672"}) == (
        "--flight-port: listeners.flight_port is 15672, and so is listeners.http_port (default); "
        "choose another port for one of them",
    )
    everywhere = {"LEVERET_LISTENERS_AMQPS_PORT": "5672"}
    assert mistakes(flags=TLS, environment=everywhere) == (
        "LEVERET_LISTENERS_AMQPS_PORT: listeners.amqps_port is 5672, and so is listeners.amqp_port "
        "(default); choose another port for one of them",
    )
    assert read("[listeners]\namqps_port = 5672\n").tls is None, "nothing listens there without a certificate"


def test_with_a_free_port_for_amqp_the_others_are_free_ones_too() -> None:
    configuration = read(flags={"listeners.amqp_port": ("--port", "0"), "listeners.http_port": ("--p", "80")})
    assert [configuration.port(name) for name in ("amqp_port", "http_port", "flight_port")] == [0, 80, 0]
