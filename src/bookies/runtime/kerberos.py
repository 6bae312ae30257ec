"""Kerberos by MIT's library, through the package `gssapi`, which is imported when a setting asks for it.

The client's side blocks while it asks the KDC for a ticket, half a minute if the KDC is silent, so it begins on a
thread. The library keeps tickets in
memory and renews them from the keytab. A keytab is opened for every connection, so a renewed one applies at once.
"""

from __future__ import annotations

import importlib
from typing import Any

from bookies.encoding.gssapi import SecurityContext
from bookies.errors import BookieUnreachable, BookKeeperError, ConfigError, Unauthorized
from bookies.runtime.ports import KerberosLogin
from bookies.runtime.threads import SlowCalls

_KRB5 = -1765328384  # base of MIT's error codes
_EMPTY = ("Success", "Unknown error")  # texts of minor codes that are none
_NO_TICKETS = {141, 195}
_UNREACHABLE = 156
_WAYS_OUT = {
    6: "create the principal at the KDC, or correct its name",
    7: "create this principal at the KDC; its host is that of the address, its realm that of krb5.conf",
    24: "export the keytab again: it has another key than the KDC",
    31: "export the keytab again: it has another key than the KDC",
    32: "run kinit, or name a keytab",
    33: "set the clocks, for example by NTP",
    35: "the ticket is for another service: compare the host name with the principals in the keytab (klist -k)",
    37: "set the clocks, for example by NTP",
    44: "the key was changed: export the keytab again if it is the older one, or get new tickets",
    141: "run kinit, or name a keytab",
    154: "name the realm and its KDC in krb5.conf",
    _UNREACHABLE: "start the KDC, or correct its address in krb5.conf",
    181: "export the service's keys into the keytab (klist -k lists them)",
    195: "run kinit, or name a keytab",
}


class SystemContext:
    """See `SecurityContext`."""

    def __init__(self, library: Any, context: Any) -> None:
        self._errors = library.exceptions.GSSError
        self._context = context
        context.__DEFER_STEP_ERRORS__ = False  # The library would raise them from `complete`, with a token before.

    def begin(self) -> bytes:
        """Return the first token of a client; raises the library's errors."""
        return self._context.step() or b""

    def is_complete(self) -> bool:
        return bool(self._context.complete)

    @property
    def peer(self) -> str:
        try:
            return str(self._context.initiator_name)
        except (self._errors, UnicodeError) as error:
            raise Unauthorized(f"Kerberos: its principal has no readable name: {error}") from error

    def step(self, token: bytes) -> bytes:
        try:
            return self._context.step(token) or b""
        except self._errors as error:
            raise _refused(error) from error

    def wrap(self, message: bytes) -> bytes:
        try:
            return bytes(self._context.wrap(message, False).message)
        except self._errors as error:
            raise _refused(error) from error

    def unwrap(self, token: bytes) -> bytes:
        try:
            return bytes(self._context.unwrap(token).message)
        except self._errors as error:
            raise _refused(error) from error


class SystemKerberos:
    """See `ports.Kerberos`. Raises `ConfigError` when the package is missing."""

    def __init__(self) -> None:
        try:
            self._library = importlib.import_module("gssapi")
        except ImportError as error:
            raise ConfigError(
                f"Kerberos needs a library: pip install 'bookies[kerberos]' (docs/howto/use-kerberos.md): {error}"
            ) from error
        self._slow_calls = SlowCalls()

    def accept(self, keytab: str) -> SecurityContext:
        library = self._library
        try:
            credentials = library.Credentials(usage="accept", store={"keytab": f"FILE:{keytab}"}, mechs=[self._mech])
            return SystemContext(library, library.SecurityContext(creds=credentials, usage="accept"))
        except library.exceptions.GSSError as error:
            raise _refused(error) from error

    async def initiate(self, login: KerberosLogin, host: str) -> tuple[SecurityContext, bytes]:
        return await self._slow_calls.run((login, host), lambda: self._initiate(login, host))

    def _initiate(self, login: KerberosLogin, host: str) -> tuple[SecurityContext, bytes]:
        library = self._library
        try:
            name = library.Name(login.principal, library.NameType.kerberos_principal) if login.principal else None
            store = {"client_keytab": f"FILE:{login.keytab}", "ccache": _cache(login)} if login.keytab else None
            credentials = library.Credentials(usage="initiate", name=name, store=store, mechs=[self._mech])
            service = library.Name(f"{login.service}@{host}", library.NameType.hostbased_service)
            flag = library.RequirementFlag
            flags = flag.mutual_authentication | flag.integrity | flag.out_of_sequence_detection
            parts = {"creds": credentials, "usage": "initiate", "mech": self._mech, "flags": flags}
            context = SystemContext(library, library.SecurityContext(name=service, **parts))
            return context, context.begin()
        except library.exceptions.GSSError as error:
            raise _refused(error, login) from error

    @property
    def _mech(self) -> Any:
        return self._library.MechType.kerberos


def _cache(login: KerberosLogin) -> str:
    """Return the name of the cache of tickets in memory, one for each principal and keytab of the process."""
    return f"MEMORY:bookies:{login.principal}:{login.keytab}"


def _refused(error: Any, login: KerberosLogin | None = None) -> BookKeeperError:
    """Return our error: the library's text and the way out. `login`: of a client that wanted a ticket."""
    code = error.min_code - (1 << 32) if error.min_code >= 1 << 31 else error.min_code
    number = code - _KRB5
    if login is not None and login.keytab and number in _NO_TICKETS:
        whose = login.principal or "any principal"
        what = f"keytab {login.keytab} is missing, unreadable or without a key of {whose}"
        return Unauthorized(f"Kerberos: {what}: klist -k {login.keytab}")
    reason = " ".join(error.get_all_statuses(error.min_code, False))
    if reason.startswith(_EMPTY):
        reason = " ".join(error.get_all_statuses(error.maj_code, True))
    error_type = BookieUnreachable if number == _UNREACHABLE else Unauthorized
    return error_type(f"Kerberos: {reason}: {_WAYS_OUT.get(number, 'see docs/howto/use-kerberos.md')}")
