"""A scanner of web weaknesses against a bookie's HTTP server: `make web-scan`.

Wapiti attacks every page and file of the console and every operation of `/openapi.json`, first as nobody, then as a
viewer and as an administrator, who may change everything. It runs in an environment of its own, because it pins old
versions of packages that we need. The table shows its findings by severity. The exit status is 1 if one is above low,
if a server answered a scan with an internal error, or if the cluster does not serve afterwards.
"""

from __future__ import annotations

import argparse
import collections
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from typing import Any, NamedTuple

import bookies
from bookies.admin.cluster import LocalCluster
from bookies.admin.cluster.monitoring import http_address
from bookies.protocol.rights.users import hash_of

SEVERITIES = ("info", "low", "medium", "high", "critical")
CUT = re.compile(r"Max attack time was reached for module (\w+)")
LOW = SEVERITIES.index("low")
REACHED_MIN = 50  # pages and operations that answer a user
VALUES = {"bookie": "-", "log": "orders", "prefix": "o", "entry": 0, "file": "console.js", "set": "scrub_rate_size=8m"}
ROLES = ("nobody", "viewer", "administrator")
SETTINGS = {
    "journal_preallocate_size": 1 << 20,
    "write_cache_size": 4 << 20,
    "index_cache_size": 1 << 20,
    "http_requests_rate": 100_000,  # the scanner is to attack, not to wait
}
# Of its modules those that need no server on the Internet: no lists of known products, no call-backs from there. Two
# are left out that look for what no part of the server contains, and take its strictness for a sign: `spring4shell`
# (Java's Spring; 400 for an unknown parameter), `ldap` (figures that differ each time are taken for another result).
MODULES = (
    "backup", "buster", "cookieflags", "crlf", "csp", "csrf", "exec", "file", "htaccess", "http_headers", "methods",
    "permanentxss", "redirect", "shellshock", "sql", "timesql", "upload", "xss",
)  # fmt: skip


class Finding(NamedTuple):
    """What the scanner reports. `level`: index in `SEVERITIES`."""

    level: int
    category: str
    role: str
    call: str
    what: str


class Target:
    """A cluster of two bookies with entries and a log; the first one's server is attacked."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.values: dict[str, object] = dict(VALUES)
        users = folder / "users"
        users.write_text("".join(f"{role} {role} {hash_of(f'bk_{role}')}\n" for role in ROLES[1:]))
        settings = SETTINGS | {"users_file": str(users)}
        self.cluster = LocalCluster(folder / "bk-data", 2, lease_ms=3000, settings=settings)
        self.cluster.enable_http()
        self.url = ""

    def start(self) -> None:
        self.cluster.start()
        quorums = {"ensemble": 2, "write_quorum": 2, "ack_quorum": 2}
        with bookies.blocking.connect(self.cluster.metadata_uri) as store, store.create(**quorums) as ledger:
            ledger.append_many([b"an entry"] * 10)
        with bookies.blocking.connect(self.cluster.metadata_uri) as store:
            store.log("orders").create(**quorums)
            with store.log("orders").lead() as log:
                log.append(b"a record")
        self.values |= {"ledger": ledger.ledger_id, "ledger_id": ledger.ledger_id}
        address = http_address(self.cluster.bookies[0])
        assert address is not None
        self.url = f"http://{address[0]}:{address[1]}"

    def get(self, path: str, role: str = "administrator") -> bytes:
        request = urllib.request.Request(self.url + path, headers={"Authorization": f"Bearer bk_{role}"})
        with urllib.request.urlopen(request, timeout=30) as response:
            data: bytes = response.read()
        return data

    def specification(self) -> dict[str, Any]:
        """Return `/openapi.json` with a value for each parameter, so that calls reach the functions behind them."""
        document: dict[str, Any] = json.loads(self.get("/openapi.json"))
        document["servers"] = [{"url": self.url}]
        for operation in (operation for path in document["paths"].values() for operation in path.values()):
            for parameter in operation["parameters"]:
                name, help = parameter["name"], parameter.get("description", "")
                parameter["schema"]["default"] = str(self.values.get(name, "true" if help.startswith("true") else 1))
            for content in operation.get("requestBody", {}).get("content", {}).values():
                for name, field in content["schema"].get("properties", {}).items():
                    field |= {"type": "string", "default": str(self.values.get(name, 1))}
        return document

    def pages(self) -> list[str]:
        """Return the addresses of the console's page and files, as its modules name each other."""
        static = pathlib.Path(bookies.__file__).parent / "web" / "console" / "static"
        return [f"{self.url}/console", *(f"{self.url}/console/{file.name}" for file in sorted(static.iterdir()))]

    def state(self) -> list[str]:
        """Return what is wrong with the cluster after an attack."""
        problems = []
        for bookie in self.cluster.bookies:
            if not bookie.is_running():
                problems.append(f"{bookie.name} has ended")
        try:
            self.get("/livez")
        except (urllib.error.URLError, OSError) as error:
            problems.append(f"the server does not answer: {error}")
        return problems

    def internal_errors(self) -> list[str]:
        """Return the lines in which a server reported a mistake of its own."""
        lines = []
        for log in self.folder.rglob("bookie.log"):
            lines += [line for line in log.read_text(errors="replace").splitlines() if " ERROR " in line]
        return lines


def scan(target: Target, role: str, scanner: pathlib.Path, seconds: int) -> list[Finding]:
    """Let the scanner attack as this role. Raises `RuntimeError` if it did not run to a report."""
    specification, report = target.folder / "openapi.json", target.folder / f"{role}.json"
    specification.write_text(json.dumps(target.specification()))
    command = [str(scanner), "--url", f"{target.url}/", "--scope", "domain", "--swagger", str(specification)]
    command += ["--module", ",".join(MODULES), "--level", "2", "--flush-session", "--no-bugreport", "--color"]
    command += ["--format", "json", "--output", str(report), "--timeout", "10"]
    command += ["--max-scan-time", str(seconds), "--max-attack-time", str(seconds), "--verbose", "1"]
    command += ["--store-session", str(target.folder / f"session-{role}"), "--tasks", "4", "--detailed-report", "1"]
    for page in target.pages():
        command += ["--start", page]
    if role != "nobody":
        command += ["--header", f"Authorization: Bearer bk_{role}"]
    with (target.folder / f"{role}.log").open("wb") as log:
        subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, timeout=len(MODULES) * seconds + 300, check=False)
    if not report.exists():
        raise RuntimeError(f"no report of the scan as {role}: {(target.folder / f'{role}.log').read_text()[-2000:]}")
    found = json.loads(report.read_text())
    statuses = [page["request"]["status_code"] for page in found["infos"]["crawled_pages"]]
    answered = sum(status < 400 for status in statuses)
    findings = findings_of(found, role)
    cut = CUT.findall((target.folder / f"{role}.log").read_text(errors="replace"))
    print(f"{role}: {len(statuses)} calls, {answered} of them allowed; {len(findings)} findings; "
          f"modules cut short: {', '.join(cut) or 'none'}", flush=True)  # fmt: skip
    if role != "nobody" and answered < REACHED_MIN:
        raise RuntimeError(f"the scan as {role} reached only {answered} pages and operations")
    return findings


def findings_of(report: dict[str, Any], role: str) -> list[Finding]:
    """Return the findings in a report of the scanner."""
    return [
        Finding(each["level"], category, role, f"{each['method']} {each['path']}", each["info"])
        for kind in ("vulnerabilities", "anomalies")
        for category, found in report[kind].items()
        for each in found
    ]


def table_of(findings: list[Finding]) -> str:
    """Return the findings as text: severity, category, as whom, how often, an example."""
    groups = collections.defaultdict(list)
    for finding in findings:
        groups[-finding.level, finding.category, finding.role].append(finding)
    lines = [f"{'severity':<9} {'as':<14} {'count':>5}  finding"]
    for (level, category, role), found in sorted(groups.items()):
        example = f"{category}: {found[0].call}: {found[0].what}"
        lines.append(f"{SEVERITIES[-level]:<9} {role:<14} {len(found):>5}  {example[:160]}")
    return "\n".join(lines if groups else ["no finding"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scanner", type=pathlib.Path, required=True, help="the program wapiti")
    parser.add_argument("--minutes", type=float, default=5.0, help="of each module of each scan, at most")
    parser.add_argument("--roles", default=",".join(ROLES), help="as whom to scan (default: %(default)s)")
    parser.add_argument("--reports", type=pathlib.Path, help="directory for the scanner's reports and logs")
    arguments = parser.parse_args()
    findings: list[Finding] = []
    problems: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        target = Target(pathlib.Path(name))
        try:
            target.start()
            for role in arguments.roles.split(","):
                found = scan(target, role, arguments.scanner, int(60 * arguments.minutes))
                findings += found
                problems += target.state()
            problems += target.internal_errors()
        finally:
            target.cluster.stop()
            if arguments.reports is not None:
                arguments.reports.mkdir(parents=True, exist_ok=True)
                for file in (*target.folder.glob("*.json"), *target.folder.glob("*.log")):
                    (arguments.reports / file.name).write_bytes(file.read_bytes())
    print(table_of(findings), *problems, sep="\n")
    above = [finding for finding in findings if finding.level > LOW]
    print(f"{len(above)} findings above low, {len(problems)} other problems")
    return int(bool(above or problems))


if __name__ == "__main__":
    sys.exit(main())
