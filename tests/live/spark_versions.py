"""The tests of batches, streams and the sink with each version of PySpark: `make spark-versions`.

A version has a small environment that holds PySpark, and uses all other packages of this one. What a version lacks is
marked in the tests with `needs_spark`, so every test passes or says which version it needs.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import subprocess
import sys
import sysconfig

VERSIONS = ("4.0", "4.1", "4.2", "4.3")
TESTS = (
    "test_spark.py",
    "test_spark_sink.py",
    "test_spark_stream.py",
    "test_spark_tables.py",
    "test_spark_versions.py",
)
HERE = pathlib.Path(__file__).parent


def environment(version: str) -> pathlib.Path:
    """Make the environment of a version unless it is there; return its interpreter."""
    folder = pathlib.Path(f"{sys.prefix}-spark-{version}")
    python, done = folder / "bin" / "python", folder / ".done"
    if not done.exists():
        print(f"installing PySpark {version} ...", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        names = {"base": str(folder), "platbase": str(folder)}
        packages = pathlib.Path(sysconfig.get_path("purelib", vars=names))
        (packages / "others.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
        words = ["-m", "pip", "--python", str(python), "install", "-q", "--no-compile", "--ignore-installed"]
        subprocess.run([sys.executable, *words, f"pyspark=={version}.*"], check=True)
        done.touch()
    return python


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--versions", default=",".join(VERSIONS))
    parser.add_argument("words", nargs="*", help="for pytest, after --")
    chosen = parser.parse_args()
    outcomes = {}
    for version in chosen.versions.split(","):
        variables = {name: value for name, value in os.environ.items() if name not in ("SPARK_HOME", "PYSPARK_PYTHON")}
        words = [
            "-m",
            "pytest",
            "-q",
            "-n",
            "0",
            "-m",
            "spark or versions",
            *(str(HERE / name) for name in TESTS),
            *chosen.words,
        ]
        done = subprocess.run([environment(version), *words], env=variables, check=False)
        outcomes[version] = done.returncode
    for version, code in outcomes.items():
        print(f"PySpark {version}: {'passed' if code == 0 else 'failed'}")
    return max(outcomes.values())


if __name__ == "__main__":
    sys.exit(main())
