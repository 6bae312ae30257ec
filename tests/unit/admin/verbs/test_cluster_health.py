"""Whether all is well, and if not, why and what to do: asked of a bookie's server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.unit.web.conftest import Site, serve

from bookies.model import BookieId

__all__ = ["serve"]
API = "/api/v1"
Serve = Callable[..., None]


async def health_of(site: Site) -> tuple[Any, dict[str, Any]]:
    """The answer, and its findings by level and subject."""
    answer = (await site.call("viewer", "GET", f"{API}/health")).json
    return answer, {f"{row['level']} {row['about']}".strip(): row for row in answer["findings"]}


def test_the_sentence_is_the_worst_finding(serve: Serve) -> None:
    async def body(site: Site) -> None:
        answer, findings = await health_of(site)
        assert (answer["ok"], answer["level"]) == (False, "warn")
        assert "only 1 of 1 bookies accepts writes" in answer["sentence"]
        assert findings["warn recovery"]["remedy"].endswith("run `bk recovery run`")
        await site.world.on_bookie(site.server.hold_read_only(True))
        answer, findings = await health_of(site)
        assert answer["sentence"].startswith("Act now: no bookie accepts writes.")
        assert "an operator made it read-only" in findings["warn bookie b1"]["what"]

    serve(body)


def test_a_lost_bookie_and_one_in_maintenance(serve: Serve) -> None:
    async def body(site: Site) -> None:
        await site.server.metadata.create_cookie(BookieId("b7"), b"cookie")
        _, findings = await health_of(site)
        assert findings["warn bookie b7"]["what"] == "bookie b7 is down"
        assert "bk bookie drain b7 --remove" in findings["warn bookie b7"]["remedy"]
        given = {"duration": "20m", "reason": "new disk"}
        assert (await site.call("operator", "POST", f"{API}/bookies/b7/maintenance", given)).status == 200
        answer = (await site.call("viewer", "GET", f"{API}/health")).json
        (row,) = [row for row in answer["findings"] if row["about"] == "bookie b7"]
        assert "in maintenance until" in row["what"]
        assert "(new disk)" in row["what"]

    serve(body, users=True)
