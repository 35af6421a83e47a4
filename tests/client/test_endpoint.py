import pytest

from leveret.client.endpoint import Endpoint


def test_what_a_url_does_not_say_is_as_everywhere() -> None:
    assert Endpoint.parse("amqp://") == Endpoint("localhost", 5672, "guest", "guest", "/", tls=False)
    assert Endpoint.parse("amqps://example.org").port == 5671
    assert Endpoint.parse("amqps://example.org").tls


def test_everything_a_url_says_is_taken() -> None:
    url = "amqps://me:secret@example.org:1234/there?heartbeat=7&connection_timeout=2.5"
    endpoint = Endpoint("example.org", 1234, "me", "secret", "there", tls=True, heartbeat_s=7, timeout_s=2.5)
    assert Endpoint.parse(url) == endpoint


@pytest.mark.parametrize(
    ("path", "vhost"),
    [
        ("", "/"),
        ("/", "/"),
        ("/%2f", "/"),
        ("/%2F", "/"),
        ("/a%2fb", "a/b"),
        ("/a/b", "a/b"),
        ("/%C3%BC", "ü"),
    ],
)
def test_a_path_is_a_vhost(path: str, vhost: str) -> None:
    assert Endpoint.parse(f"amqp://host{path}").vhost == vhost


def test_user_and_password_are_percent_decoded() -> None:
    endpoint = Endpoint.parse("amqp://us%40er:p%3A%2F%C3%A4@host")
    assert (endpoint.user, endpoint.password) == ("us@er", "p:/ä")


def test_an_empty_password_is_empty() -> None:
    assert Endpoint.parse("amqp://user:@host").password == ""


def test_a_user_without_a_password_has_the_usual_one() -> None:
    assert Endpoint.parse("amqp://user@host").password == "guest"


def test_a_heartbeat_of_0_is_one_that_was_asked_for() -> None:
    assert Endpoint.parse("amqp://host?heartbeat=0").heartbeat_s == 0
    assert Endpoint.parse("amqp://host").heartbeat_s is None


@pytest.mark.parametrize(
    "url",
    ["http://host", "host:5672", "", "amqp://host:port", "amqp://host:99999", "amqp://host?heartbeat=often"],
)
def test_what_is_no_amqp_url_is_a_value_error(url: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Endpoint.parse(url)


def test_a_wrong_scheme_is_named() -> None:
    with pytest.raises(ValueError, match="amqp:// or amqps://, not 'http'"):
        Endpoint.parse("http://host")


def test_upper_case_is_no_other_scheme() -> None:
    assert Endpoint.parse("AMQP://Host").host == "host"


def test_addresses_are_shown_as_people_write_them() -> None:
    assert Endpoint.parse("amqp://host").address == "host:5672"
    assert Endpoint.parse("amqp://[::1]:7").host == "::1"


def test_a_password_is_shown_nowhere() -> None:
    endpoint = Endpoint.parse("amqp://me:secret@host")
    assert "secret" not in repr(endpoint)
    assert "secret" not in str(endpoint)
    assert "secret" not in f"{endpoint}"
    assert "me" in repr(endpoint)


@pytest.mark.parametrize("mark", ["/", "#", "?", "[", "℀"])
def test_a_password_that_is_not_escaped_is_not_in_the_error(mark: str) -> None:
    with pytest.raises(ValueError, match="percent-encode") as refused:
        Endpoint.parse(f"amqp://me:secret{mark}word@host")
    assert "secret" not in str(refused.value)
    assert refused.value.__suppress_context__


@pytest.mark.parametrize("port", ["port", "99999", "-1"])
def test_a_port_is_a_number_that_a_port_can_have(port: str) -> None:
    with pytest.raises(ValueError, match="the URL's port is no number from 0 to 65535"):
        Endpoint.parse(f"amqp://host:{port}")


@pytest.mark.parametrize("heartbeat", ["often", "-1", "65536", "1.5"])
def test_a_heartbeat_is_a_number_that_fits_its_frame(heartbeat: str) -> None:
    with pytest.raises(ValueError, match=f"heartbeat is a number from 0 to 65535, not '{heartbeat}'"):
        Endpoint.parse(f"amqp://host?heartbeat={heartbeat}")


@pytest.mark.parametrize("timeout", ["soon", "-1", "nan", "inf"])
def test_a_connection_timeout_is_a_time_that_comes_to_an_end(timeout: str) -> None:
    with pytest.raises(ValueError, match=f"connection_timeout is a number of seconds, not '{timeout}'"):
        Endpoint.parse(f"amqp://host?connection_timeout={timeout}")
