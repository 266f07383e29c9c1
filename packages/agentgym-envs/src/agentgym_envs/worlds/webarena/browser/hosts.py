"""The hosts that a browser can reach, as Chromium's resolver rules and as a check of a URL.

The resolver rules enforce the limit: they apply to everything that Chromium resolves, including redirects, sockets and
scripts. The check runs before a navigation, so that the agent gets an explanation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

SCHEMES = ("http", "https")
"""The schemes that may be opened, besides the page `about:blank`."""
BLANK = "about:blank"
_DEFAULT_PORTS = {"http": 80, "https": 443}
_HOST = re.compile(r"(?P<name>[a-z0-9_](?:[a-z0-9_.-]*[a-z0-9_])?|\[[0-9a-f:.]+\])(?::(?P<port>\d{1,5}))?")


@dataclass(frozen=True, slots=True)
class Hosts:
    """The hosts a browser can reach. Hashable, as it is the key of the process's browsers."""

    targets: tuple[tuple[str, str], ...]
    """Pairs of `host` or `host:port`, in lower case, and the address that it resolves to."""

    @classmethod
    def of(cls, hosts: Mapping[str, str | None]) -> Hosts:
        """Build it from a mapping of `host` (any port) or `host:port` to an address; None stands for the host itself.

        Raises:
            ValueError: for an invalid host, which could otherwise inject a rule.
        """
        targets = {_checked(host): _checked(host if address is None else address) for host, address in hosts.items()}
        # The first matching rule applies, so rules with a port come before rules for any port.
        return cls(tuple(sorted(targets.items(), key=lambda pair: (not _port(pair[0]), pair[0]))))

    def rules(self) -> str:
        """Return the value of Chromium's flag `--host-resolver-rules`."""
        return " , ".join((*(f"MAP {host} {address}" for host, address in self.targets), "MAP * ~NOTFOUND"))

    def sites(self) -> str:
        """Return the hosts as a readable list of URLs."""
        return ", ".join(f"http://{host}" for host, _ in self.targets) or "none"

    def reachable(self, url: str) -> bool:
        """Whether the rules allow `url`."""
        parts = _split(url)
        if parts is None or parts.scheme not in SCHEMES or not parts.hostname:
            return False
        name = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        port = parts.port or _DEFAULT_PORTS[parts.scheme]
        return any(host in (name, f"{name}:{port}") for host, _ in self.targets)

    def refusal(self, url: str) -> str | None:
        """Return a sentence for the agent on why `url` can't be opened, or None if it can."""
        if url == BLANK or self.reachable(url):
            return None
        parts = _split(url)
        if parts is None or not parts.scheme:
            return f"{url} is not an address. Addresses begin with http:// or https://."
        if parts.scheme not in SCHEMES:
            return f"Addresses that begin with {parts.scheme}: can't be opened, only those with http: or https:."
        return f"{url} is not one of the sites. There are: {self.sites()}."


def _checked(host: str) -> str:
    match = _HOST.fullmatch(host.lower())
    if match is None or int(match["port"] or 1) not in range(1, 65_536):
        raise ValueError(f"{host!r} is not a host; expected a host such as 'shop.example' or '127.0.0.1:7770'.")
    return host.lower()


def _port(host: str) -> str | None:
    match = _HOST.fullmatch(host)
    return match["port"] if match else None


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url.strip())
        _ = parts.port  # parsed lazily; raises ValueError if invalid
    except ValueError:
        return None
    return parts
