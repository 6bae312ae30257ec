"""Start of a bookie from Apache's `bk_server.conf`: addresses of this machine, notices about the file's keys."""

from __future__ import annotations

import fcntl
import socket
import struct
import sys

from bookies.apache.client import read_properties
from bookies.apache.server import BookieOptions, bookie_options
from bookies.apache.table import Level, Notice

_SIOCGIFADDR = 0x8915  # Linux ioctl: the IPv4 address of an interface
_ORDER = (Level.DANGER, Level.DIFFERENT, Level.UNKNOWN, Level.UNUSED)


class ThisHost:
    """This machine's addresses and names, as an `apache.server.Host`."""

    def address_of(self, interface: str | None) -> str:
        if interface is None:
            return socket.gethostbyname(socket.gethostname())
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            request = struct.pack("256s", interface.encode("utf-8")[:15])
            return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24])

    def name_of(self, address: str) -> str:
        return socket.getfqdn(address)


def read_conf(path: str) -> BookieOptions:
    """Read the options of a bookie from Apache's file. Raises `ConfigError`."""
    return bookie_options(read_properties(path), ThisHost())


def print_notices(path: str, notices: list[Notice]) -> None:
    """Print the notices about a file to stderr, the most dangerous first."""
    for level in _ORDER:
        for notice in notices:
            if notice.level is level:
                word = "WARNING: " if level is Level.DANGER else ""
                print(f"{path}: {word}{notice}", file=sys.stderr)
