"""Apache's endpoints about one bookie: state, disks, journal, collection, settings. Source: operations 1.2 to 1.4."""

from __future__ import annotations

import posixpath
from collections.abc import AsyncIterator
from dataclasses import fields

from bookies.bookie.server import BookieServer
from bookies.bookie.state import Phase
from bookies.metrics.health import BookieHealth
from bookies.model import BookieMode
from bookies.storage.engine import StorageParts
from bookies.storage.gc import CollectionLoop
from bookies.storage.gc.collection_policy import Compaction
from bookies.storage.journal import journal_format
from bookies.web.messages import JSON, Problem, Request, Response, json_object, json_response, text
from bookies.web.probes import probe
from bookies.web.routes import Route

API = "/api/v1"
FILE_TYPES = ("journal", "entrylog", "index")
_SUFFIXES = {"journal": ".txn", "entrylog": ".log"}


class BookieEndpoints:
    """The endpoints about the bookie of this process."""

    def __init__(self, server: BookieServer, health: BookieHealth) -> None:
        self._server = server
        self._health = health
        self.routes = (
            Route(f"{API}/config/server_config", "settings that differ from their defaults", self._settings),
            probe(f"{API}/bookie/state", "running, read-only, shutting down", self._state),
            Route(f"{API}/bookie/state/readonly", "whether the bookie is read-only", self._read_only),
            probe(f"{API}/bookie/is_ready", "`OK`; 503 until the start is complete", self._ready),
            Route(f"{API}/bookie/info", "free and total bytes of the ledger disks", self._info),
            Route(f"{API}/bookie/last_log_mark", "position from which each journal is replayed", self._last_mark),
            Route(
                f"{API}/bookie/list_disk_file",
                "files by type",
                self._files,
                "file_type=journal, entrylog or index",
                is_list=True,
            ),
            Route(f"{API}/bookie/gc", "whether a forced collection runs", self._in_gc),
            Route(f"{API}/bookie/gc_details", "compactions since the start", self._gc_details),
            Route(f"{API}/bookie/gc/suspend_compaction", "whether compaction is suspended", self._suspended),
            Route(f"{API}/bookie/entry_location_compact", "always false: index files need none", self._locations),
        )

    def _parts(self) -> StorageParts:
        parts = self._server.store.parts
        if parts is None:
            raise Problem(503, "the storage does not run yet, or has failed", headers={"Retry-After": "1"})
        return parts

    def _collector(self) -> CollectionLoop:
        self._parts()
        collector = self._server.store.collector
        if collector is None:
            raise Problem(503, "there is no collection", "start the bookie with gc_interval_ms above 0")
        return collector

    async def _settings(self, request: Request) -> Response:
        """Settings name files that hold secrets, and hold no secret themselves."""
        config = self._server.config
        values = {
            setting.name: ",".join(value) if isinstance(value, tuple) else str(value)
            for setting in fields(config)
            if (value := getattr(config, setting.name)) != setting.default
        }
        return json_response(values)

    async def _state(self, request: Request) -> Response:
        state, unmet = self._server.state, [row for row in self._health.conditions() if not row.holds]
        facts = {
            "running": state.phase is not Phase.STOPPING,
            "readOnly": state.mode is BookieMode.READ_ONLY,
            "shuttingDown": state.phase is Phase.STOPPING,
            "availableForHighPriorityWrites": state.may_add(True) and self._server.store.takes_priority,
            "healthy": not unmet,
            "reasons": [row.reason for row in unmet],
            "next": [row.next_step for row in unmet],
        }
        return json_response(facts)

    async def _read_only(self, request: Request) -> Response:
        return json_response({"readOnly": self._server.state.mode is BookieMode.READ_ONLY})

    async def _ready(self, request: Request) -> Response:
        if not self._server.has_started or not self._server.state.may_serve():
            return text("Bookie is not fully started yet", 503)
        return text("OK")

    async def _info(self, request: Request) -> Response:
        total, free = self._parts().disks.space.totals()
        return json_response({"freeSpace": free, "totalSpace": total})

    async def _last_mark(self, request: Request) -> Response:
        marks: dict[str, str] = {}
        for mark in self._parts().checkpointer.persisted:
            key = f"LastLogMark: Journal Id - {mark.journal_id}({journal_format.file_name(mark.journal_id)})"
            # Two journals may have files of the same number.
            key += f" #{sum(name.startswith(key) for name in marks) + 1}" if key in marks else ""
            marks[key] = f"Pos - {mark.offset}"
        return json_response(marks)

    async def _files(self, request: Request) -> Response:
        wanted = request.query.get("file_type") or request.query.get("type")
        if wanted and wanted not in FILE_TYPES:
            raise Problem(400, f"file_type={wanted}: must be one of {', '.join(FILE_TYPES)}")
        return Response(200, json_object(self._file_lists([wanted] if wanted else list(FILE_TYPES))), JSON)

    async def _file_lists(self, types: list[str]) -> AsyncIterator[tuple[str, object]]:
        parts = self._parts()
        disk, worker, directories = parts.runtime.disk, parts.checkpointer.worker, parts.directories
        for name in types:
            names: list[str] = []
            if name == "index":
                paths = (parts.index.path_of(ledger_id) for ledger_id in sorted(parts.index.ledger_ids()))
                names = [posixpath.basename(path) for path in paths if path is not None]
            else:
                for directory in dict.fromkeys(directories.journals if name == "journal" else directories.ledgers):
                    listed = await worker.run(disk.list, directory)
                    names += sorted(file for file in listed if file.endswith(_SUFFIXES[name]))
            yield f"{name} files", "".join(f"{file}\t" for file in names)

    async def _in_gc(self, request: Request) -> Response:
        return json_response({"is_in_force_gc": str(self._collector().is_forced).lower()})

    async def _gc_details(self, request: Request) -> Response:
        collector = self._collector()
        counts, times = collector.compactions.counts, collector.compactions.ended_at_ms
        details = {
            "forceCompacting": collector.is_forced,
            "majorCompacting": collector.compactions.present is Compaction.MAJOR,
            "minorCompacting": collector.compactions.present is Compaction.MINOR,
            "lastMajorCompactionTime": times[Compaction.MAJOR],
            "lastMinorCompactionTime": times[Compaction.MINOR],
            "lastEntryLocationCompactionTime": 0,
            "majorCompactionCounter": counts[Compaction.MAJOR],
            "minorCompactionCounter": counts[Compaction.MINOR],
            "entryLocationCompactionCounter": 0,
        }
        return json_response([details])

    async def _suspended(self, request: Request) -> Response:
        is_suspended = str(self._collector().compactions.is_suspended).lower()
        return json_response({"isMajorGcSuspended": is_suspended, "isMinorGcSuspended": is_suspended})

    async def _locations(self, request: Request) -> Response:
        return json_response(dict.fromkeys(self._parts().directories.indexes, False))
