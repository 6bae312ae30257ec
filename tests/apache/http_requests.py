"""Requests to an HTTP server of a bookie, Apache's or ours, and the deliberate differences between the answers.

The requests are sent in order to a bookie that has three ledgers: `{text}` is sealed and has ten entries of text,
`{binary}` is sealed and has one entry that is no text, `{open}` is open and empty. The bookie is the auditor.
Source: operations 1.2 to 1.5.
"""

from __future__ import annotations

from typing import NamedTuple

API = "/api/v1"


class HttpRequest(NamedTuple):
    """One request. `why`: why the answers differ; empty: they have to be equal.

    Equal are status and body: JSON by its structure, other text to the letter, errors by their status alone.
    """

    method: str
    path: str
    body: str | None = None
    why: str = ""

    @property
    def name(self) -> str:
        return f"{self.method} {self.path}{f' {self.body}' if self.body is not None else ''}"


METHOD = "another method answers 405 with Allow"
MISSING = "a missing or malformed parameter answers 400 with a reason"
UNKNOWN = "an unknown ledger answers 404"
KEYS = "only settings that take effect can be changed: 422 names the others"
JSON_ERROR = "a body that is not JSON answers 400"
DIRECTORIES = "409: a restart with allow_storage_expansion does it"
BOTH = "422: one switch for both compactions"

REQUESTS = (
    HttpRequest("GET", "/heartbeat"),
    HttpRequest("GET", "/heartbeat/"),
    HttpRequest("PUT", "/heartbeat", None, METHOD),
    HttpRequest("GET", "/metrics"),
    HttpRequest("PUT", "/metrics", None, METHOD),
    HttpRequest("GET", f"{API}/nothing"),
    HttpRequest("GET", f"{API}/config/server_config", None, "our names of settings, and no passwords"),
    HttpRequest("PUT", f"{API}/config/server_config", '{"gcWaitTime": "60000"}', KEYS),
    HttpRequest("PUT", f"{API}/config/server_config", "{}", "nothing to change answers 404"),
    HttpRequest("PUT", f"{API}/config/server_config"),
    HttpRequest("PUT", f"{API}/config/server_config", "no json", JSON_ERROR),
    HttpRequest("DELETE", f"{API}/config/server_config", None, METHOD),
    HttpRequest("GET", f"{API}/ledger/list"),
    HttpRequest("GET", f"{API}/ledger/list?print_metadata=true"),
    HttpRequest("GET", f"{API}/ledger/list?print_metadata=true&decode_meta=true"),
    HttpRequest("GET", f"{API}/ledger/list?print_metadata=true&page=1"),
    HttpRequest("GET", f"{API}/ledger/list?print_metadata=true&page=x", None, MISSING),
    HttpRequest("POST", f"{API}/ledger/list", None, METHOD),
    HttpRequest("GET", f"{API}/ledger/metadata?ledger_id={{text}}"),
    HttpRequest("GET", f"{API}/ledger/metadata?ledger_id={{open}}"),
    HttpRequest("GET", f"{API}/ledger/metadata", None, MISSING),
    HttpRequest("GET", f"{API}/ledger/metadata?ledger_id=999999", None, UNKNOWN),
    HttpRequest("GET", f"{API}/ledger/metadata?ledger_id=x", None, MISSING),
    HttpRequest("PUT", f"{API}/ledger/metadata?ledger_id={{text}}", None, METHOD),
    HttpRequest("GET", f"{API}/ledger/read?ledger_id={{text}}"),
    HttpRequest("GET", f"{API}/ledger/read?ledger_id={{text}}&start_entry_id=2&end_entry_id=4"),
    HttpRequest("GET", f"{API}/ledger/read?ledger_id={{text}}&page=1"),
    HttpRequest("GET", f"{API}/ledger/read?ledger_id={{text}}&page=1&start_entry_id=2", None, MISSING),
    HttpRequest("GET", f"{API}/ledger/read?ledger_id={{binary}}", None, "bytes that are no text come in base64"),
    HttpRequest("GET", f"{API}/ledger/read?ledger_id=999999", None, UNKNOWN),
    HttpRequest("GET", f"{API}/ledger/read", None, MISSING),
    HttpRequest("GET", f"{API}/ledger/read?ledger_id=x", None, MISSING),
    HttpRequest("GET", f"{API}/bookie/list_bookies"),
    HttpRequest("GET", f"{API}/bookie/list_bookies?type=ro"),
    HttpRequest("GET", f"{API}/bookie/list_bookies?print_hostnames=true"),
    HttpRequest("GET", f"{API}/bookie/list_bookies?print_hostnames=false"),
    HttpRequest("PUT", f"{API}/bookie/list_bookies", None, METHOD),
    HttpRequest("GET", f"{API}/bookie/list_bookie_info"),
    HttpRequest("PUT", f"{API}/bookie/list_bookie_info", None, METHOD),
    HttpRequest("GET", f"{API}/bookie/last_log_mark"),
    HttpRequest("PUT", f"{API}/bookie/last_log_mark", None, METHOD),
    HttpRequest("GET", f"{API}/bookie/list_disk_file"),
    HttpRequest("GET", f"{API}/bookie/list_disk_file?file_type=journal"),
    HttpRequest("GET", f"{API}/bookie/list_disk_file?file_type=entrylog"),
    HttpRequest("GET", f"{API}/bookie/list_disk_file?file_type=index"),
    HttpRequest("GET", f"{API}/bookie/list_disk_file?file_type=x", None, MISSING),
    HttpRequest("PUT", f"{API}/bookie/list_disk_file", None, METHOD),
    HttpRequest("PUT", f"{API}/bookie/expand_storage", None, DIRECTORIES),
    HttpRequest("GET", f"{API}/bookie/expand_storage", None, METHOD),
    HttpRequest("GET", f"{API}/bookie/gc"),
    HttpRequest("PUT", f"{API}/bookie/gc"),
    HttpRequest("PUT", f"{API}/bookie/gc", '{"forceMajor": true, "forceMinor": false}'),
    HttpRequest("PUT", f"{API}/bookie/gc", '{"forceMajor": "true"}'),
    HttpRequest("PUT", f"{API}/bookie/gc", "no json"),
    HttpRequest("POST", f"{API}/bookie/gc"),
    HttpRequest("GET", f"{API}/bookie/gc_details"),
    HttpRequest("PUT", f"{API}/bookie/gc_details", None, METHOD),
    HttpRequest("GET", f"{API}/bookie/gc/suspend_compaction"),
    HttpRequest("PUT", f"{API}/bookie/gc/suspend_compaction", '{"suspendMajor": true, "suspendMinor": true}'),
    HttpRequest("GET", f"{API}/bookie/gc/suspend_compaction"),
    HttpRequest("PUT", f"{API}/bookie/gc/suspend_compaction"),
    HttpRequest("PUT", f"{API}/bookie/gc/suspend_compaction", "{}"),
    HttpRequest("PUT", f"{API}/bookie/gc/suspend_compaction", '{"suspendMajor": true}', BOTH),
    HttpRequest("PUT", f"{API}/bookie/gc/resume_compaction", '{"resumeMajor": true, "resumeMinor": true}'),
    HttpRequest("GET", f"{API}/bookie/gc/resume_compaction", None, METHOD),
    HttpRequest("PUT", f"{API}/bookie/gc/resume_compaction", "{}"),
    HttpRequest("GET", f"{API}/bookie/state", None, "the same keys, and `healthy` and `reasons`"),
    HttpRequest("PUT", f"{API}/bookie/state", None, METHOD),
    HttpRequest("GET", f"{API}/bookie/state/readonly"),
    HttpRequest("PUT", f"{API}/bookie/state/readonly", '{"readOnly": true}'),
    HttpRequest("GET", f"{API}/bookie/state/readonly"),
    HttpRequest("PUT", f"{API}/bookie/state/readonly", '{"readOnly": false}'),
    HttpRequest("PUT", f"{API}/bookie/state/readonly", None, MISSING),
    HttpRequest("DELETE", f"{API}/bookie/state/readonly", None, METHOD),
    HttpRequest("GET", f"{API}/bookie/is_ready"),
    HttpRequest("PUT", f"{API}/bookie/is_ready", None, METHOD),
    HttpRequest("GET", f"{API}/bookie/info"),
    HttpRequest("PUT", f"{API}/bookie/info", None, METHOD),
    HttpRequest("GET", f"{API}/bookie/cluster_info"),
    HttpRequest("PUT", f"{API}/bookie/cluster_info", None, METHOD),
    HttpRequest("GET", f"{API}/bookie/sanity"),
    HttpRequest("PUT", f"{API}/bookie/sanity", None, METHOD),
    HttpRequest("GET", f"{API}/bookie/entry_location_compact", None, "index files: a directory each, always false"),
    HttpRequest("PUT", f"{API}/bookie/entry_location_compact"),
    HttpRequest("GET", f"{API}/autorecovery/status"),
    HttpRequest("PUT", f"{API}/autorecovery/status?enabled=false"),
    HttpRequest("GET", f"{API}/autorecovery/status"),
    HttpRequest("PUT", f"{API}/autorecovery/status?enabled=true"),
    HttpRequest("PUT", f"{API}/autorecovery/status"),
    HttpRequest("PUT", f"{API}/autorecovery/status?enabled=x", None, "only true and false are accepted"),
    HttpRequest("PUT", f"{API}/autorecovery/status?enabled=true"),
    HttpRequest("GET", f"{API}/autorecovery/bookie", None, METHOD),
    HttpRequest("PUT", f"{API}/autorecovery/bookie"),
    HttpRequest("PUT", f"{API}/autorecovery/bookie", "{}"),
    HttpRequest("PUT", f"{API}/autorecovery/bookie", "no json", JSON_ERROR),
    HttpRequest("GET", f"{API}/autorecovery/list_under_replicated_ledger"),
    HttpRequest("GET", f"{API}/autorecovery/list_under_replicated_ledger?printmissingreplica=true"),
    HttpRequest("PUT", f"{API}/autorecovery/list_under_replicated_ledger", None, METHOD),
    HttpRequest("GET", f"{API}/autorecovery/who_is_auditor"),
    HttpRequest("PUT", f"{API}/autorecovery/who_is_auditor", None, METHOD),
    HttpRequest("PUT", f"{API}/autorecovery/trigger_audit"),
    HttpRequest("GET", f"{API}/autorecovery/trigger_audit", None, METHOD),
    HttpRequest("GET", f"{API}/autorecovery/lost_bookie_recovery_delay"),
    HttpRequest("PUT", f"{API}/autorecovery/lost_bookie_recovery_delay", '{"delay_seconds": 60}'),
    HttpRequest("GET", f"{API}/autorecovery/lost_bookie_recovery_delay"),
    HttpRequest("PUT", f"{API}/autorecovery/lost_bookie_recovery_delay"),
    HttpRequest("PUT", f"{API}/autorecovery/lost_bookie_recovery_delay", "{}"),
    HttpRequest("PUT", f"{API}/autorecovery/decommission"),
    HttpRequest("PUT", f"{API}/autorecovery/decommission", "{}"),
    HttpRequest("PUT", f"{API}/autorecovery/decommission", '{"bookie_src": "{bookie}", "delete_cookie": "false"}',
                "409 while the bookie is registered"),
    HttpRequest("DELETE", f"{API}/ledger/delete?ledger_id={{binary}}"),
    HttpRequest("DELETE", f"{API}/ledger/delete"),
    HttpRequest("DELETE", f"{API}/ledger/delete?ledger_id=999999", None, UNKNOWN),
    HttpRequest("GET", f"{API}/ledger/delete?ledger_id={{text}}", None, METHOD),
)  # fmt: skip
