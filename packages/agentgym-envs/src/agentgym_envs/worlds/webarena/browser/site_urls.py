"""The URLs of WebArena's sites, their placeholders in tasks, and their hosts. Makes no requests."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final
from urllib.parse import urlsplit

KEYS: Final = ("shopping", "shopping_admin", "reddit", "gitlab", "map", "wikipedia", "homepage")
"""WebArena's names of its sites. Their placeholders in tasks are `__SHOPPING__`, `__SHOPPING_ADMIN__`, ..."""
_PLACEHOLDER = re.compile("__({})__".format("|".join(key.upper() for key in KEYS)))
_NOT_HOSTED = ("", "PASS")  # WebArena's setup writes this for the homepage if there is none
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Sites:
    """The URL of each site, without a trailing slash; empty if the site isn't configured.

    `shopping_admin` includes the path of the administration, as in WebArena: `http://HOST:7780/admin`.
    """

    shopping: str = ""
    shopping_admin: str = ""
    reddit: str = ""
    gitlab: str = ""
    map: str = ""
    wikipedia: str = ""
    homepage: str = ""

    def __post_init__(self) -> None:
        for field in fields(self):
            url = getattr(self, field.name)
            if url:
                object.__setattr__(self, field.name, _checked(url, field.name))

    @classmethod
    def of(cls, option: Mapping[str, str] | str) -> Sites:
        """Parse an option: a mapping, or text such as `shopping=http://HOST:7770,reddit=http://HOST:9999`.

        Raises:
            ValueError: for an unknown key or an invalid URL.
        """
        given = _pairs(option) if isinstance(option, str) else dict(option)
        for key in given:
            _check_key(key)
        return cls(**given)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Sites:
        """Read WebArena's environment variables: `WA_SHOPPING`, ..., which take precedence, and `SHOPPING`, ...

        Raises:
            ValueError: for a variable whose value isn't a URL.
        """
        found: dict[str, str] = {}
        for key in KEYS:
            for variable in (f"WA_{key.upper()}", key.upper()):
                url = environ.get(variable, "").strip()
                if url not in _NOT_HOSTED:
                    found[key] = _checked(url, variable)
                    break
        return cls(**found)

    @property
    def configured(self) -> dict[str, str]:
        """The keys and URLs of all configured sites."""
        urls = {key: str(getattr(self, key)) for key in KEYS}
        return {key: url for key, url in urls.items() if url}

    @property
    def hosts(self) -> tuple[str, ...]:
        """`host:port` of every site, always with the port: the hosts that a browser may reach."""
        return tuple(sorted({host_and_port(url) for url in self.configured.values()}))

    def url(self, key: str, user: str = "This") -> str:
        """Return the URL of the site `key`; `user` is the subject of the error message.

        Raises:
            ValueError: if it isn't configured; the message has the setting.
        """
        _check_key(key)
        if url := self.configured.get(key):
            return url
        name = key.upper()
        raise ValueError(
            f"{user} needs the site {key}, whose URL isn't configured: set {name} (or WA_{name}) in the environment, "
            f"or give sites='{key}=http://HOST:PORT'. Configured sites: {', '.join(self.configured) or 'none'}."
        )

    def demand(self, task: Mapping[str, Any], name: str) -> None:
        """Check that all sites that the task `name` needs, by its list or a placeholder, are configured.

        Raises:
            ValueError: for the first one that isn't.
        """
        for key in needed(task):
            self.url(key, f"Task {name}")

    def fill(self, value: Any) -> Any:
        """Replace the placeholders of all configured sites in `value`, text or JSON, by their URLs."""
        urls = self.configured
        return _mapped(value, lambda text: _PLACEHOLDER.sub(lambda m: urls.get(m[1].lower(), m[0]), text))

    def with_placeholders(self, url: str) -> str:
        """Replace the site's URL at the start of `url` by its placeholder, the inverse of `fill`, if it is a site's."""
        key = self.key_of(url)
        return url if key is None else f"__{key.upper()}__{url[len(self.configured[key]) :]}"

    def key_of(self, url: str) -> str | None:
        """Return the site that `url` belongs to: the one with the longest URL that is a prefix of it, or None."""
        matching = [key for key, site in self.configured.items() if _is_below(url, site)]
        return max(matching, key=lambda key: len(self.configured[key]), default=None)


def needed(task: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the sites that a task, as WebArena's JSON, needs: those it lists and those with placeholders in it."""
    seen = {str(key): None for key in task.get("sites", ())}

    def note(text: str) -> str:
        seen.update((key.lower(), None) for key in _PLACEHOLDER.findall(text))
        return text

    _mapped(dict(task), note)
    return tuple(seen)


def host_and_port(url: str) -> str:
    """Return `host:port` of a URL, with the scheme's default port if it has none."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return f"{f'[{host}]' if ':' in host else host}:{parts.port or _PORTS.get(parts.scheme, 0)}"


def _is_below(url: str, site: str) -> bool:
    return url.startswith(site) and url[len(site) : len(site) + 1] in ("", "/", "?", "#")


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    """Apply `change` to every string in JSON, except keys."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _mapped(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(item, change) for item in value]
    return value


def _pairs(text: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, equals, url = part.partition("=")
        if not equals:
            raise ValueError(
                f"{part!r} is not of the form SITE=URL; write sites as shopping=http://HOST:PORT,reddit=..."
            )
        if key.strip() in pairs:
            raise ValueError(f"The site {key.strip()} is given twice in {text!r}.")
        pairs[key.strip()] = url.strip()
    return pairs


def _check_key(key: str) -> None:
    if key not in KEYS:
        near = difflib.get_close_matches(str(key), KEYS, n=1)
        hint = f"Did you mean {near[0]}? " if near else ""
        raise ValueError(f"There is no site {key!r}. {hint}WebArena's sites are {', '.join(KEYS)}.")


def _checked(url: str, name: str) -> str:
    """Validate `url` and return it without a trailing slash."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in _PORTS and bool(parts.hostname) and parts.port != 0 and url.isprintable()
    except ValueError:
        good = False
    if not good or " " in url or "?" in url or "#" in url or "@" in url:
        hint = f"; did you mean http://{url}?" if "://" not in url else ", without a query or a user name."
        raise ValueError(f"{name} is {url!r}; expected a URL such as http://HOST:PORT{hint}")
    return url.rstrip("/")
