"""RSA keys and certificates for real servers, made by `openssl`."""

from __future__ import annotations

import pathlib
import subprocess


def make_certificates(folder: pathlib.Path, names: str) -> None:
    """Write an authority, and key and certificate of `server` and `client`, also both in NAME-both.pem.

    `names`: the alternative names of both certificates, as openssl expects them.
    """

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    command = "req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -days 2 -subj /CN=authority"
    openssl(*command.split(), "-addext", "keyUsage=critical,keyCertSign")
    # Python's default checks demand the identifiers since 3.13.
    identifiers = "subjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"
    (folder / "names").write_text(f"subjectAltName={names}\n{identifiers}")
    for name in ("server", "client"):
        openssl(*f"req -newkey rsa:2048 -nodes -keyout {name}.key -out {name}.csr -subj /CN={name}".split())
        signing = f"x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out {name}.pem -days 2"
        openssl(*signing.split(), "-extfile", "names")
        both = (folder / f"{name}.key").read_text() + (folder / f"{name}.pem").read_text()
        (folder / f"{name}-both.pem").write_text(both)
