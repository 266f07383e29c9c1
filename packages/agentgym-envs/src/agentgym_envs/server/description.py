"""The contents of `/openapi.json`: responses and errors of each route, and the models.

FastAPI can't derive them, since it neither parses the bodies nor writes the responses here.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import JsonSchemaMode

from agentgym_envs.server import models
from agentgym_envs.server.streaming import MEDIA_TYPE

_REF = "#/components/schemas/{model}"
_COMMON_ERRORS = (400, 401, 403, 413, 415, 422, 500, 502, 503, 504)


def route(
    status: int,
    answer: Any,
    *errors: int,
    body: type[BaseModel] | None = None,
    content: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the FastAPI arguments that describe a route: its response, its specific errors, and its request body."""
    described: dict[int, dict[str, Any]] = {
        code: {"description": HTTPStatus(code).phrase, "content": _json(models.ErrorBody)}
        for code in (*_COMMON_ERRORS, *errors)
    }
    response = content or ({} if answer is None else _json(answer))
    described[status] = {"description": HTTPStatus(status).phrase, "content": response}
    request = {} if body is None else {"openapi_extra": {"requestBody": {"required": True, "content": _json(body)}}}
    return {"status_code": status, "responses": described, "response_model": None, **request}


def batch(body: type[BaseModel]) -> dict[str, Any]:
    """Like `route`, for a route that takes a batch."""
    return route(207, None, content=_json(models.BatchLine, MEDIA_TYPE), body=body)


def _json(model: Any, media_type: str = "application/json") -> dict[str, Any]:
    return {media_type: {"schema": {"$ref": _REF.format(model=model.__name__)}}}


def description(app: FastAPI) -> dict[str, Any]:
    """Return the contents of `/openapi.json`: FastAPI's description of the routes plus the models."""
    if app.openapi_schema is None:
        app.openapi_schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
        inputs: list[tuple[str, JsonSchemaMode, TypeAdapter[Any]]] = [
            (model.__name__, "validation", TypeAdapter(model)) for model in models.WIRE
        ]
        _, described = TypeAdapter.json_schemas(inputs, ref_template=_REF)
        components = app.openapi_schema.setdefault("components", {})
        components["schemas"] = components.get("schemas", {}) | described["$defs"]
    return app.openapi_schema
