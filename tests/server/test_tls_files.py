"""Files for TLS that are wrong: one sentence at the start and at a reload, and warnings about dates."""

from __future__ import annotations

import doctest
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from leveret.server import certificates
from leveret.server.certificates import Certificate, RevocationList, certificates_in
from leveret.server.tls import WANTED, CurrentTls, TlsError, TlsSettings
from tests.certificates import Authority, Identity, openssl
from tests.rabbitmq.node import RabbitMQ

pytestmark = pytest.mark.real

Wrong = tuple[dict[str, str], str]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), "test authority")


@pytest.fixture(scope="module")
def broker(authority: Authority) -> Identity:
    return authority.issue("broker")


@pytest.fixture
def settings(authority: Authority, broker: Identity) -> TlsSettings:
    files = (str(broker.certificate), str(broker.key))
    return TlsSettings(0, 0, *files, str(authority.certificate), WANTED)


def missing(place: Path, authority: Authority, broker: Identity) -> Wrong:
    return {"certificate": "/nowhere"}, r"/nowhere (tls.certificate) can't be read: No such file or directory"


def a_directory(place: Path, authority: Authority, broker: Identity) -> Wrong:
    return {"key": str(place)}, f"{place} (tls.key) can't be read: Is a directory"


def not_pem(place: Path, authority: Authority, broker: Identity) -> Wrong:
    der = place / "cert.der"
    openssl("x509", "-in", broker.certificate, "-outform", "der", "-out", der)
    return {"certificate": str(der)}, (
        f"{der} (tls.certificate) is not a PEM file; it must be a PEM file with at least one certificate"
    )


def damaged(place: Path, authority: Authority, broker: Identity) -> Wrong:
    file = place / "damaged.pem"
    lines = broker.certificate.read_text().splitlines(keepends=True)
    file.write_text("".join([lines[0], *lines[3:]]))
    return {"certificate": str(file)}, f"{file} (tls.certificate) is damaged: the bytes are no certificate"


def key_for_certificate(place: Path, authority: Authority, broker: Identity) -> Wrong:
    return {"certificate": str(broker.key)}, (
        f"{broker.key} (tls.certificate) has no certificate; it must be a PEM file with at least "
        "one certificate"
    )


def certificate_for_key(place: Path, authority: Authority, broker: Identity) -> Wrong:
    file = broker.certificate
    return {"key": str(file)}, f"{file} (tls.key) has no private key in PEM form"


def key_of_another(place: Path, authority: Authority, broker: Identity) -> Wrong:
    key = authority.issue("another").key
    return {"key": str(key)}, (
        f"key {key} (tls.key) is that of another certificate than 'CN=broker', the first in "
        f"{broker.certificate} (tls.certificate)"
    )


def key_of_another_kind(place: Path, authority: Authority, broker: Identity) -> Wrong:
    key = place / "rsa.key"
    openssl("genrsa", "-out", key, "2048")
    return {
        "key": str(key)
    }, f"key {key} (tls.key) is that of another certificate than 'CN=broker', the first"


def key_with_password(place: Path, authority: Authority, broker: Identity) -> Wrong:
    key = place / "locked.key"
    openssl("pkey", "-in", broker.key, "-aes128", "-passout", "pass:secret", "-out", key)
    return {"key": str(key)}, f"key {key} (tls.key) has a password, and the broker can't ask for one"


def wrong_order(place: Path, authority: Authority, broker: Identity) -> Wrong:
    middle = Authority(place, "middle authority", issuer=authority)
    identity = middle.issue("broker")
    file = Identity(authority.certificate, broker.key).chained(middle.certificate, identity.certificate)
    return {"certificate": str(file), "key": str(identity.key)}, (
        f"certificate number 2 in {file} (tls.certificate) is 'CN=middle authority', and number 1 was issued "
        "by 'CN=test authority'; put the broker's certificate first, then that of its issuer, and so on"
    )


def incomplete(place: Path, authority: Authority, broker: Identity) -> Wrong:
    identity = Authority(place, "middle authority", issuer=authority).issue("broker")
    file = identity.chained(authority.certificate)
    return {"certificate": str(file), "key": str(identity.key)}, (
        f"certificate number 2 in {file} (tls.certificate) is 'CN=test authority', and number 1 was issued "
        "by 'CN=middle authority'; put"
    )


def authority_without_certificate(place: Path, authority: Authority, broker: Identity) -> Wrong:
    file = authority.revoke()
    return {"client_authority": str(file)}, (
        f"{file} (tls.client_authority) has no certificate; it must be a PEM file with at least "
        "one certificate"
    )


def no_revocation_list(place: Path, authority: Authority, broker: Identity) -> Wrong:
    file = broker.certificate
    return {"revoked": str(file)}, (
        f"{file} (tls.revoked) has no revocation list; it must be a PEM file with at least one "
        "revocation list"
    )


def text_for_list(place: Path, authority: Authority, broker: Identity) -> Wrong:
    file = place / "revoked.txt"
    file.write_text("nobody")
    return {"revoked": str(file)}, f"{file} (tls.revoked) is not a PEM file; it must be"


@pytest.mark.parametrize(
    "made",
    [
        missing,
        a_directory,
        not_pem,
        damaged,
        key_for_certificate,
        certificate_for_key,
        key_of_another,
        key_of_another_kind,
        key_with_password,
        wrong_order,
        incomplete,
        authority_without_certificate,
        no_revocation_list,
        text_for_list,
    ],
    ids=lambda made: made.__name__,
)
def test_a_wrong_file_is_one_sentence_and_changes_nothing(
    settings: TlsSettings,
    authority: Authority,
    broker: Identity,
    tmp_path: Path,
    made: Callable[[Path, Authority, Identity], Wrong],
) -> None:
    changed, sentence = made(tmp_path, authority, broker)
    tls = CurrentTls(settings)
    context = tls.context
    with pytest.raises(TlsError) as refused:
        tls.replace(replace(settings, **changed))
    assert str(refused.value).startswith(sentence)
    assert "\n" not in str(refused.value)
    assert (tls.context, tls.settings) == (context, settings)


def test_a_whole_chain_in_its_order_is_taken(
    tmp_path: Path, authority: Authority, settings: TlsSettings
) -> None:
    middle = Authority(tmp_path, "middle authority", issuer=authority)
    identity = middle.issue("broker")
    chain = identity.chained(middle.certificate, authority.certificate)
    taken = replace(settings, certificate=str(chain), key=str(identity.key))
    taken.context()
    assert taken.warnings(time.time()) == []


DATES = {
    "expired": (timedelta(days=-9), timedelta(days=-1), "has expired on "),
    "not yet valid": (timedelta(days=1), timedelta(days=90), "is not valid before "),
    "ends soon": (timedelta(days=-1), timedelta(days=7, hours=1), "ends in 7 days, on "),
}


@pytest.mark.parametrize(("starts", "ends", "sentence"), DATES.values(), ids=DATES)
def test_a_certificate_that_is_not_valid_now_or_ends_soon_is_used_with_a_warning(
    tmp_path: Path, settings: TlsSettings, starts: timedelta, ends: timedelta, sentence: str
) -> None:
    identity = Authority(tmp_path, "test authority").issue("broker", starts=starts, ends=ends)
    used = replace(settings, certificate=str(identity.certificate), key=str(identity.key))
    used.context()
    (warning,) = used.warnings(time.time())
    assert warning.startswith(f"certificate 'CN=broker' in {identity.certificate} {sentence}")


def test_lists_that_refuse_everybody_are_warned_about(
    settings: TlsSettings, authority: Authority, tmp_path: Path
) -> None:
    file = authority.revoke()
    with_list = replace(settings, revoked=str(file))
    now_s = time.time()
    assert with_list.warnings(now_s) == []
    (warning,) = with_list.warnings(now_s + 3 * 86_400)
    assert warning.startswith(
        f"the revocation list of 'CN=test authority' in {file} (tls.revoked) has expired on"
    )
    other = Authority(tmp_path, "other authority").revoke()
    (warning,) = replace(settings, revoked=str(other)).warnings(now_s)
    assert warning.startswith(
        f"{other} (tls.revoked) has no revocation list of 'CN=test authority': all clients"
    )


def test_an_authority_without_anybody_being_asked_is_warned_about(settings: TlsSettings) -> None:
    (warning,) = replace(settings, client_certificates="none").warnings(time.time())
    assert warning.startswith("tls.client_certificates is none, so no client is asked for a certificate")


# the reader of certificates


def test_the_examples_of_the_reader_hold() -> None:
    assert doctest.testmod(certificates).failed == 0


RABBITMQ = {
    "/C=DE/O=Acme, Inc./OU=a/CN=client 1": r"CN=client 1,OU=a,O=Acme\, Inc.,C=DE",
    "/DC=org/O= lead #x;<y>/CN=Jörg\\\\back /emailAddress=a@b.org/UID=u1": (
        r"UID=u1,EMAILADDRESS=a@b.org,CN=J\C3\B6rg\\back\ ,O=\ lead #x\;\<y\>,DC=org"
    ),
    "/ST=Bay/SN=Sur/street=Way 1/businessCategory=bc/CN=#hash/CN=two": (
        r"CN=two,CN=\#hash,2.5.4.15=bc,2.5.4.9=Way 1,SN=Sur,ST=Bay"
    ),
}
"""Subjects, and what RabbitMQ 3.10.8 printed for them (`rabbit_ssl:peer_cert_subject`)."""


@pytest.mark.parametrize(("subject", "printed"), RABBITMQ.items(), ids=range(len(RABBITMQ)))
def test_a_name_is_printed_as_rabbitmq_prints_it(authority: Authority, subject: str, printed: str) -> None:
    identity = authority.issue("named", subject=subject)
    (certificate,) = certificates_in(identity.certificate.read_bytes())
    assert certificate.distinguished_name == printed


@pytest.mark.needs_rabbitmq
def test_rabbitmq_prints_these_names(rabbitmq: RabbitMQ, authority: Authority, tmp_path: Path) -> None:
    files = []
    for number, subject in enumerate(RABBITMQ):
        identity = authority.issue(f"named-{number}", subject=subject)
        files.append(tmp_path / f"{number}.der")
        openssl("x509", "-in", identity.certificate, "-outform", "der", "-out", files[-1])
    calls = [
        f'{{ok, F{number}}} = file:read_file("{file}"), '
        f'io:format("~s~n", [rabbit_ssl:peer_cert_subject(F{number})])'
        for number, file in enumerate(files)
    ]
    printed = rabbitmq.rabbitmqctl("eval", ", ".join(calls) + ".")
    assert printed.splitlines()[: len(files)] == list(RABBITMQ.values())


def test_bytes_that_are_cut_off_or_changed_are_a_value_error_or_a_certificate(broker: Identity) -> None:
    (block,) = certificates._blocks(broker.certificate.read_bytes(), b"CERTIFICATE")
    for stop in range(len(block)):
        with pytest.raises(ValueError, match="the bytes are no certificate"):
            Certificate.parse(block[:stop])
        changed = bytearray(block)
        changed[stop] ^= 0xFF
        for parse in (Certificate.parse, RevocationList.parse):
            try:
                parse(bytes(changed))
            except ValueError:
                continue
