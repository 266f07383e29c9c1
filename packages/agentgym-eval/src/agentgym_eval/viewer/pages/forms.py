"""Forms that the viewer's pages post."""

from __future__ import annotations

from urllib.parse import parse_qsl

from starlette.requests import Request

from agentgym_eval.util.errors import UsageError

_MAX_BYTES = 200_000  # three times the longest reply that an environment accepts
_MAX_FIELDS = 1_100  # all runs of the longest page of the list, and some more


async def read_form(request: Request) -> list[tuple[str, str]]:
    """Read and parse a posted form into its fields, in order. Raises `UsageError` if it is too long."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_BYTES:
            raise UsageError(f"The form is longer than {_MAX_BYTES:,} bytes; shorten the text.")
    try:
        return parse_qsl(body.decode(errors="replace"), keep_blank_values=True, max_num_fields=_MAX_FIELDS)
    except ValueError as error:
        raise UsageError(f"The form has more than {_MAX_FIELDS} fields, more than any form of the viewer.") from error
