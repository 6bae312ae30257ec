"""Rates of users: bytes and requests a second, at one bookie or gateway. Excess is delayed, then refused."""

from __future__ import annotations

from bookies.protocol.pacing import RateLimit

DELAY_S_MAX = 1.0  # what would have to wait for longer is refused; less than any client's time-out
BURST_S = 1.0  # unused rate that may be made up for


class Allowance:
    """The rates of one user. `bytes_rate`, `requests_rate`: per second; None: unlimited."""

    def __init__(self, bytes_rate: int | None = None, requests_rate: int | None = None) -> None:
        self._limits = (RateLimit(bytes_rate, BURST_S), RateLimit(requests_rate, BURST_S))

    def renew(self, bytes_rate: int | None, requests_rate: int | None) -> None:
        """Change the rates; what was used before still counts."""
        for limit, rate in zip(self._limits, (bytes_rate, requests_rate), strict=True):
            limit.rate = rate

    def wait_s(self, now: float) -> float:
        """Return the seconds until the user may send again. `now`: monotonic clock."""
        return max(limit.charge(0, now) for limit in self._limits)

    def charge(self, size: int, requests: int, now: float) -> None:
        """Count bytes and requests that are being served."""
        for limit, amount in zip(self._limits, (size, requests), strict=True):
            limit.charge(amount, now)

    def holds(self, size: int, requests: int) -> bool:
        """Report whether this number of waiting bytes and requests is served within `DELAY_S_MAX`."""
        return all(
            limit.rate is None or amount <= limit.rate * DELAY_S_MAX
            for limit, amount in zip(self._limits, (size, requests), strict=True)
        )
