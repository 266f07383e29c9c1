"""Routes that save annotations and download them as JSON lines or CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from agentgym_eval.storage.annotations import Annotation
from agentgym_eval.util.errors import UsageError
from agentgym_eval.viewer.index.annotations import ANNOTATED
from agentgym_eval.viewer.index.index import Index
from agentgym_eval.viewer.index.links import Address
from agentgym_eval.viewer.index.queries import Filters, Row
from agentgym_eval.viewer.pages.forms import read_form
from agentgym_eval.viewer.pages.lists import plain_cell
from agentgym_eval.viewer.pages.site import Site
from agentgym_eval.viewer.server.addresses import EPISODE, episode_address, listed_in

TYPES = {"jsonl": "application/x-ndjson", "csv": "text/csv"}
"""The formats of downloads, with their content types."""
_ROWS = 1000  # per query
_COLUMNS = (
    *("run", "file", "episode", "env", "split", "task_id", "sample", "policy", "success", "score"),
    *("labels", "note", "written"),
)
_REFUSED = "This viewer accepts no annotations. Start one without --host and --read-only."


def annotation_routes(site: Site) -> list[BaseRoute]:
    """Return the routes; without `site.editable`, annotations can only be downloaded."""

    async def save(request: Request) -> Response:
        if not site.editable:
            return PlainTextResponse(_REFUSED, 403)
        address, filters, form = episode_address(request), listed_in(request), await read_form(request)
        labels = [value for name, value in form if name == "label"]
        labels += [label for name, value in form if name == "new" for label in value.split(",")]
        note = next((value for name, value in form if name == "note"), "")
        await run_in_threadpool(_save, site.index, address, Annotation.of(labels, note))
        query = filters.query() if filters else None
        return RedirectResponse(f"{site.links.episode(address, None, query)}#annotation", 303)

    def download(request: Request) -> Response:
        kind = request.url.path.rpartition(".")[2]
        filters = Filters.parse(request.query_params)
        headers = {"content-disposition": f'attachment; filename="annotations.{kind}"'}
        return Response(annotations_content(site.index, filters, kind), media_type=TYPES[kind], headers=headers)

    return [
        Route(f"/annotate/{EPISODE}", save, methods=["POST"]),
        *(Route(f"/annotations.{kind}", download) for kind in TYPES),
    ]


def annotations_content(index: Index, filters: Filters, kind: str) -> str:
    """Return the annotations of the episodes that match `filters` as `jsonl` or `csv`; for text in CSV see
    `lists.plain_cell`.
    """
    records = list(_records(index, filters))
    if kind == "jsonl":
        return "".join(f"{json.dumps(record, ensure_ascii=False)}\n" for record in records)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(_COLUMNS)
    for record in records:
        writer.writerow(map(plain_cell, (record | {"labels": ", ".join(record["labels"])}).values()))
    return out.getvalue()


def _save(index: Index, address: Address, annotation: Annotation) -> None:
    try:
        index.annotate(address, annotation)
    except OSError as error:
        raise UsageError(
            f"The annotation can't be saved next to the episodes ({error}); make their folder writable, or view a copy."
        ) from error


def _records(index: Index, filters: Filters) -> Iterator[dict[str, Any]]:
    """Yield the annotated episodes that match."""
    page, label = 1, filters.label or ANNOTATED
    while rows := index.list(replace(filters, label=label, page=page, size=_ROWS)).rows:
        yield from map(_record, rows)
        page += 1


def _record(row: Row) -> dict[str, Any]:
    names = {"run": row.address.run, "file": row.address.file, "episode": row.address.number}
    played = {name: getattr(row, name) for name in ("env", "split", "task", "sample", "policy", "success", "score")}
    written = {"labels": list(row.annotation.labels), "note": row.annotation.note, "written": row.annotation.written}
    return dict(zip(_COLUMNS, (names | played | written).values(), strict=True))
