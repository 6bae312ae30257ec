"""`bk service`: units of systemd for a bookie, auto-recovery and a gateway, and what systemd says of them.

`unit_text` is a pure function of `Unit`.
"""

from __future__ import annotations

import argparse
import os
import pwd
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from msgspec import Struct, to_builtins

from bookies.admin.shared import UsageError
from bookies.admin.shared.command_line import MACHINE, Option, verb
from bookies.admin.shared.report import Finding, Report, finding_text
from bookies.runtime.service_manager import START_S
from bookies.settings import TABLE_OF, names_file, resolve

T = TypeVar("T")

FOLDER = "etc/systemd/system"
MARK = "# Written by `bk service install`."
KINDS = {  # kind -> (words of the command, description)
    "bookie": ("bookie run", "bookie, a server of a replicated log store"),
    "recovery": ("recovery run", "auto-recovery of a replicated log store"),
    "gateway": ("gateway run", "HTTP gateway of a replicated log store"),
}
HOMES, TEMPORARY = ("/home/", "/root/", "/run/user/"), ("/tmp/", "/var/tmp/")
EXPOSURE_MAX = 4.0  # of `systemd-analyze security`; 10 is the worst
# It starts again without a limit: after a power failure the metadata store may need longer than any number of starts.
# Memory is not made executable-only: compiled extensions of optional packages may map their own.
_UNIT = """{mark}
[Unit]
Description={description}
Wants=network-online.target
After=network-online.target{after}
StartLimitIntervalSec=0

[Service]
Type=notify
NotifyAccess=main
ExecStart={command}
User={user}
WorkingDirectory=/
Restart=on-failure
RestartSec=5
RestartPreventExitStatus={wrong_settings}
TimeoutStartSec={start}
TimeoutStopSec=120
WatchdogSec=60
KillMode=mixed
LimitNOFILE=65536
OOMScoreAdjust={oom_score}
UMask=0027
ProtectSystem=strict
{writable}ProtectHome={protect_home}
PrivateTmp={private_tmp}
PrivateDevices=true
NoNewPrivileges=true
ProtectProc=invisible
ProtectClock=true
ProtectHostname=true
ProtectKernelTunables=true
ProtectKernelModules=true
ProtectKernelLogs=true
ProtectControlGroups=true
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=true
RestrictRealtime=true
RestrictSUIDSGID=true
RemoveIPC=true
LockPersonality=true
{capabilities}SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM

[Install]
WantedBy=multi-user.target
"""


class Unit(Struct, frozen=True):
    """A unit. `command`: the program and its arguments. `directories`: absolute paths that the process writes to.

    `reads`: other paths that it needs. `low_port`: whether it listens on a port below 1024.
    """

    kind: str
    command: Sequence[str]
    user: str
    directories: Sequence[str]
    reads: Sequence[str]
    low_port: bool = False

    @property
    def name(self) -> str:
        return f"bk-{self.kind}.service"


def unit_text(unit: Unit) -> str:
    """Return the file of a unit."""
    paths = [f"{path}/" for path in (*unit.directories, *unit.reads)]
    others = "" if unit.kind == "bookie" else " bk-bookie.service"  # it stops after those that use it
    capability = "CAP_NET_BIND_SERVICE" if unit.low_port else ""
    return _UNIT.format(
        mark=MARK,
        description=KINDS[unit.kind][1].capitalize(),
        after=others,
        command=" ".join(quoted(word).replace("$", "$$") for word in unit.command),
        user=unit.user,
        start=int(START_S),
        wrong_settings=1 if unit.kind == "bookie" else 2,  # the exit status that means nothing else
        oom_score=-500 if unit.kind == "bookie" else 0,
        writable="".join(f"ReadWritePaths={quoted(path)}\n" for path in unit.directories),
        protect_home="read-only" if any(path.startswith(HOMES) for path in paths) else "true",
        private_tmp=str(not any(path.startswith(TEMPORARY) for path in paths)).lower(),
        capabilities=f"CapabilityBoundingSet={capability}\nAmbientCapabilities={capability}\n",
    )


def quoted(word: str) -> str:
    """Return a word as systemd reads it: quoted if it needs quotes, and % doubled."""
    text = word.replace("%", "%%")
    if word and not any(character in word for character in " \t\"'\\;"):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


# -- install -----------------------------------------------------------------------------------------------------------


def unit_of(kind: str, config: str | None, user: str) -> Unit:
    """Return the unit for the settings of a file: a service has no other. Raises `UsageError`, `ConfigError`."""
    from bookies.config import BookieConfig, ClientConfig, GatewayConfig, MetadataConfig, RecoveryConfig, SiteConfig

    refused: dict[str, str] = {}
    settings: Any = _alone({"bookie": BookieConfig, "recovery": SiteConfig, "gateway": GatewayConfig}[kind], refused)
    uri, client = _alone(MetadataConfig, refused).uri, _alone(ClientConfig, refused)
    _alone(RecoveryConfig, refused)
    if refused:
        names = ", ".join(refused.values())
        raise UsageError(f"a service has no {', '.join(refused)}: write {names} into {config or 'a --config FILE'}")
    if not uri:
        raise UsageError("name the metadata store: uri in [metadata] of --config FILE; a service has no bk-data")
    if kind == "gateway" and not settings.users_file:
        raise UsageError("a gateway needs users: users_file in [gateway] of --config FILE (`bk token add`)")
    directories: list[str] = []
    ports = [settings.http_port]
    if isinstance(settings, BookieConfig):
        directories += settings.journal_directories + settings.ledger_directories + settings.index_directories
        ports += [settings.port, settings.tls_port]
    if isinstance(settings, SiteConfig) and settings.http_jobs_directory:
        directories.append(settings.http_jobs_directory)
    if uri.startswith("file:"):
        directories.append("/" + uri.removeprefix("file:").lstrip("/") if uri.startswith("file:/") else uri[5:])
    if relative := [path for path in directories if not os.path.isabs(path)]:
        raise UsageError(f"{relative[0]} is a relative path, and a service has no current directory: write it in full")
    program = os.path.join(os.path.dirname(sys.executable), "bk")
    start = [program] if os.access(program, os.X_OK) else [sys.executable, "-P", "-m", "bookies"]
    options = ["--config", os.path.abspath(config)] if config else []
    return Unit(
        kind,
        [*start, *KINDS[kind][0].split(), *options],
        user,
        list(dict.fromkeys(map(os.path.normpath, directories))),
        [start[0], sys.base_prefix, *options[1:], *_files_of(settings), *_files_of(client), *_file_of(uri)],
        any(0 < port < 1024 for port in ports),
    )


def _alone(kind: type[T], refused: dict[str, str]) -> T:
    """Return the settings of BK_CONFIG. `refused` gets the variables that change them, with the settings' names."""
    from bookies.configuration import file_layer, settings_of

    alone, here = resolve(kind, file_layer(kind)), settings_of(kind)
    for name, given in here.origins.items():
        if getattr(here.config, name) != getattr(alone.config, name):
            refused[given.where] = f"{name} of [{TABLE_OF[kind]}]"
    return alone.config


def _files_of(settings: object) -> list[str]:
    """Return the files that settings name."""
    values = {spec.name: getattr(settings, spec.name) for spec in fields(settings)}  # type: ignore[arg-type]
    return [value for name, value in values.items() if value and names_file(name)]


def _file_of(uri: str) -> list[str]:
    """Return the file of credentials that a metadata URI names."""
    return [path for path in [uri.partition("?options=")[2]] if path]


def _install(arguments: argparse.Namespace) -> Report:
    config = arguments.config or os.environ.get("BK_CONFIG")
    unit = unit_of(arguments.kind, config, arguments.user)
    text = unit_text(unit)
    path = os.path.join(arguments.prefix, FOLDER, unit.name)
    facts = {"unit": path, "user": unit.user, "directories": list(unit.directories), "text": text}
    if arguments.dry_run:
        return Report(facts | {"written": False}, [text.rstrip()], remarks=[f"would write {path}"])
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                if not file.read().startswith(MARK):
                    raise UsageError(f"{path} was not written by this command, and was not changed: remove it first")
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(f"{path}.new", path)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror}. Run the command as root, or write below another --prefix DIR"
        ) from error
    return Report(facts | {"written": True}, [f"wrote {path}", *_next_steps(unit)])


def _next_steps(unit: Unit) -> Iterator[str]:
    """Yield what is left to do before the unit can start."""
    try:
        pwd.getpwnam(unit.user)
    except KeyError:
        yield f"  useradd --system --home-dir / --shell /usr/sbin/nologin {shlex.quote(unit.user)}"
    for directory in unit.directories:
        if not os.path.isdir(directory):
            yield f"  install --directory --owner {shlex.quote(unit.user)} --mode 750 {shlex.quote(directory)}"
    yield f"  systemctl daemon-reload && systemctl enable --now {unit.name}"


# -- check -------------------------------------------------------------------------------------------------------------


def _check(arguments: argparse.Namespace) -> Report:
    folder = os.path.join(arguments.prefix, FOLDER)
    paths = [path for kind in KINDS if os.path.exists(path := os.path.join(folder, f"bk-{kind}.service"))]
    if not paths:
        raise UsageError(f"there is no unit of bookies in {folder}: bk service install --kind bookie")
    findings = [finding for path in paths for finding in _findings(path)]
    status = int(any(finding.level == "bad" for finding in findings))
    return Report([to_builtins(finding) for finding in findings], map(finding_text, findings), status)


def _findings(path: str) -> Iterator[Finding]:
    name = os.path.basename(path)
    with open(path, encoding="utf-8") as file:
        lines = [line.rstrip("\n").partition("=")[::2] for line in file]
    user = next((value for key, value in lines if key == "User"), "root")
    for directory in (value.strip('"').replace("%%", "%") for key, value in lines if key == "ReadWritePaths"):
        if problem := _problem_of(directory, user):
            yield Finding("bad", f"{name}: {problem}", "without it the unit does not start", name)
    program = shutil.which("systemd-analyze")
    if program is None:
        yield Finding("warn", f"{name} was not verified: systemd-analyze is not installed", "install systemd", name)
        return
    done = _output(program, "verify", path)
    complaints = [line for line in (done.stdout + done.stderr).splitlines() if name in line]
    for complaint in complaints:
        yield Finding("bad" if done.returncode else "warn", f"systemd-analyze verify: {complaint}", "", name)
    if not complaints and done.returncode == 0:
        yield Finding("ok", f"{name}: systemd-analyze verify has no complaint", "", name)
    elif not complaints:
        reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
        yield Finding("warn", f"{name} was not verified: {reason}", "", name)
    yield _exposure(_output(program, "security", "--offline=true", "--no-pager", path), name)


def _problem_of(directory: str, user: str) -> str:
    """Return why a user cannot have a directory; empty: it is the user's, or the user does not exist here."""
    if not os.path.isdir(directory):
        return f"the directory {directory} does not exist: create it for {user}"
    try:
        owner = pwd.getpwnam(user).pw_uid
    except KeyError:
        return f"there is no user {user}"
    is_own = owner in (0, os.stat(directory).st_uid)
    return "" if is_own else f"the directory {directory} belongs to another user: chown it to {user}"


def _output(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | {"LC_ALL": "C.UTF-8"})


def _exposure(done: subprocess.CompletedProcess[str], name: str) -> Finding:
    """Return how exposed the unit is, as `systemd-analyze security` rates it: 0 (best) to 10."""
    overall = re.search(r"Overall exposure level for .*: ([0-9.]+)", done.stdout)
    if overall is None:
        reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return Finding("warn", f"{name}: its exposure was not rated: {reason}", "", name)
    parts = re.findall(r"^\S+ (\S+=\S*) .* ([0-9.]+)\s*$", done.stdout, re.MULTILINE)
    worst = [part for part, _ in sorted(parts, key=lambda part: -float(part[1]))[:3]]
    text = f"{name}: systemd rates its exposure {overall[1]} of 10; the largest parts: {', '.join(worst)}"
    return Finding("ok" if float(overall[1]) <= EXPOSURE_MAX else "warn", text, "", name)


_PREFIX = Option("--prefix DIR", f"root of the file system; units are in {FOLDER} below it (default /)", default="/")
VERBS = (
    verb(
        "service install",
        "write a hardened systemd unit for a bookie, auto-recovery or a gateway",
        "bk service install --kind bookie --config /etc/bookies/bk.toml --dry-run",
        _install,
        Option("--kind", "what the unit runs", choices=tuple(KINDS), is_required=True),
        Option("--user NAME", "user that runs it (default: bookies)", default="bookies"),
        _PREFIX,
        Option("--dry-run", "print the unit, write no file", bool),
        description="The unit may write only to the directories of the settings. systemd restarts it when it fails, or "
        "when its event loop hangs for a minute. Prints what is left to do.",
        shared=MACHINE,
    ),
    verb(
        "service check",
        "check the installed units: directories, `systemd-analyze verify` and `security`",
        "bk service check",
        _check,
        _PREFIX,
        shared=MACHINE,
    ),
)
