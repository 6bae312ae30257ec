"""The description of the endpoints matches their table."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from .conftest import Site


def test_every_endpoint_is_described(serve: Callable[..., None]) -> None:
    async def body(site: Site) -> None:
        paths: dict[str, dict[str, Any]] = (await site.get("/openapi.json")).json["paths"]
        listed = {(row["path"], row["method"].lower()): row for row in (await site.get("/")).json}
        assert {(path, method) for path, methods in paths.items() for method in methods} == set(listed)
        for (path, method), row in listed.items():
            operation = paths[path][method]
            assert operation["x-role"] == row["role"]
            assert ("security" in operation) == (row["role"] != "anyone")
            in_path = [part["name"] for part in operation["parameters"] if part["in"] == "path"]
            assert in_path == re.findall(r"{(\w+)}", path)
        entries = paths["/api/v1/ledger/read"]["get"]["parameters"]
        assert [part["name"] for part in entries] == ["ledger_id", "start_entry_id", "end_entry_id", "page"]
        files = paths["/api/v1/bookie/list_disk_file"]["get"]["parameters"]
        assert [(part["name"], part["description"]) for part in files] == [("file_type", "journal, entrylog or index")]
        assert "requestBody" in paths["/api/v1/bookie/gc"]["put"]

    serve(body)
