"""A KDC of MIT Kerberos in processes of its own, in one folder, on a free port."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator

REALM = "BOOKIES.TEST"
START_S = 30.0
PROGRAMS = ("krb5kdc", "kdb5_util", "kadmin.local", "kinit")
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"  # where distributions put servers


def missing_program() -> str | None:
    """Return a program of the KDC that is not installed; None: there are all."""
    return next((name for name in PROGRAMS if shutil.which(name, path=_PATH) is None), None)


class Kdc:
    """`environment`: what every process that uses this KDC needs."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.config = folder / "krb5.conf"
        self.environment = {
            "KRB5_CONFIG": str(self.config),
            "KRB5_KDC_PROFILE": str(folder / "kdc.conf"),
            "KRB5CCNAME": f"FILE:{folder}/tickets",
            "KRB5RCACHEDIR": str(folder),
        }
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None
        self.configure(self.port)
        (folder / "kdc.conf").write_text(
            f'[kdcdefaults]\n kdc_listen = ""\n kdc_tcp_listen = 127.0.0.1:{self.port}\n'
            f"[realms]\n {REALM} = {{\n  database_name = {folder}/principal\n  key_stash_file = {folder}/stash\n"
            f"  acl_file = {folder}/acl\n  max_life = 1h\n }}\n[logging]\n kdc = FILE:{folder}/kdc.log\n"
        )
        self.run("kdb5_util", "create", "-s", "-P", "master", "-r", REALM)

    def configure(self, port: int, realm: str = REALM) -> None:
        """Write the configuration of clients and servers."""
        self.config.write_text(
            f"[libdefaults]\n default_realm = {realm}\n dns_lookup_kdc = false\n dns_lookup_realm = false\n"
            f" rdns = false\n dns_canonicalize_hostname = false\n udp_preference_limit = 1\n"
            f"[realms]\n {REALM} = {{\n  kdc = 127.0.0.1:{port}\n }}\n[domain_realm]\n localhost = {REALM}\n"
        )

    def run(self, *command: str, text: str = "") -> str:
        """Run a program of Kerberos to its end; return its output."""
        path = shutil.which(command[0], path=_PATH)
        assert path is not None, command[0]
        environment = os.environ | self.environment
        done = subprocess.run([path, *command[1:]], env=environment, input=text, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def principal(self, name: str, *options: str) -> None:
        """Create a principal with a random key."""
        self.run("kadmin.local", "-r", REALM, "-q", f"addprinc -randkey {' '.join(options)} {name}")

    def keytab(self, path: str, *names: str, is_new_key: bool = False) -> str:
        """Write the keys of principals; return the path. `is_new_key`: and change them."""
        (self.folder / path).unlink(missing_ok=True)
        option = "" if is_new_key else "-norandkey"
        self.run("kadmin.local", "-r", REALM, "-q", f"ktadd {option} -k {self.folder / path} {' '.join(names)}")
        return str(self.folder / path)

    def start(self) -> None:
        """Returns when it answers."""
        path = shutil.which("krb5kdc", path=_PATH)
        assert path is not None
        with open(self.folder / "krb5kdc.out", "ab") as log:
            command = [path, "-n", "-r", REALM, "-P", str(self.folder / "pid")]
            self._process = subprocess.Popen(command, env=os.environ | self.environment, stdout=log, stderr=log)
        deadline = time.monotonic() + START_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=5):
                return
            assert self._process.poll() is None, (self.folder / "krb5kdc.out").read_text()
            assert time.monotonic() < deadline, "the KDC does not answer"
            time.sleep(0.05)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextlib.contextmanager
def kdc(folder: pathlib.Path) -> Iterator[Kdc]:
    """A KDC that answers; killed at the end."""
    server = Kdc(folder)
    server.start()
    try:
        yield server
    finally:
        server.stop()
