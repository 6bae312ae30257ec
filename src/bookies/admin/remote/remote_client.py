"""The client's side: `bk --server URL NOUN VERB` sends the verb to an HTTP server, and prints its report."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from bookies.admin.remote.exposed import EXPOSED, PAGE_SIZE_MAX, PAGED, REPORT, THIS_BOOKIE, Exposed, options_of, unset
from bookies.admin.shared.common import LIST_MAX, MORE
from bookies.admin.shared.nouns import verb_of
from bookies.admin.shared.operators import is_deletion_confirmed
from bookies.admin.shared.report import Report, Table
from bookies.admin.shared.slow_report import explained, since_s_of
from bookies.admin.shared.usage import UsageError
from bookies.errors import BookKeeperError
from bookies.web.apache_bookie import API

TIMEOUT_S = 60.0
LOCAL = ("json", "debug", "config", "metadata", "ledger_dir")  # fields that are not sent


class Server:
    """An HTTP server. `token`: empty for none; `authority`: PEM file, empty for the system's."""

    def __init__(self, url: str, token: str, authority: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.query:
            raise UsageError(f"--server {url}: expected https://HOST:PORT or http://HOST:PORT")
        if parts.scheme == "http" and token and not _is_loopback(parts.hostname):
            raise UsageError(f"--server {url}: the token would cross the network in plain text; use https://")
        self._parts = parts
        self._token = token
        self._authority = authority

    def at(self, url: str) -> Server:
        """Return the server at another address, for the same user. Raises `UsageError`."""
        return Server(url, self._token, self._authority)

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Return the answer's JSON. Raises `UsageError` and `BookKeeperError` with the server's words."""
        import http.client
        import ssl

        host, port = self._parts.hostname, self._parts.port
        headers = {"Accept": REPORT} | ({"Authorization": f"Bearer {self._token}"} if self._token else {})
        data = None if body is None else json.dumps(body)
        try:
            connection: http.client.HTTPConnection
            if self._parts.scheme == "https":
                context = ssl.create_default_context(cafile=self._authority or None)
                connection = http.client.HTTPSConnection(str(host), port, timeout=TIMEOUT_S, context=context)
            else:
                connection = http.client.HTTPConnection(str(host), port, timeout=TIMEOUT_S)
            connection.request(method, path, data, headers | ({"Content-Type": "application/json"} if data else {}))
            response = connection.getresponse()
            text = response.read()
            connection.close()
        except (OSError, http.client.HTTPException) as error:
            raise BookKeeperError(f"{self._parts.geturl()} does not answer: {error or type(error).__name__}") from error
        try:
            answer = json.loads(text)
        except ValueError as error:
            raise BookKeeperError(
                f"{self._parts.geturl()} answered {response.status} without JSON: is it a bookie's HTTP server?"
            ) from error
        if response.status == 200:
            return answer
        following = f" (next: {answer['next']})" if answer.get("next") else ""
        error_type = UsageError if response.status in (400, 409, 422) else BookKeeperError
        raise error_type(f"{answer.get('detail', response.reason)}{following}")


def call(url: str, token_file: str, authority: str, arguments: argparse.Namespace) -> Report | int:
    """Run a verb by the server. Raises `UsageError` for one that it does not carry, `BookKeeperError`."""
    words = " ".join(filter(None, (arguments.noun, getattr(arguments, "verb", None))))
    if not any(row.words == words for row in EXPOSED):
        carried = ", ".join(dict.fromkeys(row.words for row in EXPOSED))
        raise UsageError(f"`bk {words}` does not work with --server: run it beside the cluster. These do: {carried}")
    given = {
        field: getattr(arguments, field)
        for field, option in options_of(verb_of(words))
        if field not in LOCAL and getattr(arguments, field) != unset(option)
    }
    server = Server(url, read_token(token_file), authority)
    if words == "why slow":
        return _why_slow(server, arguments)
    if words == "ledger explain":
        ledger, entry = given.pop("what")
        given |= {"ledger": ledger} | ({} if entry is None else {"entry": entry})
    if words in PAGED:
        least, word = (0, ", or 0 for all ledgers") if words == "ledger list" else (1, "")
        if given.get("limit", least) < least:
            raise UsageError(f"--limit {given['limit']}: must be at least 1{word}")
        return _all_pages(server, words, given)
    row = _row(words, given)
    if words == "ledger delete" and not (given.pop("yes", False) or given.get("dry_run")):
        name = str(given["ledger"])
        if not is_deletion_confirmed(f"ledger {name}", "id", name):
            return 1
    return _report(_ask(server, row, given))


def _row(words: str, given: Mapping[str, object]) -> Exposed:
    """Return the path that carries these options. Raises `UsageError` if none does."""
    rows = [row for row in EXPOSED if row.words == words]
    for row in rows:
        accepted = {*row.options, *_placeholders(row)}
        needed = [name for name in _placeholders(row) if name != "bookie" or not _is_optional(words)]
        if all(name in accepted for name in given) and all(name in given for name in needed):
            return row
    accepted = {name for row in rows for name in (*row.options, *_placeholders(row))}
    extra = [f"--{name.replace('_', '-')}" for name in given if name not in accepted]
    if not extra:
        raise UsageError(f"`bk {words}` needs other options with --server: {', '.join(sorted(accepted))}")
    raise UsageError(f"{extra[0]} does not work with --server: run the command beside the cluster")


def _is_optional(words: str) -> bool:
    """Report whether the verb means this server's bookie when none is named."""
    return any(option.name.startswith("--bookie") for _, option in options_of(verb_of(words)))


def _placeholders(row: Exposed) -> list[str]:
    return [part[1:-1] for part in row.path.split("/") if part.startswith("{")]


def _ask(server: Server, row: Exposed, given: Mapping[str, Any]) -> Any:
    names = _placeholders(row)
    path = row.full_path
    for name in names:
        path = path.replace(f"{{{name}}}", quote(str(given.get(name, THIS_BOOKIE)), safe=""))
    rest = {name: value for name, value in given.items() if name not in names}
    if row.method in ("GET", "DELETE"):
        texts = {name: _query_text(value) for name, value in rest.items()}
        return server.ask(row.method, f"{path}?{urlencode(texts)}" if texts else path)
    query = "?dry_run=true" if rest.get("dry_run") else ""
    return server.ask(row.method, path + query, rest)


def _query_text(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _all_pages(server: Server, words: str, given: dict[str, Any]) -> Report:
    """Fetch page after page, up to the limit."""
    row, key = _row(words, given), PAGED[words]
    wanted = given.get("limit", LIST_MAX if words == "ledger list" else None) or None
    pages: list[Report] = []
    facts: list[Any] = []
    while True:
        size = PAGE_SIZE_MAX if wanted is None else min(PAGE_SIZE_MAX, wanted - len(facts))
        pages.append(_report(_ask(server, row, given | {"limit": size})))
        page: Any = pages[-1].facts
        facts += page
        if len(page) < size or len(facts) == wanted:
            break
        given = given | {"after": page[-1][key] if key else page[-1]}
        pages[-1] = pages[-1]._replace(remarks=[line for line in pages[-1].remarks if not line.startswith(MORE)])
    tables = [part for page in pages for part in page.text if isinstance(part, Table)]
    text: list[str | Table] = [part for page in pages for part in page.text if not isinstance(part, Table)]
    if tables:
        text.append(Table(tables[0].headers, [row for part in tables for row in part.rows], tables[0].right))
    return Report(facts, text, max(page.status for page in pages), [line for page in pages for line in page.remarks])


def _why_slow(server: Server, arguments: argparse.Namespace) -> Report:
    """Ask every bookie with an HTTP server, or the named one, at its own address, and explain all reports together."""
    from bookies.protocol.latency import Report as ProcessReport

    since_s_of(arguments)
    remarks, reports = [], []
    bookies: Any = _all_pages(server, "bookie list", {}).facts
    for row in bookies:
        name, url = row["bookie"], row["http"]
        if arguments.bookie not in (None, name):
            continue
        if url is None:
            remarks.append(f"{name} is {row['mode']} and has no HTTP server: start it with http_port")
            continue
        try:
            answer = server.at(url).ask("GET", f"{API}/bookies/-/slow?{urlencode({'since': arguments.since})}")
        except BookKeeperError as error:
            remarks.append(f"{name}: {error}")
            reports.append(ProcessReport(name, is_reachable=False))
        else:
            reports += [ProcessReport.of_facts(facts) for facts in answer["facts"].values()]
    if not reports and not arguments.client:
        raise UsageError("; ".join(remarks) or f"there is no bookie {arguments.bookie}")
    return explained(arguments, reports, remarks)


def _report(answer: Mapping[str, Any]) -> Report:
    text = [Table(**part) if isinstance(part, dict) else part for part in answer["text"]]
    return Report(answer["facts"], text, answer["status"], answer["remarks"])


def read_token(path: str) -> str:
    """Return the token in a file, or without a path that of BK_TOKEN; empty: none. Raises `UsageError`."""
    if not path:
        return os.environ.get("BK_TOKEN", "")
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except OSError as error:
        raise UsageError(f"--token-file {path} cannot be read: {error.strerror}") from error


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")
