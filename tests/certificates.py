"""Certificates that tests need: of an authority, of a broker, of clients, right or wrong in one way.

    authority = Authority(tmp_path, "test authority")
    broker = authority.issue("broker", alternative_names="IP:127.0.0.1,DNS:localhost")
    broker.certificate, broker.key      # paths of PEM files

The program `openssl` makes them; a test is skipped where that is missing. The dates are those of the call, so
that nothing expires in the repository.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

_CONFIGURATION = """
[req]
distinguished_name = name
prompt = no
string_mask = utf8only
[name]
CN = nobody
[ca]
default_ca = authority
[authority]
dir = {directory}
database = $dir/index.txt
serial = $dir/serial
new_certs_dir = $dir
certificate = $dir/authority.pem
private_key = $dir/authority.key
default_md = sha256
default_days = 2
default_crl_days = 2
unique_subject = no
policy = any
copy_extensions = copyall
email_in_dn = yes
preserve = yes
[any]
commonName = optional
"""
LOCAL = "IP:127.0.0.1,DNS:localhost"


def openssl(*arguments: str | Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    ran = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr


@dataclass(frozen=True)
class Identity:
    """A certificate with its key, as paths of PEM files."""

    certificate: Path
    key: Path

    def chained(self, *others: Path) -> Path:
        """Write a file with the certificate and others after it, and return the file's path."""
        file = self.certificate.with_suffix(".chain.pem")
        file.write_bytes(b"".join(path.read_bytes() for path in (self.certificate, *others)))
        return file


class Authority:
    """Issues and revokes certificates; `certificate` is the path of its own."""

    def __init__(self, directory: Path, name: str, *, issuer: Authority | None = None) -> None:
        self._directory = directory / name.replace(" ", "-")
        self._directory.mkdir()
        (self._directory / "index.txt").touch()
        (self._directory / "serial").write_text("01\n")
        self._config = self._directory / "openssl.cnf"
        self._config.write_text(_CONFIGURATION.format(directory=self._directory))
        self.certificate = self._directory / "authority.pem"
        key, subject = self._directory / "authority.key", f"/CN={name}"
        extensions = ("basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign,cRLSign")
        if issuer is None:
            openssl(*self._request(key, self.certificate, subject, extensions), "-x509", "-days", "400")
        else:
            request = self._directory / "authority.csr"
            openssl(*self._request(key, request, subject, extensions))
            issuer.sign(request, self.certificate)

    def issue(
        self,
        name: str,
        *,
        subject: str = "",
        alternative_names: str = LOCAL,
        starts: timedelta = timedelta(days=-1),
        ends: timedelta = timedelta(days=90),
    ) -> Identity:
        """Return a certificate that is valid from and until these times, counted from now."""
        key, request = self._directory / f"{name}.key", self._directory / f"{name}.csr"
        identity = Identity(self._directory / f"{name}.pem", key)
        extensions = (f"subjectAltName={alternative_names}",) if alternative_names else ()
        openssl(*self._request(key, request, subject or f"/CN={name}", extensions))
        self.sign(request, identity.certificate, starts=starts, ends=ends)
        return identity

    def sign(
        self,
        request: Path,
        certificate: Path,
        *,
        starts: timedelta = timedelta(days=-1),
        ends: timedelta = timedelta(days=400),
    ) -> None:
        now = datetime.now(UTC)
        dates = [f"{now + each:%Y%m%d%H%M%SZ}" for each in (starts, ends)]
        command = ["ca", "-batch", "-notext", "-preserveDN", "-utf8", "-config", self._config]
        files = ["-in", request, "-out", certificate]
        openssl(*command, *files, "-startdate", dates[0], "-enddate", dates[1])

    def revoke(self, *revoked: Identity, days: int = 2) -> Path:
        """Return the path of a new revocation list, with these certificates and those revoked before."""
        for each in revoked:
            openssl("ca", "-config", self._config, "-revoke", each.certificate)
        file = self._directory / "revocations.pem"
        openssl("ca", "-config", self._config, "-gencrl", "-crldays", str(days), "-out", file)
        return file

    def _request(
        self, key: Path, out: Path, subject: str, extensions: Sequence[str]
    ) -> tuple[str | Path, ...]:
        added = [word for extension in extensions for word in ("-addext", extension)]
        kind = ("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-utf8")
        files = ("-config", self._config, "-keyout", key, "-out", out)
        return (*kind, *files, "-subj", subject, *added)
