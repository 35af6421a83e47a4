"""Clients with certificates: who is let in, whom a certificate names, and why others are refused."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import pika
import pytest
from pika.credentials import ExternalCredentials

from leveret.broker.access import administration
from leveret.client import BlockingConnection, LoginRefused, NotConnected, TlsFailed
from leveret.server.tls import REQUIRED, WANTED, CurrentTls, TlsSettings
from leveret.server.tls_refusals import RefusalLog
from leveret.testing.broker import Broker
from tests.certificates import Authority, Identity, openssl
from tests.processes import wait_until
from tests.semantics.client import Client

pytestmark = pytest.mark.real


class Place(NamedTuple):
    """A broker that asks clients for certificates, and who issues them."""

    broker: Broker
    tls: CurrentTls
    authority: Authority
    client: Identity

    def url(self, identity: Identity | None = None, **options: str) -> str:
        if identity is not None:
            options |= {"certfile": str(identity.certificate), "keyfile": str(identity.key)}
        options.setdefault("cacertfile", str(self.authority.certificate))
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return f"amqps://guest:guest@127.0.0.1:{self.broker.server.tls_port}/?{query}"

    def open(self, identity: Identity | None = None, **options: str) -> None:
        """Connect with the toolkit, and use the connection."""
        with BlockingConnection(self.url(identity, **options), timeout_s=20) as connection:
            assert connection.connection is not None

    def ask(self, **changed: object) -> None:
        """Change the settings of TLS while the broker runs."""
        self.tls.replace(replace(self.tls.settings, **changed))

    def add_user(self, name: str) -> None:
        def add() -> None:
            server = self.broker.server
            server.turns.begin()
            administration.put_user(server.broker, name, password_hash="unusable", tags=())
            administration.permit(server.broker, "/", name, configure=".*", write=".*", read=".*")

        self.broker.call(add)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), "test authority")


@pytest.fixture(scope="module")
def client(authority: Authority) -> Identity:
    names = "DNS:one.example,DNS:two.example,email:client@example.org,IP:10.0.0.7,URI:urn:client"
    return authority.issue("client", subject="/O=Acme, Inc./CN=client 1", alternative_names=names)


@pytest.fixture(scope="module")
def own(authority: Authority) -> Identity:
    return authority.issue("broker")


@pytest.fixture
def place(authority: Authority, client: Identity, own: Identity) -> Iterator[Place]:
    settings = TlsSettings(
        0,
        -1,
        str(own.certificate),
        str(own.key),
        client_authority=str(authority.certificate),
        client_certificates=WANTED,
    )
    tls = CurrentTls(settings)
    with Broker(tls=tls) as broker:
        yield Place(broker, tls, authority, client)


def logged(caplog: pytest.LogCaptureFixture, sentence: str) -> None:
    wait_until(lambda: sentence in caplog.text, f"the log has {sentence!r}")


def test_a_wanted_certificate_may_be_left_out_and_a_required_one_may_not(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.open()
    place.open(place.client)
    place.ask(client_certificates=REQUIRED)
    place.open(place.client)
    with pytest.raises(NotConnected, match="it wants a certificate of this client; give"):
        place.open()
    logged(caplog, "127.0.0.1: the client has no certificate, and one is required")


# whom a certificate names


NAMES = {
    "distinguished_name": r"CN=client 1,O=Acme\, Inc.",
    "common_name": "client 1",
    "subject_alternative_name_dns": "one.example",
    "subject_alternative_name_email": "client@example.org",
    "subject_alternative_name_ip": "10.0.0.7",
    "subject_alternative_name_uri": "urn:client",
}


@pytest.mark.parametrize(("login_from", "name"), NAMES.items(), ids=NAMES)
def test_a_certificate_names_the_user(place: Place, login_from: str, name: str) -> None:
    place.ask(login_from=login_from)
    with pytest.raises(LoginRefused, match=r"403 ACCESS_REFUSED - Login was refused using auth.* EXTERNAL"):
        place.open(place.client, auth_mechanism="external")
    place.add_user(name)
    place.open(place.client, auth_mechanism="external")


def test_another_alternative_name_than_the_first_can_be_chosen(place: Place) -> None:
    place.ask(login_from="subject_alternative_name_dns", login_index=1)
    place.add_user("two.example")
    place.open(place.client, auth_mechanism="external")
    place.ask(login_from="subject_alternative_name_dns", login_index=2)
    with pytest.raises(LoginRefused):
        place.open(place.client, auth_mechanism="external")


def test_pika_logs_in_with_a_certificate(place: Place) -> None:
    place.add_user(NAMES["distinguished_name"])
    context = ssl.create_default_context(cafile=str(place.authority.certificate))
    context.load_cert_chain(place.client.certificate, place.client.key)
    parameters = pika.ConnectionParameters(
        "127.0.0.1",
        place.broker.server.tls_port,
        ssl_options=pika.SSLOptions(context, "localhost"),
        credentials=ExternalCredentials(),
    )
    with pika.BlockingConnection(parameters) as connection:
        connection.channel().queue_declare("q")
    users = place.broker.call(
        lambda: [queue.name for queue in place.broker.server.broker.vhosts["/"].queues.values()]
    )
    assert users == ["q"]


def test_a_login_without_a_certificate_is_refused_and_a_password_still_works(place: Place) -> None:
    with pytest.raises(LoginRefused, match="EXTERNAL"):
        place.open(auth_mechanism="external")
    place.open(place.client, auth_mechanism="plain")


def test_guest_is_let_in_from_this_machine_also_by_a_certificate(place: Place) -> None:
    place.ask(login_from="common_name")
    place.open(place.authority.issue("guest"), auth_mechanism="external")


def test_external_is_offered_where_clients_are_asked_for_certificates_only(place: Place) -> None:
    assert "EXTERNAL" not in Client(place.broker.port).start.mechanisms.split()
    place.ask(client_certificates="none")
    with pytest.raises(LoginRefused, match="offers no EXTERNAL login, only PLAIN AMQPLAIN"):
        place.open(place.client, auth_mechanism="external")


# certificates of clients that are refused


def other_authority(place: Place, directory: Path) -> Identity:
    return Authority(directory, "other authority").issue("stranger")


def signed_by_itself(place: Place, directory: Path) -> Identity:
    alone = Authority(directory, "alone")
    return Identity(alone.certificate, alone.certificate.with_suffix(".key"))


def expired(place: Place, directory: Path) -> Identity:
    return place.authority.issue("expired", starts=timedelta(days=-9), ends=timedelta(days=-1))


def not_yet_valid(place: Place, directory: Path) -> Identity:
    return place.authority.issue("early", starts=timedelta(days=1))


def revoked(place: Place, directory: Path) -> Identity:
    identity = place.authority.issue("revoked")
    place.ask(revoked=str(place.authority.revoke(identity)))
    place.open(place.client)
    return identity


def without_list(place: Place, directory: Path) -> Identity:
    place.ask(revoked=str(Authority(directory, "elsewhere").revoke()))
    return place.client


REFUSED: dict[str, tuple[Callable[[Place, Path], Identity], str, str]] = {
    "unknown authority": (
        other_authority,
        "its authority is not in tls.client_authority",
        "it does not know the authority of this client's certificate",
    ),
    "signed by itself": (
        signed_by_itself,
        "it is signed by itself, and is not in tls.client_authority",
        "it does not know the authority of this client's certificate",
    ),
    "expired": (expired, "it has expired", "the certificate of this client has expired"),
    "not yet valid": (not_yet_valid, "it is not valid yet", "the certificate of this client is not valid"),
    "revoked": (revoked, "it is revoked", "the certificate of this client is revoked"),
    "no list of its authority": (
        without_list,
        "tls.revoked has no revocation list of the authority that issued it",
        "the certificate of this client is not accepted|it does not know the authority",
    ),
}


@pytest.mark.parametrize(("made", "in_log", "to_client"), REFUSED.values(), ids=REFUSED)
def test_a_client_with_a_wrong_certificate_is_refused_with_a_sentence_on_both_sides(
    place: Place,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    made: Callable[[Place, Path], Identity],
    in_log: str,
    to_client: str,
) -> None:
    identity = made(place, tmp_path)
    with pytest.raises(TlsFailed, match=f"the broker refused the TLS handshake: {to_client}"):
        place.open(identity)
    logged(caplog, f"127.0.0.1: the client's certificate is refused: {in_log}")


def test_the_log_of_refused_clients_has_a_limit(caplog: pytest.LogCaptureFixture) -> None:
    now_s = [0.0]
    refusals = RefusalLog(lambda: now_s[0])
    error = ssl.SSLCertVerificationError()
    error.verify_code, error.verify_message = 10, "certificate has expired"
    for _ in range(500):
        refusals.note("10.0.0.7", error)
    assert len(caplog.records) == 11
    now_s[0] = 61
    refusals.note("10.0.0.7", error)
    assert [record.message for record in caplog.records[11:]] == [
        "490 more TLS clients were refused",
        "10.0.0.7: the client's certificate is refused: it has expired",
    ]


# certificates of the broker that clients refuse


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"starts": timedelta(days=-9), "ends": timedelta(days=-1)},
            "the broker's certificate is refused: it has expired; the broker needs another one",
        ),
        ({"starts": timedelta(days=1)}, "the broker's certificate is refused: it is not valid yet"),
        (
            {"alternative_names": "DNS:elsewhere.example"},
            "IP address mismatch, certificate is not valid for '127.0.0.1'",
        ),
    ],
    ids=["expired", "not yet valid", "wrong host"],
)
def test_a_wrong_certificate_of_the_broker_is_one_sentence(
    place: Place, options: dict[str, object], sentence: str
) -> None:
    wrong = place.authority.issue(f"wrong-{len(sentence)}", **options)
    place.ask(certificate=str(wrong.certificate), key=str(wrong.key))
    with pytest.raises(TlsFailed, match=sentence):
        place.open()
    place.open(verify="verify_none")


def test_the_name_in_the_certificate_can_be_given_or_ignored(place: Place) -> None:
    elsewhere = place.authority.issue("elsewhere", alternative_names="DNS:elsewhere.example")
    place.ask(certificate=str(elsewhere.certificate), key=str(elsewhere.key))
    place.open(server_name_indication="elsewhere.example")
    place.open(server_name_indication="disable")
    with pytest.raises(TlsFailed, match=r"not valid for 'nowhere.example'"):
        place.open(server_name_indication="nowhere.example")


def test_an_authority_that_is_not_trusted_is_one_sentence(place: Place, tmp_path: Path) -> None:
    other = Authority(tmp_path, "other authority")
    with pytest.raises(TlsFailed, match="its authority signs itself, and is not trusted"):
        place.open(cacertfile=str(other.certificate))
    place.ask(client_certificates="none")
    with pytest.raises(TlsFailed, match="its authority is not trusted, or the broker does not send"):
        place.open(cacertfile=str(other.certificate))
    alone = other.certificate
    place.ask(certificate=str(alone), key=str(alone.with_suffix(".key")))
    with pytest.raises(TlsFailed, match="it is signed by itself, and is not trusted"):
        place.open()


def test_a_chain_that_is_not_sent_whole_is_one_sentence(place: Place, tmp_path: Path) -> None:
    middle = Authority(tmp_path, "middle authority", issuer=place.authority)
    own = middle.issue("broker")
    place.ask(certificate=str(own.certificate), key=str(own.key))
    with pytest.raises(TlsFailed, match="its authority is not trusted, or the broker does not send"):
        place.open()
    place.ask(certificate=str(own.chained(middle.certificate)), key=str(own.key))
    place.open()


def test_tls_to_a_plain_port_and_plain_to_a_tls_port_are_one_sentence(place: Place) -> None:
    plain, secure = str(place.broker.port), str(place.broker.server.tls_port)
    with pytest.raises(TlsFailed, match=r"the port does not speak TLS; use amqp://"):
        BlockingConnection(place.url().replace(secure, plain), timeout_s=20).open()
    with pytest.raises(NotConnected, match=r"speaks TLS; use amqps://|is this a port for amqps://"):
        BlockingConnection(f"amqp://127.0.0.1:{secure}/", timeout_s=2).open()


FILES = {
    "no certificate of an authority": (
        {"cacertfile": "{key}"},
        "cacertfile .* there is no certificate in PEM",
    ),
    "a missing file": ({"cacertfile": "/nowhere"}, "cacertfile /nowhere can't be used: No such file"),
    "the key of another": ({"certfile": "{cert}", "keyfile": "{other}"}, "the key is that of another"),
    "a key with a password": (
        {"certfile": "{cert}", "keyfile": "{locked}"},
        "can't be used: (the key has a password|there is no .* key without a password)",
    ),
    "no key": ({"certfile": "{cert}"}, "can't be used: there is no certificate or no key"),
}


@pytest.mark.parametrize(("options", "sentence"), FILES.values(), ids=FILES)
def test_a_file_of_the_client_that_is_wrong_is_one_sentence(
    place: Place, own: Identity, options: dict[str, str], sentence: str
) -> None:
    files = {"cert": place.client.certificate, "key": place.client.key, "other": own.key}
    files["locked"] = place.client.key.with_suffix(".locked")
    openssl("pkey", "-in", place.client.key, "-aes128", "-passout", "pass:secret", "-out", files["locked"])
    with pytest.raises(TlsFailed, match=sentence):
        place.open(**{name: value.format(**files) for name, value in options.items()})


# replaced while running


def test_what_is_replaced_holds_for_new_connections_and_open_ones_go_on(place: Place, tmp_path: Path) -> None:
    other = Authority(tmp_path, "other authority")
    broker, client = other.issue("broker"), other.issue("client")
    context = ssl.create_default_context(cafile=str(place.authority.certificate))
    parameters = pika.ConnectionParameters(
        "127.0.0.1", place.broker.server.tls_port, ssl_options=pika.SSLOptions(context, "localhost")
    )
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        place.ask(
            certificate=str(broker.certificate),
            key=str(broker.key),
            client_authority=str(other.certificate),
            client_certificates=REQUIRED,
        )
        channel.queue_declare("q")
        place.open(client, cacertfile=str(other.certificate))
        with pytest.raises(TlsFailed, match="its authority signs itself, and is not trusted"):
            place.open(client)
        with pytest.raises(NotConnected):
            place.open(place.client, cacertfile=str(other.certificate))
        place.ask(revoked=str(other.revoke(client)))
        with pytest.raises(NotConnected):
            place.open(client, cacertfile=str(other.certificate))
        channel.queue_declare("q", passive=True)


def test_older_versions_of_tls_can_be_refused(place: Place) -> None:
    context = ssl.create_default_context(cafile=str(place.authority.certificate))
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    url = place.url()
    with BlockingConnection(url, tls=context) as connection:
        assert connection.connection is not None
    place.ask(minimum_version="1.3")
    with pytest.raises(TlsFailed, match="it wants another version of TLS"):
        BlockingConnection(url, tls=context, timeout_s=20).open()
