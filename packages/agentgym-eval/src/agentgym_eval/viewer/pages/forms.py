"""Forms that the viewer's pages post."""

from __future__ import annotations

from urllib.parse import parse_qsl

from starlette.requests import Request

from agentgym_eval.util.errors import UsageError

_MAX_FORM_BYTES = 200_000  # three times the longest reply that an environment accepts
_MAX_FIELDS = 50


async def read_form(request: Request) -> dict[str, str]:
    """Read and parse a posted form, within limits on its size. Raises `UsageError`."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_FORM_BYTES:
            raise UsageError(f"The form is longer than {_MAX_FORM_BYTES:,} bytes; shorten the reply.")
    try:
        return dict(parse_qsl(body.decode(errors="replace"), keep_blank_values=True, max_num_fields=_MAX_FIELDS))
    except ValueError as error:
        raise UsageError(f"The form has more than {_MAX_FIELDS} fields, more than any form of the viewer.") from error
