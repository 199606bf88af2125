"""What can go wrong between here and the hub, each as one sentence that says what to do next.

Contract: no sentence holds a token, a signed address or a proxy's password, and text that a server sent is
stripped of control characters before it is quoted. `HubError.passing` tells whether trying again may help.
"""

from __future__ import annotations

import email.utils
import errno
import re
import socket
import ssl
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

import httpx2

from specchat.errors import SpecchatError

# The hub's own header, after the draft of the IETF: "api";r=0;t=55 is nothing remaining for 55 seconds.
_EXHAUSTED: Final = re.compile(r";\s*r\s*=\s*0\s*;\s*t\s*=\s*(\d+)")


_LOGIN: Final = re.compile(r"^([a-z][a-z0-9+.-]*://)?[^/?#]*@", re.IGNORECASE)


class HubError(SpecchatError):
    """A request that failed: what is wrong, and what a person can do about it.

    `passing`: trying again may help. `wait`: seconds for which the server asked to be left alone.
    """

    def __init__(self, problem: str, cure: str = "", *, passing: bool = False, wait: float | None = None) -> None:
        super().__init__(f"{problem}: {cure}" if cure else problem)
        self.problem = problem
        self.passing = passing
        self.wait = wait


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked, and of whom: the material of every sentence."""

    endpoint: str  # without a password
    repo: str
    path: str
    revision: str | None
    token: str | None = field(repr=False)
    token_from: str = ""  # where the token was found, as a person would say it

    @property
    def host(self) -> str:
        return host_of(self.endpoint)

    @property
    def page(self) -> str:
        """The repository's page, for a person to open."""
        return f"{self.endpoint}/{self.repo}"

    def quoted(self, text: str) -> str:
        """Text from a server, safe to show."""
        clean = "".join(c if c.isprintable() else " " for c in text)
        if self.token:
            clean = clean.replace(self.token, "***")
        return " ".join(clean.split())[:200]


def host_of(url: str) -> str:
    """Host and port of an address; never the user and password that may stand before them."""
    public = without_login(url)
    try:
        return urlsplit(public).netloc or public
    except ValueError:  # it is no address
        return public


def without_login(url: str) -> str:
    """The address without the user and password that may stand before its host."""
    return _LOGIN.sub(r"\1", url)


def refused(asked: Asked, response: httpx2.Response) -> HubError:
    """The error for an answer of 400 or above."""
    status, code = response.status_code, response.headers.get("X-Error-Code", "")
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return HubError(
            f"{asked.host} limits how often it may be asked",
            "wait a few minutes, then pull again"
            + ("" if asked.token else " (with a token, set as HF_TOKEN, it allows more)"),
            passing=True,
            wait=retry_after(response.headers),
        )
    if status >= 500 or status == HTTPStatus.REQUEST_TIMEOUT:
        return HubError(
            f"{asked.host} is having trouble ({_status(response)})",
            "try again in a few minutes, what is here already is kept",
            passing=True,
            wait=retry_after(response.headers),
        )
    if code == "GatedRepo":
        return _gated(asked)
    if status in (401, 403, 404):
        return _missing_or_forbidden(asked, response, code)
    return HubError(f"{asked.host} answered {_status(response)} when asked for {asked.path}{_said(asked, response)}")


def _gated(asked: Asked) -> HubError:
    if asked.token is None:
        return HubError(
            f"{asked.repo} is gated",
            f"accept its terms at {asked.page}, make a token at {asked.endpoint}/settings/tokens and set it as "
            "HF_TOKEN (or run `hf auth login`), then pull again",
        )
    return HubError(
        f"{asked.repo} is gated and the token {asked.token_from} has no access to it",
        f"ask for access at {asked.page} with that account, check that the token may read gated repositories, "
        "then pull again",
    )


def _missing_or_forbidden(asked: Asked, response: httpx2.Response, code: str) -> HubError:
    said = response.headers.get("X-Error-Message", "").lower()
    if code == "EntryNotFound":
        return HubError(
            f"{asked.repo} has no file {asked.path}{_at(asked)}", f"{asked.page}/tree/main shows what it holds"
        )
    if code == "RevisionNotFound":
        return HubError(f"{asked.repo} has no revision {asked.revision}", f"{asked.page}/commits/main lists them")
    if asked.token and response.status_code == 401 and code != "RepoNotFound":
        return HubError(
            f"{asked.host} does not accept the token {asked.token_from}",
            f"it is mistyped or has expired; make a new one at {asked.endpoint}/settings/tokens, or remove it, "
            "as public models need none",
        )
    if response.status_code == 403 or "disabled" in said:
        return HubError(f"{asked.host} forbids access to {asked.repo}{_said(asked, response)}")
    return HubError(
        f"there is no repository {asked.repo} with {asked.path} on {asked.host}, or it is private",
        "check the name" + ("" if asked.token else ", or set HF_TOKEN to a token that may read it"),
    )


def _at(asked: Asked) -> str:
    return f" at {asked.revision[:12]}" if asked.revision else ""


def _said(asked: Asked, response: httpx2.Response) -> str:
    said = asked.quoted(response.headers.get("X-Error-Message", ""))
    return f": it says {said!r}" if said else ""


def _status(response: httpx2.Response) -> str:
    return f"{response.status_code} {response.reason_phrase}".strip()


def unlike_a_hub(asked: Asked, url: str) -> HubError:
    """The error for an answer that no hub gives: a login page of a network, usually."""
    there = host_of(url)
    return HubError(
        f"what answers for {asked.host} is not a model hub"
        + (f" but a page of {asked.quoted(there)}" if there != asked.host else ""),
        "if this network wants a login, open a web page in a browser and log in; otherwise check HF_ENDPOINT "
        "and the proxy settings",
    )


def unreachable(asked: Asked, error: Exception, host: str | None = None) -> HubError:
    """The error for a request that got no answer, or whose answer broke off."""
    host = host or asked.host
    causes = list(_chain(error))
    through = _proxy(asked.endpoint)
    if isinstance(error, httpx2.ProxyError):
        return HubError(f"the proxy {through} does not let us through to {host}", "check HTTPS_PROXY and NO_PROXY")
    if certificate := next((c for c in causes if isinstance(c, ssl.SSLCertVerificationError)), None):
        return HubError(
            f"the certificate of {host} cannot be verified ({certificate.verify_message})",
            "check this machine's clock, and if a company proxy replaces certificates, name its CA file in "
            "SSL_CERT_FILE",
        )
    if any(isinstance(c, ssl.SSLError) for c in causes):
        return HubError(
            f"no secure connection to {host} ({asked.quoted(str(error))})",
            "check HF_ENDPOINT and the proxy settings",
        )
    problem, cure = _no_connection(error, causes)
    via = f" (through the proxy {through})" if through else ""
    return HubError(problem.format(host=host) + via, cure, passing=True)


def _no_connection(error: Exception, causes: list[BaseException]) -> tuple[str, str]:
    if any(isinstance(c, socket.gaierror) for c in causes):
        return "the name {host} cannot be looked up", "check the network connection, then pull again"
    numbers = {c.errno for c in causes if isinstance(c, OSError)}
    if errno.ECONNREFUSED in numbers:
        return "{host} refuses connections", "it is down, or HF_ENDPOINT names the wrong port; try again later"
    if numbers & {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN}:
        return "there is no network route to {host}", "check the network connection, then pull again"
    if isinstance(error, httpx2.TimeoutException):
        return "{host} does not answer", "try again in a few minutes, what is here already is kept"
    return "the connection to {host} broke", "pull again to go on from what is here already"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _proxy(url: str) -> str:
    """Host and port of the proxy that this address goes through, or an empty text."""
    parts = urlsplit(url)
    if urllib.request.proxy_bypass(parts.hostname or ""):
        return ""
    proxies = urllib.request.getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all") or ""
    return host_of(proxy) if proxy else ""


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds the server wants to be left alone: Retry-After (seconds or a date) or the hub's RateLimit."""
    value = headers.get("Retry-After", "").strip()
    if value.isdecimal():
        return float(value)
    if value:
        try:
            return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
        except ValueError:
            return None
    exhausted = _EXHAUSTED.search(headers.get("RateLimit", ""))
    return float(exhausted[1]) if exhausted else None
