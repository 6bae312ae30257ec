"""Write the pages that come from the code: docs/cli.md (from --help) and docs/settings.md (from the dataclasses).

`python docs/generate.py --check` only says whether they are current (tests/unit/test_docs.py does).
"""

from __future__ import annotations

import argparse
import importlib
import os
import pathlib
import sys
from dataclasses import fields

HERE = pathlib.Path(__file__).parent


def cli_page() -> str:
    """Every noun and verb with its help."""
    from bookies.admin import cli

    os.environ["COLUMNS"] = "110"
    parts = ["# The command `bk`\n\nMade from `--help` by `make docs`.\n", f"```\n{cli._overview()}\n```\n"]
    for noun, (module_name, text) in cli.COMMANDS.items():
        parser = argparse.ArgumentParser(
            prog=f"bk {noun}", description=text, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        parser.set_defaults(noun=noun)
        importlib.import_module(module_name).configure(parser)
        parts.append(f"## bk {noun}\n\n```\n{parser.format_help()}```\n")
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for verb, each in action.choices.items():
                    parts.append(f"### bk {noun} {verb}\n\n```\n{each.format_help()}```\n")
    return "\n".join(parts)


def settings_page() -> str:
    """Every setting with unit, default, range."""
    from bookies.config import BookieConfig, ClientConfig

    parts = [
        "# Settings\n\nMade from the code by `make docs`. A bookie takes them as `--set NAME=VALUE`, from the "
        "environment as `BK_NAME`; a client as keyword arguments of `connect`.\n"
    ]
    for title, kind in (("Bookie", BookieConfig), ("Client", ClientConfig)):
        parts.append(f"## {title}\n\n| setting | default | range | meaning |\n|---|---|---|---|")
        for each in fields(kind):
            low, high = each.metadata["low"], each.metadata["high"]
            bounds = f"{'' if low is None else f'{low:,}'} .. {'' if high is None else f'{high:,}'}".strip()
            default = f"{each.default:,}" if isinstance(each.default, int) else f"`{each.default!r}`"
            parts.append(
                f"| `{each.name}` | {default} | {'' if bounds == '..' else bounds} | {each.metadata['help']} |"
            )
        parts.append("")
    return "\n".join(parts)


PAGES = {"cli.md": cli_page, "settings.md": settings_page}


def main() -> int:
    stale = [name for name, page in PAGES.items() if not (HERE / name).exists() or (HERE / name).read_text() != page()]
    if "--check" in sys.argv:
        print("\n".join(f"docs/{name} is not current: make docs" for name in stale))
        return int(bool(stale))
    for name in stale:
        (HERE / name).write_text(PAGES[name]())
        print(f"wrote docs/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
