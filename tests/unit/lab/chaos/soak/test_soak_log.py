"""The content of a soak's logs."""

from __future__ import annotations

from bookies.lab.chaos.soak.soak_log import log_number, log_payload


def test_the_content_of_a_logs_entry_names_it() -> None:
    payload = log_payload("log", 17)
    assert log_number("log", payload) == 17
    assert [log_number("log", wrong) for wrong in (b"", b"log x ", payload[:-1], log_payload("other", 17))] == [
        None
    ] * 4
