"""Apache's shell commands and HTTP endpoints, of 4.17, with their counterparts here: `bk help apache`.

With `http_port` a bookie also serves nearly all of these endpoints: docs/reference/http.md.

Each of Apache's shell commands is listed beside its counterpart. An empty `ours` means that none is due, for the
reason in the note.
"""

from __future__ import annotations

from msgspec import Struct

NOT_DUE = "-"  # there is nothing to do


class Counterpart(Struct, frozen=True):
    """A command or endpoint of Apache's. `ours`: the `bk` command, empty for none. `note`: the difference."""

    theirs: str
    ours: str
    note: str = ""


SHELL = (
    Counterpart("activeledgers", "bk inspect entrylog", "--summary; bk bookie why-not-deleted FILE while it runs"),
    Counterpart("autorecovery", "bk recovery enable", "and disable; bk recovery status"),
    Counterpart("bookieformat", "bk bookie format"),
    Counterpart("bookieinfo", "bk status"),
    Counterpart("bookiesanity", "bk bookie test", "bk doctor checks machine, disks and cluster"),
    Counterpart("check-db-ledgers-index", "bk bookie convert", "--dry-run looks up every entry"),
    Counterpart("clusterinfo", "bk cluster info"),
    Counterpart("convert-to-db-storage", "bk bookie convert", "--to rocksdb"),
    Counterpart("convert-to-interleaved-storage", "bk bookie convert", "--to index-files"),
    Counterpart("cookie_create", "bk cookie create"),
    Counterpart("cookie_delete", "bk cookie delete", "refuses while ledgers have entries on the bookie"),
    Counterpart("cookie_generate", "bk cookie generate"),
    Counterpart("cookie_get", "bk cookie get"),
    Counterpart("cookie_update", "bk cookie update"),
    Counterpart(
        "decommissionbookie",
        "bk bookie drain",
        "running or stopped; --remove deletes the cookie of a stopped bookie",
    ),
    Counterpart("deleteledger", "bk ledger delete"),
    Counterpart("endpointinfo", "bk bookie show"),
    Counterpart("forceauditchecks", "bk recovery audit", "--checks"),
    Counterpart("help", "bk help apache"),
    Counterpart("initbookie", "bk bookie run", "done by the first start, on empty directories only"),
    Counterpart("initnewcluster", "bk metadata init"),
    Counterpart("lastmark", "bk inspect lastmark"),
    Counterpart("ledger", "bk inspect index", "--ledger; without it, all ledgers of a directory"),
    Counterpart("ledgermetadata", "bk ledger show", "bk metadata dump and apply: to a file, and from one"),
    Counterpart("listbookies", "bk bookie list"),
    Counterpart("listfilesondisc", "bk inspect directory"),
    Counterpart("listledgers", "bk ledger list", "--bookie; --json prints the records"),
    Counterpart("listunderreplicated", "bk recovery list", "--missing, --not-missing; prints bookies and workers"),
    Counterpart("localconsistencycheck", "bk bookie repair", "--dry-run; bk bookie scrub while it runs"),
    Counterpart("lostbookierecoverydelay", "bk recovery delay"),
    Counterpart("metaformat", "bk metadata nuke", "then bk metadata init: the new cluster has another instance id"),
    Counterpart("nukeexistingcluster", "bk metadata nuke", "writes a dump first"),
    Counterpart("queryautorecoverystatus", "bk recovery status", "bk recovery list for ledgers"),
    Counterpart("readjournal", "bk inspect journal", "--records text prints payloads"),
    Counterpart("readledger", "bk ledger read", "--bookie reads from one bookie"),
    Counterpart("readlog", "bk inspect entrylog", "--ledger, --entries, --offsets, --records text"),
    Counterpart("readlogmetadata", "bk inspect entrylog"),
    Counterpart("rebuild-db-ledger-locations-index", "bk bookie repair", "builds index files from entry logs"),
    Counterpart("rebuild-db-ledgers-index", "bk bookie repair", "builds index files from entry logs"),
    Counterpart("recover", "bk bookie recover"),
    Counterpart("regenerate-interleaved-storage-index-file", "bk bookie repair", "builds index files from entry logs"),
    Counterpart("simpletest", "bk bookie test", "of several bookies; bk bench append measures"),
    Counterpart("triggeraudit", "bk recovery audit"),
    Counterpart("updateBookieInLedger", "bk bookie rename"),
    Counterpart("updatecookie", "bk cookie update", "a bookie keeps its name when it moves: --bookie-id OLDHOST:PORT"),
    Counterpart("updateledgers", "bk bookie rename", "a bookie that moves keeps its name, and needs no change"),
    Counterpart("whatisinstanceid", "bk metadata show"),
    Counterpart("whoisauditor", "bk recovery status"),
)

HTTP = (
    Counterpart("/heartbeat", "bk bookie state", "or /livez of the HTTP server"),
    Counterpart("/metrics", "bk bookie run", "--set http_port=8080 serves it"),
    Counterpart("/api/v1/config/server_config", "bk bookie run", "--dry-run prints the configuration"),
    Counterpart("/api/v1/ledger/delete", "bk ledger delete"),
    Counterpart("/api/v1/ledger/list", "bk ledger list"),
    Counterpart("/api/v1/ledger/metadata", "bk ledger show"),
    Counterpart("/api/v1/ledger/read", "bk ledger read"),
    Counterpart("/api/v1/bookie/list_bookies", "bk bookie list"),
    Counterpart("/api/v1/bookie/list_bookie_info", "bk status"),
    Counterpart("/api/v1/bookie/last_log_mark", "bk inspect lastmark"),
    Counterpart("/api/v1/bookie/list_disk_file", "bk inspect directory"),
    Counterpart("/api/v1/bookie/expand_storage", "bk bookie run", "start with allow_storage_expansion"),
    Counterpart("/api/v1/bookie/gc", "bk bookie gc"),
    Counterpart("/api/v1/bookie/gc_details", "bk bookie space"),
    Counterpart("/api/v1/bookie/gc/suspend_compaction", "bk bookie gc", "--suspend"),
    Counterpart("/api/v1/bookie/gc/resume_compaction", "bk bookie gc", "--resume"),
    Counterpart("/api/v1/bookie/state", "bk bookie state"),
    Counterpart("/api/v1/bookie/sanity", "bk doctor", "or the endpoint itself, as an operator"),
    Counterpart("/api/v1/bookie/state/readonly", "bk bookie read-only", "and bk bookie read-write"),
    Counterpart("/api/v1/bookie/is_ready", "bk bookie state"),
    Counterpart("/api/v1/bookie/info", "bk bookie disks"),
    Counterpart("/api/v1/bookie/cluster_info", "bk cluster info"),
    Counterpart("/api/v1/bookie/entry_location_compact", "", "answered: index files need no compaction"),
    Counterpart("/api/v1/autorecovery/status", "bk recovery status", "bk recovery enable and disable switch it"),
    Counterpart("/api/v1/autorecovery/bookie", "bk bookie recover"),
    Counterpart("/api/v1/autorecovery/list_under_replicated_ledger", "bk recovery list"),
    Counterpart("/api/v1/autorecovery/who_is_auditor", "bk recovery status"),
    Counterpart("/api/v1/autorecovery/trigger_audit", "bk recovery audit"),
    Counterpart("/api/v1/autorecovery/lost_bookie_recovery_delay", "bk recovery delay"),
    Counterpart("/api/v1/autorecovery/decommission", "bk bookie drain", "--remove deletes the cookie"),
)
