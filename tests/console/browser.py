"""The console in headless Chromium: `make console`.

Starts a cluster of four bookies, signs in, visits every page in light, dark and on a telephone, checks each with axe,
carries out changes, and puts the cluster into five situations, of which the overview alone must tell the cause and the
next step. Screenshots are in `build/console`. Needs the extra `console`, and Chromium (Debian: `chromium`).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import pathlib
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import bookies
from bookies.admin.cluster import LocalCluster
from bookies.protocol.rights.users import hash_of

TOKEN = "bk_console-test"
PATIENCE_S = 45.0
SPARK_MS = 600_000  # for a job on a busy machine
NODES_MAX = 6000  # elements of a page, whatever the cluster has
DEVICES: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light", "has_touch": True},
}
SETTINGS = {
    "journal_preallocate_size": 1 << 20,
    "index_cache_size": 1 << 20,
    "write_cache_size": 4 << 20,
    "http_port": 0,
    "auto_recovery": True,
    "gc_interval_ms": 600_000,
    "scrub_period_ms": 1_000_000_000,
    "disk_usage_size_max": 0,
    "disk_check_interval_ms": 500,
}


def until(page: Any, condition: str) -> None:
    """Wait for a condition in the page, whose policy forbids Playwright's own way, which evaluates text."""
    deadline = time.monotonic() + PATIENCE_S
    while not page.evaluate(f"Boolean({condition})"):
        assert time.monotonic() < deadline, condition
        page.wait_for_timeout(50)


class Console:
    """A cluster, and a browser that is signed in at its first bookie."""

    def __init__(self, folder: pathlib.Path, browser: Any, pictures: pathlib.Path) -> None:
        self.pictures = pictures
        self.browser = browser
        users = folder / "users"
        users.write_text(f"ada administrator {hash_of(TOKEN)}\n")
        settings = SETTINGS | {"users_file": str(users), "http_jobs_directory": str(folder / "jobs")}
        self.cluster = LocalCluster(folder / "bk-data", 4, lease_ms=3000, settings=settings)
        self.cluster.start()
        self.sealed, self.markup = write(self.cluster)
        self.cluster.stop()  # The entries are in entry logs then.
        self.cluster.start()
        self.problems: list[str] = []
        self.page = self.signed_in("light")

    @property
    def url(self) -> str:
        (path,) = pathlib.Path(self.cluster.bookies[0].directory).rglob("control.json")
        host, port = json.loads(path.read_text())["http"]
        return f"http://{host}:{port}"

    def signed_in(self, device: str) -> Any:
        """Return a page of a new browser, which has signed in by its form."""
        page = self.browser.new_context(**DEVICES[device], reduced_motion="reduce").new_page()
        page.on("pageerror", lambda error: self.problems.append(f"script: {error}"))
        page.on("console", lambda message: self._noted(message))
        page.on("request", lambda request: request.url.startswith(self.url) or self.problems.append(request.url))
        page.goto(f"{self.url}/console")
        page.get_by_label("Token").fill(TOKEN)
        page.keyboard.press("Enter")
        page.wait_for_selector("h1.sentence")
        assert TOKEN not in page.url
        return page

    def _noted(self, message: Any) -> None:
        # Chromium reports each answer above 399 as an error; the console shows those itself.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.problems.append(f"console: {message.text}")

    def open(self, path: str, page: Any = None) -> Any:
        """Go to a page of the console, and wait until it has loaded."""
        page = page or self.page
        page.evaluate("path => { location.hash = path }", path)
        until(
            page, "document.querySelector('main h1') && !document.querySelector('main').textContent.includes('Loading')"
        )
        return page

    def picture(self, name: str, page: Any = None) -> None:
        (page or self.page).screenshot(path=str(self.pictures / f"{name}.png"), full_page=True)

    def part(self, name: str, check: Callable[..., None], *arguments: object) -> None:
        """Run one part of the checks. Its failure is a problem, and the others go on."""
        began, before = time.monotonic(), len(self.problems)
        try:
            check(self, *arguments)
        except Exception as error:  # noqa: BLE001
            self.picture(f"failed-{name}")
            self.problems.append(f"{name}: {type(error).__name__}: {error}"[:1500])
        print(f"-- {name}: {time.monotonic() - began:.1f} s", *self.problems[before:], sep="\n", flush=True)

    def until_sentence(self, *words: str) -> str:
        """Wait until the overview names all of these words, and return its text."""
        self.open("/")
        deadline = time.monotonic() + PATIENCE_S
        while True:
            text = str(self.page.inner_text("main"))
            if all(word.lower() in text.lower() for word in words):
                return text
            if time.monotonic() > deadline:
                self.picture("missing")
                raise AssertionError(f"the overview lacks one of {words}:\n{text}")
            self.page.wait_for_timeout(500)

    def set(self, **values: object) -> None:
        """Change settings of the first bookie, as the console does."""
        body = {"set": [f"{name}={value}" for name, value in values.items()]}
        answer = self.page.evaluate(
            "([body, token]) => fetch('/api/v1/bookies/-/settings', {method: 'PATCH', body: JSON.stringify(body),"
            " headers: {Authorization: `Bearer ${token}`}}).then(answer => answer.status)",
            [body, TOKEN],
        )
        assert answer == 200, values

    def confirm(self, label: str, **fields: str) -> str:
        """Carry out a change by its button and dialog. Returns what the dialog announced."""
        self.page.get_by_role("button", name=f"{label} ...").first.click()
        dialog = self.page.locator("dialog")
        for name, value in fields.items():
            field = dialog.locator(f"[name={name}]")
            if field.get_attribute("type") == "checkbox":
                field.check()
            else:
                field.fill(value)
        dialog.locator("[type=submit]:enabled").wait_for()
        if dialog.locator("[type=submit]").inner_text() == "Show what will happen":
            dialog.locator("[type=submit]").click()
            dialog.locator(".report").wait_for()
        announced = str(dialog.inner_text())
        dialog.locator("[type=submit]:enabled").click()
        dialog.get_by_text("Done.", exact=True).wait_for()
        dialog.locator("[type=submit]").click()
        dialog.wait_for(state="hidden")
        return announced


def write(cluster: LocalCluster) -> tuple[int, int]:
    """Write ledgers and a log with cursors. Returns a sealed ledger, and one whose first entry is markup."""
    with bookies.blocking.connect(cluster.metadata_uri) as store:
        for number in range(30):
            with store.create(ensemble=3, write_quorum=3, ack_quorum=2, labels={"app": f"shop-{number % 3}"}) as ledger:
                ledger.append_many([json.dumps({"order": row, "sum": row * 1.5}).encode() for row in range(200)])
                ledger.seal()
        sealed = ledger.ledger_id
        with store.create(ensemble=3, write_quorum=2, ack_quorum=2, labels={"app": "text"}) as ledger:
            ledger.append_many([b"<script>document.title = 'owned'</script>", b"\xff\x00\x01binary", b"x" * 5000])
            ledger.seal()
        log = store.log("orders")
        log.create()
        with log.lead() as writer:
            first = writer.append(b"first")
            writer.append_many([b"more"] * 500)
        log.move_cursor("billing", first)
    return sealed, ledger.ledger_id


def check_pages(console: Console, sealed: int, markup: int, device: str) -> None:
    """Visit every page in one form, and check it with axe."""
    from axe_playwright_python.sync_playwright import Axe

    pages = {
        "overview": "/",
        "bookies": "/bookies",
        "bookie": "/bookies/b1",
        "other-bookie": "/bookies/b2",
        "ledgers": "/ledgers",
        "ledger": f"/ledgers/{sealed}",
        "entries": f"/ledgers/{markup}/entries",
        "entries-json": f"/ledgers/{sealed}/entries?form=json",
        "entries-hex": f"/ledgers/{markup}/entries?form=hex",
        "tail": f"/ledgers/{sealed}/entries?tail=true",
        "logs": "/logs",
        "log": "/logs/orders",
        "recovery": "/recovery",
        "plots": "/process",
        "settings": "/settings",
        "jobs": "/jobs",
        "changes": "/changes",
        "nothing": "/nothing",
    }
    page = console.page if device == "light" else console.signed_in(device)
    for name, path in pages.items():
        console.open(path, page)
        console.picture(f"{name}-{device}", page)
        if "the console has failed" in page.inner_text("main"):
            console.problems.append(f"{name} on {device}: {page.inner_text('main')[:300]}")
        if page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth + 1"):
            console.problems.append(f"{name} on {device} is wider than the window")
        for violation in Axe().run(page).response["violations"]:
            nodes = [node["target"] for node in violation["nodes"][:3]]
            console.problems.append(f"axe: {name} on {device}: {violation['impact']} {violation['id']}: {nodes}")
    console.open(f"/ledgers/{markup}/entries")
    assert "<script>document.title" in console.page.inner_text("main")
    assert "owned" not in console.page.title()


def check_keys(console: Console) -> None:
    """Move by the keyboard alone."""
    page = console.open("/")
    page.keyboard.press("g")
    page.keyboard.press("l")
    until(page, "document.querySelector('h1')?.textContent === 'Ledgers'")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.type") == "search"
    page.keyboard.press("Escape")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("?")
    page.locator("dialog[open]").wait_for()
    page.keyboard.press("Escape")
    page.locator("dialog").wait_for(state="hidden")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement !== document.body")


def check_changes(console: Console, sealed: int) -> None:
    """Carry out changes: each announces what will happen."""
    page = console.open("/settings")
    page.get_by_label("Name or meaning").fill("gc_share_max")
    announced = console.confirm("Change", value="21")
    assert "21" in announced, announced
    page.get_by_text("run time").first.wait_for()
    console.open("/bookies/b1")
    console.confirm("Make read-only")
    console.until_sentence("bookie b1", "operator made it read-only")
    console.open("/bookies/b1")
    console.confirm("Make writable")
    for label in ("Collect garbage", "Compact", "Suspend compaction", "Resume compaction", "Start the scrub"):
        console.confirm(label)
    assert "ack quorum" in console.confirm("Announce maintenance", duration="5m", reason="a test", force="yes")
    console.confirm("End maintenance")
    console.open("/recovery")
    for label in ("Disable repairs", "Enable repairs", "Audit now"):
        console.confirm(label)
    console.confirm("Change the delay", seconds="5")
    console.open(f"/ledgers/{sealed}")
    page.get_by_role("button", name="Check the replicas").click()
    page.get_by_text("Fully replicated").first.wait_for()
    console.picture("ledger-checked")
    page.get_by_label("Entry id").fill("7")
    page.get_by_role("button", name="Explain it").click()
    page.get_by_text("About entry 7").first.wait_for()
    assert "would delete ledger" in console.confirm("Delete")


def check_spark_jobs(console: Console) -> None:
    """Start a job on Spark by its form: the forecast, the dry run, the report."""
    page = console.open("/jobs")
    page.locator("[name=job]").select_option("compact")
    page.locator("[name=log]").fill("no such log")
    page.get_by_role("button", name="Make the forecast").click()
    page.get_by_text("ended with status 2").first.wait_for(timeout=SPARK_MS)
    console.picture("job-failed")
    console.open("/jobs")
    page.locator("[name=job]").select_option("scrub")
    page.locator("[name=level]").select_option("1")
    page.get_by_role("button", name="Make the forecast").click()
    page.get_by_role("button", name="Carry out ...").wait_for(timeout=SPARK_MS)
    console.picture("job-forecast")
    assert "nothing was done" in console.confirm("Carry out")
    page.get_by_role("link", name="scrub, run").first.click()
    page.get_by_role("heading", name="Read and written").wait_for(timeout=SPARK_MS)
    console.picture("job-report")
    with page.expect_download() as download:
        page.get_by_role("button", name="Download the report").click()
    assert download.value.path().read_text().startswith("<!doctype html>")


def answered(body: object, headers: dict[str, str]) -> Callable[[Any], None]:
    """Return a route of Playwright that answers with this JSON."""
    return lambda route: route.fulfill(json=body, headers=headers)


def check_sizes(console: Console) -> None:
    """Show pages of lists with ten thousand bookies and a million ledgers."""
    bookie = {"mode": "writable", "address": "10.0.0.1:3181", "location": "/r1", "maintenance": None, "draining": None}
    rows = [bookie | {"bookie": f"b{number:05}", "disk_total": 1 << 40, "disk_free": 1 << 39} for number in range(100)]
    ledger = {"state": "CLOSED", "ensemble": 3, "write_quorum": 3, "ack_quorum": 2, "digest": "crc32c", "length": 9}
    ledger |= {"last_entry": 8, "created_ms": 0, "labels": {"app": "x"}, "fragments": [{}]}
    lists = {
        "/bookies": ("**/api/v1/bookies?*", rows),
        "/ledgers": ("**/api/v1/ledgers?*", [ledger | {"ledger": 999_000 + number} for number in range(100)]),
    }
    many = [{"first_entry": n * 10, "bookies": ["b1", "b2", "b3"], "findings": []} for n in range(5000)]
    huge = ledger | {"ledger": 5, "fragments": many}
    for path, (pattern, answer) in lists.items():
        link = {"Link": f'</api/v1{path}?after=100>; rel="next"'}
        console.page.route(pattern, answered(answer, link))
        began = time.monotonic()
        page = console.open(path)
        assert page.locator("[rel=next]").count() == 1
        assert time.monotonic() - began < 5, path
        assert page.evaluate("document.querySelectorAll('*').length") < NODES_MAX
    console.page.route("**/api/v1/ledgers/5", answered(huge, {}))
    page = console.open("/ledgers/5")
    assert page.evaluate("document.querySelectorAll('*').length") < NODES_MAX
    console.picture("ledger-of-many-fragments")
    console.page.unroute_all()


# -- situations --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def full_disk(console: Console) -> Iterator[tuple[str, ...]]:
    """Bookie b1 takes its disk for full."""
    names = ("disk_usage_warn_threshold", "disk_usage_lwm_threshold", "disk_usage_threshold")
    console.set(disk_usage_warn_threshold=1, disk_usage_lwm_threshold=0, disk_usage_threshold=1)
    yield "bookie b1", "full"
    console.set(**dict(zip(names, (90, 93, 95), strict=True)))


@contextlib.contextmanager
def drain(console: Console) -> Iterator[tuple[str, ...]]:
    """Bookie b3 is being drained, by the console."""
    console.open("/bookies/b3")
    announced = console.confirm("Empty it")
    assert "to copy" in announced, announced
    yield "b3 is being drained", "bk bookie drain b3"
    console.open("/recovery")
    console.picture("recovery-drain")
    console.open("/bookies/b3")
    console.confirm("Cancel emptying")


@contextlib.contextmanager
def damaged_ledger(console: Console) -> Iterator[tuple[str, ...]]:
    """Bits of an entry log of b1 have changed, and the scrub finds it."""
    logs = pathlib.Path(console.cluster.bookies[0].directory, "ledgers", "current").glob("*.log")
    log = max(logs, key=lambda path: path.stat().st_size)
    data = log.read_bytes()
    at = data.find(b'{"order": 100')
    assert at > 0
    with open(log, "r+b") as file:
        file.seek(at)
        file.write(b"?" * 8)
    console.open("/bookies/b1")
    console.confirm("Start the scrub")
    yield "damaged", "bk ledger repair"


@contextlib.contextmanager
def lost_bookie(console: Console) -> Iterator[tuple[str, ...]]:
    """Bookie b4 has been killed."""
    console.cluster.bookies[3].send(signal.SIGKILL)
    console.cluster.bookies[3].wait(10)
    yield "bookie b4 is down", "start it"
    console.open("/recovery")
    console.picture("recovery-lost")
    console.cluster.start()


@contextlib.contextmanager
def no_metadata(console: Console) -> Iterator[tuple[str, ...]]:
    """Another process holds the metadata store."""
    path = pathlib.Path(console.cluster.directory, "metadata", "metadata.db")
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as store:
        store.execute("BEGIN EXCLUSIVE")
        yield "state of the cluster is unknown", "did not answer", "check the servers"
        store.execute("ROLLBACK")


Situation = Callable[[Console], contextlib.AbstractContextManager[tuple[str, ...]]]
SITUATIONS: tuple[Situation, ...] = (
    full_disk,
    drain,
    damaged_ledger,
    lost_bookie,
    no_metadata,
)


def check_situation(console: Console, situation: Situation) -> None:
    """The overview must tell what is wrong and what to do."""
    with situation(console) as words:
        console.until_sentence(*words)
        console.picture(f"situation-{situation.__name__}")
        print(f"{situation.__name__}: {console.page.inner_text('h1')}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="make console", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--browser", default=shutil.which("chromium") or shutil.which("google-chrome"))
    parser.add_argument("--pictures", type=pathlib.Path, default=pathlib.Path("build/console"))
    arguments = parser.parse_args()
    from playwright.sync_api import sync_playwright

    arguments.pictures.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=arguments.browser, args=["--no-sandbox"])
        console = Console(pathlib.Path(folder), browser, arguments.pictures)
        try:
            sealed, markup = console.sealed, console.markup
            console.part("pages", check_pages, sealed, markup, "light")
            console.part("keys", check_keys)
            for situation in SITUATIONS[:3]:
                console.part(situation.__name__, check_situation, situation)
            console.part("changes", check_changes, sealed)
            console.part("Spark jobs", check_spark_jobs)
            console.part("sizes", check_sizes)
            for device in ("dark", "phone"):
                console.part(f"pages on {device}", check_pages, markup, markup, device)
            for situation in SITUATIONS[3:]:
                console.part(situation.__name__, check_situation, situation)
        finally:
            console.cluster.stop()
            browser.close()
    return int(bool(console.problems))


if __name__ == "__main__":
    sys.exit(main())
