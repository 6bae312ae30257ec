"""Opening of sealed entries that are read from entry logs, and which logs have them."""

from __future__ import annotations

from bookies.errors import CorruptRecord
from bookies.storage.entry_log import entry_log_format as layout
from bookies.storage.records.record_scan import Pread
from bookies.storage.sealing.sealer import Opener


class LogOpener:
    """Opens what was read from a log, if its header says that its entries are sealed. Shared by all readers.

    A log's header is read once: ids never repeat, and no header changes its kind.
    """

    def __init__(self, sealer: Opener) -> None:
        self._sealer = sealer
        self._is_sealed: dict[int, bool] = {}  # by log

    def opened(self, records: bytes, slots: bytes, pread: Pread, path: str) -> bytes:
        """Return records as the client sent them. `slots`: where they are.

        The first one authenticates. Those from the first on that does not are left out.
        Raises: CorruptRecord, and what `pread` does.
        """
        log_id, offset = layout.split_location(int.from_bytes(slots[:8], "big"))
        is_sealed = self._is_sealed.get(log_id)
        if is_sealed is None:
            header = layout.parse_header(pread(layout.HEADER_SIZE, 0), path=path)
            if header is None:
                raise CorruptRecord("its header is cut off", path=path, offset=0)
            is_sealed = self._is_sealed[log_id] = bool(header.keys)
        return self._sealer.open_records(records, path=path, offset=offset) if is_sealed else records

    def forget(self, log_id: int) -> None:
        """Forget a log that was removed."""
        self._is_sealed.pop(log_id, None)


def log_of(slots: bytes) -> int:
    """Return the id of the log that the first slot names."""
    return layout.split_location(int.from_bytes(slots[:8], "big"))[0]
