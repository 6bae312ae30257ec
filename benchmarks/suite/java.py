"""Apache's jars and the command lines of its JVMs.

Needs Java 17 and, the first time, Maven; the jars stay in `$BOOKIES_APACHE_CACHE` (default: in the user's cache
directory). Bookies and clients have the collector, pause target and direct memory of Apache's own scripts.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess

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
    """Fetch the jars and compile what is ours, when that was not done before."""
    lib, classes = cache() / "lib", cache() / "classes"
    for program, needed in (("java", True), ("mvn", not (lib / "complete").exists())):
        if needed and shutil.which(program) is None:
            raise SystemExit(f"measuring Apache BookKeeper needs `{program}`, which is not in PATH")
    if not (lib / "complete").exists():
        lib.mkdir(parents=True, exist_ok=True)
        pom = cache() / "pom.xml"
        pom.write_bytes((HERE / "pom.xml").read_bytes())
        copy = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={lib}"]
        subprocess.run(copy, check=True)
        (lib / "complete").touch()
    sources = sorted(HERE.glob("*.java"))
    compiled = [classes / source.with_suffix(".class").name for source in sources]
    newest = max(source.stat().st_mtime for source in sources)
    if any(not each.exists() or each.stat().st_mtime < newest for each in compiled):
        classes.mkdir(parents=True, exist_ok=True)
        command = ["javac", "-nowarn", "-cp", f"{lib}/*", "-d", str(classes), *map(str, sources)]
        subprocess.run(command, check=True)


def java(main: str, *words: str, heap: tuple[str, str] = ("512m", "1g")) -> list[str]:
    path = f"{cache() / 'classes'}:{cache() / 'lib'}/*"
    log = f"-Dlog4j2.configurationFile={HERE / 'log4j2.properties'}"
    return ["java", log, f"-Xms{heap[0]}", f"-Xmx{heap[1]}", *JVM, *OPEN, "-cp", path, main, *words]
