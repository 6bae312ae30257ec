"""Which ledgers are in limbo, and slots of lost entry logs."""

from __future__ import annotations

from bookies.storage.index.index_format import STATE_FENCED, STATE_LIMBO, IndexHeader
from bookies.storage.index.limbo import Limbo
from bookies.storage.index.slot_scans import runs_in_logs


def test_limbo_follows_the_headers() -> None:
    limbo, header = Limbo(), IndexHeader(b"key", STATE_FENCED | STATE_LIMBO)
    assert not limbo.has_any.is_set()
    limbo.follow(7, header)
    limbo.follow(8, header)
    limbo.follow(9, IndexHeader(b"key", STATE_FENCED))
    assert (list(limbo), len(limbo), 7 in limbo, 9 in limbo) == ([7, 8], 2, True, False)
    for ledger_id in limbo:  # may change meanwhile
        limbo.follow(ledger_id, header.without_state(STATE_LIMBO) if ledger_id == 7 else None)
    assert len(limbo) == 0
    assert not limbo.has_any.is_set()
    limbo.follow(7, None)
    limbo.follow(7, header)
    assert limbo.has_any.is_set()


def test_entries_in_lost_logs_are_not_here() -> None:
    places = [(3, 1024), (0, 1024), (9, 2000), (3, 3000), (0, 0), (0, 2000), (12, 1024)]
    page = b"".join(log_id.to_bytes(4, "big") + offset.to_bytes(4, "big") for log_id, offset in places)

    def here(log_ids: set[int], greatest_id: int) -> list[range]:
        return runs_in_logs(iter([(100, page)]), log_ids, greatest_id)

    assert here({0, 3, 9, 12}, 12) == [range(100, 104), range(105, 107)]
    assert here({0, 9, 12}, 12) == [range(101, 103), range(105, 107)]
    assert here({3, 9}, 9) == [range(100, 101), range(102, 104), range(106, 107)]
    assert here({3}, 12) == [range(100, 101), range(103, 104)]
    assert here(set(), -1) == [range(100, 104), range(105, 107)]
    assert runs_in_logs(iter([]), {1}, 1) == []
