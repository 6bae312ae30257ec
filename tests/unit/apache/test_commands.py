"""`bk help apache`: every command of Apache's has a row, and every command of ours that it names is there."""

from __future__ import annotations

import argparse
import json

import pytest

from bookies.admin import cli
from bookies.apache.commands import HTTP, SHELL

# What Apache's shell of 4.17 lists, and its router.
THEIR_SHELL = (
    "activeledgers autorecovery bookieformat bookieinfo bookiesanity check-db-ledgers-index clusterinfo "
    "convert-to-db-storage convert-to-interleaved-storage cookie_create cookie_delete cookie_generate cookie_get "
    "cookie_update decommissionbookie deleteledger endpointinfo forceauditchecks help initbookie initnewcluster "
    "lastmark ledger ledgermetadata listbookies listfilesondisc listledgers listunderreplicated localconsistencycheck "
    "lostbookierecoverydelay metaformat nukeexistingcluster queryautorecoverystatus readjournal readledger readlog "
    "readlogmetadata rebuild-db-ledger-locations-index rebuild-db-ledgers-index recover "
    "regenerate-interleaved-storage-index-file simpletest triggeraudit updateBookieInLedger updatecookie updateledgers "
    "whatisinstanceid whoisauditor"
)


def test_every_command_of_apaches_has_a_row() -> None:
    assert [each.theirs for each in SHELL] == THEIR_SHELL.split()
    assert len({each.theirs for each in HTTP}) == len(HTTP) == 30


def test_every_command_of_the_shell_is_answered() -> None:
    assert [each.theirs for each in SHELL if not each.ours] == []
    assert [each.theirs for each in HTTP if not each.ours and not each.note] == []


@pytest.mark.parametrize("command", sorted({each.ours for each in (*SHELL, *HTTP) if each.ours}))
def test_every_command_it_names_exists(command: str) -> None:
    program, noun, *verbs = command.split()
    assert program == "bk"
    if noun == "help":
        assert verbs == ["apache"]
        return
    parser = cli.parser_of(noun)
    known = [
        verb for action in parser._actions if isinstance(action, argparse._SubParsersAction) for verb in action.choices
    ]
    assert verbs == [] or (len(verbs) == 1 and verbs[0] in known)


def test_it_prints_all_or_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["help", "apache"]) == 0
    printed = capsys.readouterr().out
    assert "initnewcluster" in printed
    assert "/api/v1/bookie/entry_location_compact" in printed
    assert "/api/v1/bookie/gc " in printed
    assert cli.main(["help", "apache", "--json", "lastmark"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"theirs": "lastmark", "ours": "bk inspect lastmark", "note": ""}]
    assert cli.main(["help", "apache", "lastmarks"]) == 2
    assert "did you mean lastmark?" in capsys.readouterr().err


def test_help_of_a_noun(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["help", "metadata"])
    assert ended.value.code == 0
    assert "usage: bk metadata" in capsys.readouterr().out
    assert cli.main(["help", "nonsense"]) == 2
