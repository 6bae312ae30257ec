"""`bk completion`: scripts that complete nouns, verbs, options and values in a shell, made from the parsers."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import NamedTuple

from bookies.admin.shared.command_line import MACHINE, Option, verb
from bookies.admin.shared.nouns import COMMANDS, parser_of
from bookies.admin.shared.report import Report

SHELLS = ("bash", "zsh", "fish")
_BASH = """_bk() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} words=
    local noun=${COMP_WORDS[1]} verb=${COMP_WORDS[2]}
    case "$COMP_CWORD:$noun:$verb:$prev" in
%s
    esac
    COMPREPLY=( $(compgen -W "$words" -- "$cur") )
}
complete -o bashdefault -o default -F _bk bk"""


class Words(NamedTuple):
    """Words that may follow at one place of a command line.

    `verb`: empty for a noun without verbs. `option`: empty if the words are verbs or options, else they are its values.
    """

    noun: str
    verb: str
    option: str
    words: tuple[str, ...]

    @property
    def is_verbs(self) -> bool:
        """Report whether the words are the verbs of a noun."""
        return not self.verb and not self.option and "--help" not in self.words


def _words() -> Iterator[Words]:
    for noun in COMMANDS:
        parser = parser_of(noun)
        groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
        for group in groups:
            yield Words(noun, "", "", tuple(group.choices))
            for word, verb_parser in group.choices.items():
                yield from _options(noun, word, verb_parser)
        if not groups:
            yield from _options(noun, "", parser)


def _options(noun: str, word: str, parser: argparse.ArgumentParser) -> Iterator[Words]:
    names = [name for name in parser._option_string_actions if name.startswith("--")]
    plain = [str(choice) for action in parser._actions if not action.option_strings for choice in action.choices or ()]
    yield Words(noun, word, "", (*names, *plain))
    for action in parser._actions:
        for name in action.option_strings:
            if action.choices:
                yield Words(noun, word, name, tuple(map(str, action.choices)))


def _bash() -> str:
    # The first pattern that fits counts: verbs, values of options, options.
    rows = sorted(_words(), key=lambda row: (not row.is_verbs, not row.option))
    lines = [f'        1:*) words="{" ".join(COMMANDS)}" ;;']
    for row in rows:
        noun, word, option, words = row
        count = "2" if row.is_verbs else "*"
        lines.append(f'        {count}:{noun}:{word or "*"}:{option or "*"}) words="{" ".join(words)}" ;;')
    return _BASH % "\n".join(lines)


def _fish() -> str:
    lines = ["complete -c bk -n __fish_use_subcommand -f"]
    for noun, (_, text) in COMMANDS.items():
        lines.append(f"complete -c bk -n __fish_use_subcommand -a {noun} -d {_quoted(text)}")
    for noun, word, option, words in _words():
        seen = f"__fish_seen_subcommand_from {noun}" + (f"; and __fish_seen_subcommand_from {word}" if word else "")
        values = _quoted(" ".join(words))
        if option:
            lines.append(f"complete -c bk -n {_quoted(seen)} -l {option.lstrip('-')} -x -a {values}")
        else:
            lines.append(f"complete -c bk -n {_quoted(seen)} -a {values}")
    return "\n".join(lines)


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _run(arguments: argparse.Namespace) -> Report:
    if arguments.shell == "fish":
        text = _fish()
    else:
        text = _bash()
        if arguments.shell == "zsh":
            text = f"autoload -U +X bashcompinit && bashcompinit\n{text}"
    return Report({"shell": arguments.shell, "script": text}, [text])


VERBS = (
    verb(
        "completion",
        "print the script that completes `bk` in a shell",
        'examples:  eval "$(bk completion bash)"\n           bk completion fish > ~/.config/fish/completions/bk.fish',
        _run,
        Option("shell", "bash, zsh or fish", choices=SHELLS),
        shared=MACHINE,
    ),
)
