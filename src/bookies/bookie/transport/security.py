"""Security demands of a bookie on its peers, read from its settings and files; and a count of the refusals.

Users (`users_file.py`) and certificates (`runtime/tls.py`) are read again whenever their files change. Source:
wire-protocol 5.1 to 5.3.
"""

from __future__ import annotations

import re
from datetime import datetime

from bookies.bookie.transport.users_file import UsersFile
from bookies.config import BookieConfig, ClientConfig
from bookies.encoding.key_stores import is_key_store, read_key_store
from bookies.errors import ConfigError, InvalidArgument, Unauthorized
from bookies.protocol.rights.users import CERTIFICATE, DIGEST_MD5, KERBEROS, SCRAM, hash_of
from bookies.runtime.events import Events
from bookies.runtime.ports import Encryption, Runtime, TlsFiles
from bookies.wire.auth import BookieGate, Exchange, RoleExchange, Subject, text_of
from bookies.wire.certificate import parse_certificate, pem_blocks
from bookies.wire.sasl import SaslExchange, Secrets
from bookies.wire.sasl.mechanisms import Principals
from bookies.wire.sasl.scram import parse_verifier

NONCE_BITS = 192
DECOY_BITS = 256
CERTIFICATE_AGE_S = 600.0  # longest age of the end of the certificate's validity in metrics
REMEMBERED_MAX = 10_000  # pairs of peer and reason; above this number they are dropped, and logged again


class Security:
    """One bookie's security. Raises `ConfigError` when the files that the settings name are unusable."""

    def __init__(self, runtime: Runtime, config: BookieConfig, events: Events) -> None:
        self.encryption = _encryption(runtime, config)
        self.refusals: dict[str, int] = {}  # reason -> count
        self._config = config
        self._random = runtime.random
        self._disk = runtime.disk
        self._events = events
        has_users = config.authentication != "none" and config.users_file
        self.users = UsersFile(runtime.disk, config.users_file, runtime.clock) if has_users else None
        self._principals = self._read_principals(runtime) if config.kerberos_keytab else None
        self._decoy_key = runtime.random.getrandbits(DECOY_BITS).to_bytes(DECOY_BITS // 8, "big")
        self._is_allowed = re.compile(config.sasl_allowed_ids).fullmatch
        self._told: dict[tuple[str, str], None] = {}
        self._ends: tuple[float, datetime | None] = (float("-inf"), None)  # when read, and what

    @property
    def is_needed(self) -> bool:
        """Report whether connections need a gate or encryption."""
        return self.encryption is not None or self._config.authentication != "none"

    def gate(self) -> BookieGate:
        """Create the gate of a new connection."""
        return BookieGate(self._exchange(), requires_tls=self._config.tls_required)

    def refused(self, peer: str, reason: str, detail: str = "") -> None:
        """Count a refusal; log it if it is the first of this peer (a host) for this reason."""
        self.refusals[reason] = self.refusals.get(reason, 0) + 1
        key = (peer.rpartition(":")[0] or peer, reason)
        if key in self._told:
            return
        if len(self._told) >= REMEMBERED_MAX:
            self._told.clear()
        self._told[key] = None
        # The peer controls this text, and logs are read on terminals.
        shown = "".join(character if character.isprintable() else "?" for character in detail)
        self._events.warning("peer.refused", peer=peer, reason=reason, detail=shown or "-")

    def describe(self) -> dict[str, object]:
        """Describe the demands and the refusals, for operators."""
        config = self._config
        offers = "required" if config.tls_required else "offered" if config.tls_certificate else "none"
        if config.tls_client_certificates:
            offers += ", with certificates of both sides"
        if (until := self._certificate_ends()) is not None:
            offers += f"; its certificate is valid until {until:%Y-%m-%d %H:%M}"
        refused = ", ".join(f"{count:,} times: {reason}" for reason, count in self.refusals.items())
        return {"tls": offers, "authentication": config.authentication, "peers_refused": refused or None}

    def certificate_ends_s(self, now_s: float) -> float | None:
        """Return when the certificate expires, in seconds since 1970; None without one.

        `now_s`: the monotonic clock. The file is read again after `CERTIFICATE_AGE_S` only.
        """
        if self._config.tls_certificate and now_s - self._ends[0] >= CERTIFICATE_AGE_S:
            self._ends = now_s, self._certificate_ends()
        return None if self._ends[1] is None else self._ends[1].timestamp()

    def _certificate_ends(self) -> datetime | None:
        """Return when the current certificate file expires, in UTC."""
        try:
            data = self._disk.read_bytes(self._config.tls_certificate)
            if is_key_store(data):
                password = self._config.tls_key_password_file
                secret = self._disk.read_bytes(password).rstrip(b"\r\n") if password else b""
                data = read_key_store(data, secret, self._config.tls_certificate).key_and_chain
            blocks = pem_blocks(data.decode("latin-1"))
            ends = [parse_certificate(block).ends for label, block in blocks if label == "CERTIFICATE"]
        except (OSError, InvalidArgument, ConfigError):
            return None  # Not loaded either; the log has the reason.
        return ends[0] if ends else None

    def _exchange(self) -> Exchange | None:
        match self._config.authentication:
            case "sasl":
                nonce = f"{self._random.getrandbits(NONCE_BITS):x}"
                is_allowed = lambda user: self._is_allowed(user) is not None  # noqa: E731
                return SaslExchange(self._secrets_of, is_allowed, nonce, self._decoy_key, self._principals)
            case "certificate":
                return RoleExchange(self._config.authorized_roles, self._user_of)
            case _:
                return None

    def _secrets_of(self, name: str) -> Secrets | None:
        """Return what checks the passwords of a user."""
        user = None if self.users is None else self.users.current().by_name.get(name)
        if user is None:
            return None
        digest_md5, scram = user.credential(DIGEST_MD5), user.credential(SCRAM)
        return Secrets(
            None if digest_md5 is None else bytes.fromhex(digest_md5.removeprefix(DIGEST_MD5)),
            None if scram is None else parse_verifier(scram),
            lambda password: hash_of(password) in user.credentials,
        )

    def _user_of(self, subject: Subject) -> str | None:
        """Return the user with a certificate of this subject."""
        return self._user_by(f"{CERTIFICATE}{text_of(subject)}")

    def _user_by(self, credential: str) -> str | None:
        user = None if self.users is None else self.users.current().by_credential.get(credential)
        return None if user is None else user.name

    def _read_principals(self, runtime: Runtime) -> Principals:
        """Load Kerberos. Every connection opens the keytab again. Raises `ConfigError` if it is unusable now."""
        kerberos, keytab = runtime.kerberos(), self._config.kerberos_keytab
        try:
            kerberos.accept(keytab)
        except Unauthorized as error:
            raise ConfigError(f"kerberos_keytab {keytab}: {error.message}") from error
        return Principals(lambda: kerberos.accept(keytab), lambda principal: self._user_by(f"{KERBEROS}{principal}"))


def _encryption(runtime: Runtime, config: BookieConfig) -> Encryption | None:
    if not config.tls_certificate:
        return None
    if runtime.tls is None:
        raise ConfigError("tls_certificate: this Python environment has no TLS")
    return runtime.tls(server_files(config, checks_peer=config.tls_client_certificates), True)


def server_files(config: BookieConfig | ClientConfig, *, checks_peer: bool, asks_peer: bool = False) -> TlsFiles:
    """Return the files of the server's side of TLS that these settings name."""
    return TlsFiles(
        certificate=config.tls_certificate,
        key=config.tls_key,
        key_password_file=config.tls_key_password_file,
        authority=config.tls_authority,
        authority_password_file=config.tls_authority_password_file,
        checks_peer=checks_peer,
        checks_host_name=False,
        version_min=config.tls_version_min,
        ciphers=config.tls_ciphers,
        reload_interval_s=config.tls_reload_interval_ms / 1000,
        asks_peer=asks_peer,
    )
