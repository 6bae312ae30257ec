"""The example about flights, with the first days of the year: what `make example` runs."""

from __future__ import annotations

import os
import pathlib
import re
import signal
import subprocess
import sys
import xml.etree.ElementTree

import pytest

import bookies as bk

pytestmark = [pytest.mark.live, pytest.mark.spark]
PROGRAM = pathlib.Path(__file__).parents[2] / "examples" / "flights" / "pipeline.py"
PATIENCE_S = 300


@pytest.mark.long
def test_three_days_of_flights(tmp_path: pathlib.Path) -> None:
    words = [str(PROGRAM), "--days", "3", "--seconds", "3", "--output", str(tmp_path / "flights.svg")]
    package = str(pathlib.Path(bk.__file__).parents[1])
    process = subprocess.Popen(
        [sys.executable, *words],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": package, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        out, err = process.communicate(timeout=PATIENCE_S)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)  # It ends its bookies, its writer and Java.
            process.communicate()
    assert process.returncode == 0, out + err
    assert re.search(r"compared with the whole year computed directly: 0 hours twice, 0 different", out)
    assert "the query is stopped, and started again from its checkpoint" in err
    picture = xml.etree.ElementTree.parse(tmp_path / "flights.svg").getroot()
    texts = [each.text for each in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert any("2,699 flights" in (text or "") for text in texts), texts
