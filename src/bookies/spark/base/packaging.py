"""The package as one file that Spark carries to machines where it is not installed. Source: spark 6.2.

Pure Python: without the compiled kernels everything works, slower. The machines need PyArrow, google-crc32c
and msgspec.
"""

from __future__ import annotations

import pathlib
import zipfile

from bookies.errors import ConfigError

TIMESTAMP = (1980, 1, 1, 0, 0, 0)  # of every member: the same files make the same archive


def package(path: str) -> int:
    """Write the archive for `spark-submit --py-files` and `addPyFile`, and return its bytes. Raises `ConfigError`.

    Spark checks the name: it has to end in .zip.
    """
    if not path.endswith(".zip"):
        raise ConfigError(
            f"{path}: Spark puts only names that end in .zip, .egg or .py on the path; name it {path}.zip"
        )
    root = pathlib.Path(__file__).parents[2]
    files = [*sorted(root.rglob("*.py")), root.parent / "pyspark_bookkeeper.py"]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in files:
            name = file.relative_to(root.parent).as_posix()
            member = zipfile.ZipInfo(name, TIMESTAMP)
            member.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(member, file.read_bytes())
    return pathlib.Path(path).stat().st_size
