"""The scripts that complete `bk`, as a shell runs them."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from bookies.admin import cli


@pytest.fixture(scope="module")
def script() -> str:
    import contextlib
    import io

    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert cli.main(["completion", "bash"]) == 0
    return out.getvalue()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("bk le", {"ledger"}),
        ("bk ledger li", {"list"}),
        ("bk ledger list", {"list"}),
        ("bk ledger list --st", {"--state"}),
        ("bk ledger list --state o", {"open"}),
        ("bk status --c", {"--count", "--config"}),
        ("bk completion f", {"fish"}),
        ("bk context ", {"add", "use", "list", "remove"}),
    ],
)
def test_bash_completes(script: str, line: str, expected: set[str]) -> None:
    words = line.split(" ")
    array = " ".join(f"'{word}'" for word in words)
    program = f"{script}\nCOMP_WORDS=({array}); COMP_CWORD={len(words) - 1}; _bk; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert set(done.stdout.split()) == expected


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_accept_their_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "ledger" in script
    if shutil.which(shell):
        subprocess.run([shell, "-n", "/dev/stdin"], input=script, text=True, timeout=60, check=True)
