"""The description of the endpoints in OpenAPI 3.1, made from their table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bookies.protocol.rights import Role
from bookies.web.messages import PROBLEM
from bookies.web.routes import Route, named

PATH = "/openapi.json"


def document(routes: Sequence[Route], title: str) -> dict[str, Any]:
    """Return the description of these endpoints."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    problem = {
        "type": "object",
        "required": ["type", "title", "status", "detail"],
        "properties": {
            **{name: {"type": "string"} for name in ("type", "title", "detail", "instance", "next")},
            "status": {"type": "integer"},
        },
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": "1"},
        "paths": paths,
        "components": {
            "schemas": {"Problem": problem},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}, "certificate": {"type": "mutualTLS"}},
        },
    }


def _operation(route: Route) -> dict[str, Any]:
    text = {"type": "string"}
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": text} for name in route.placeholders
    ]
    parameters += [
        {
            "name": name,
            "in": "header" if name[0].isupper() else "query",
            "required": False,
            "schema": text,
            "description": values,
        }
        for name, values in named(route.parameters).items()
    ]
    refusal = {"description": "the error", "content": {PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}}}
    operation: dict[str, Any] = {
        "summary": route.help,
        "x-role": route.role.word,
        "parameters": parameters,
        "responses": {"200": {"description": route.help}, "default": refusal},
    }
    if route.body_max:
        binary = {"schema": {"type": "string", "format": "binary", "maxLength": route.body_max}}
        operation["requestBody"] = {"content": dict.fromkeys(route.body.split(", "), binary), "required": True}
    elif route.body:
        properties = {name: {"description": values} for name, values in named(route.body).items()}
        schema = {"type": "object", "properties": properties}
        operation["requestBody"] = {"content": {"application/json": {"schema": schema}}}
    if route.role is not Role.ANYONE:
        operation["security"] = [{"token": []}, {"certificate": []}]
    return operation
