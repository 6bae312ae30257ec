"""Apache's jars and the command lines of its JVMs.

Needs Java 17 and, the first time, Maven; the jars stay in `$BOOKIES_APACHE_CACHE` (default: in the user's cache
directory). Bookies and clients have the collector, pause target and direct memory of Apache's own scripts.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess

from benchmarks.suite import ending

HERE = pathlib.Path(__file__).parent.parent / "apache"
JVM = (
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=10",
    "-XX:MaxDirectMemorySize=1g",
    "-Dio.netty.leakDetectionLevel=disabled",
)
OPEN = ("--add-opens", "java.base/java.nio=ALL-UNNAMED", "--add-opens", "java.base/java.util.zip=ALL-UNNAMED")


def cache() -> pathlib.Path:
    base = os.environ.get("BOOKIES_APACHE_CACHE")
    return pathlib.Path(base) if base else pathlib.Path.home() / ".cache" / "bookies" / "apache-4.17.3"


def prepare() -> None:
    """Fetch the jars and compile what is ours, when that was not done before. Else one sentence and exit status 2."""
    lib, classes = cache() / "lib", cache() / "classes"
    sources = sorted(HERE.glob("*.java"))
    compiled = [classes / source.with_suffix(".class").name for source in sources]
    newest = max(source.stat().st_mtime for source in sources)
    is_old = any(not each.exists() or each.stat().st_mtime < newest for each in compiled)
    has_jars = (lib / "complete").exists()
    for program, needed in (("java", True), ("mvn", not has_jars), ("javac", is_old)):
        if needed and shutil.which(program) is None:
            ending.give_up(f"measuring Apache BookKeeper needs `{program}`, which is not in PATH")
    try:
        if not has_jars:
            lib.mkdir(parents=True, exist_ok=True)
            pom = cache() / "pom.xml"
            pom.write_bytes((HERE / "pom.xml").read_bytes())
            copy = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={lib}"]
            _run(copy, "Maven could not fetch Apache BookKeeper's jars")
            (lib / "complete").touch()
        if is_old:
            classes.mkdir(parents=True, exist_ok=True)
            command = ["javac", "-nowarn", "-cp", f"{lib}/*", "-d", str(classes), *map(str, sources)]
            _run(command, f"javac could not compile the programs in {HERE}")
    except OSError as error:
        ending.give_up(f"{cache()}: {error.strerror or error}; BOOKIES_APACHE_CACHE says where else to keep jars")


def _run(command: list[str], failure: str) -> None:
    """What it says goes to a file beside the jars, which the sentence names when it fails."""
    log = cache() / f"{command[0]}.log"
    with open(log, "wb") as said:
        status = subprocess.run(command, stdout=said, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL).returncode
    if status:
        ending.give_up(f"{failure} (exit status {status}); what it said is in {log}")


def java(main: str, *words: str, heap: tuple[str, str] = ("512m", "1g")) -> list[str]:
    path = f"{cache() / 'classes'}:{cache() / 'lib'}/*"
    log = f"-Dlog4j2.configurationFile={HERE / 'log4j2.properties'}"
    return ["java", log, f"-Xms{heap[0]}", f"-Xmx{heap[1]}", *JVM, *OPEN, "-cp", path, main, *words]
