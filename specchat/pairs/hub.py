"""Asking a Hugging Face hub about a file, and reading it from any byte on.

Contract: the token goes to the origin of the endpoint and nowhere else, whatever redirects say. Every failure
is a `HubError` with a sentence for a person. Addresses are asked of /resolve/ each time, as signed ones expire.
Nothing is retried and nothing is written here.

Of huggingface_hub only the public parts are used: its session (proxies, offline mode, client factory), its
token and its addresses. `http_get` sleeps through rate limits and takes any Content-Range at its word, and
`build_hf_headers` asks the endpoint for a list first, to report which program called.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urljoin, urlsplit

import httpx2
from huggingface_hub import constants, get_session, get_token, hf_hub_url
from huggingface_hub.errors import HFValidationError, OfflineModeIsEnabled, OIDCError

from specchat import __version__
from specchat.pairs import failures
from specchat.pairs.failures import Asked, HubError

_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_CONTENT_RANGE: Final = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_REDIRECTS: Final = 8


@dataclass(frozen=True, slots=True)
class Remote:
    """A file as the hub has it now. `version` differs whenever its bytes do."""

    repo: str
    path: str
    commit: str
    size: int
    version: str  # the hub's etag: the sha256 of large files
    sha256: str | None


@dataclass(frozen=True, slots=True)
class Body:
    """An open answer: `chunks` are the file's bytes from `offset` on, to its end if nothing breaks."""

    offset: int
    chunks: Iterator[bytes]


class RangeRefusedError(HubError):
    """The server does not go on from the byte it was asked for; it must be read from the start."""


@dataclass(frozen=True, slots=True)
class Hub:
    """One endpoint and what is known about reaching it. Timeouts in seconds."""

    endpoint: str
    token: str | None = field(default=None, repr=False)
    token_from: str = ""
    offline: bool = False
    connect_timeout: float = 10.0
    stall_timeout: float = 10.0  # no byte for so long is a broken connection

    @property
    def host(self) -> str:
        """Its name for a person."""
        return failures.host_of(self.endpoint)

    @staticmethod
    def from_environment() -> Hub:
        """The hub that HF_ENDPOINT, HF_TOKEN, the token file and HF_HUB_OFFLINE name."""
        implicit = not constants.HF_HUB_DISABLE_IMPLICIT_TOKEN and not constants.is_offline_mode()
        try:
            token = get_token() if implicit else None
        except OIDCError as error:
            raise HubError(f"no token through HF_OIDC_RESOURCE ({error})", "unset it, or set HF_TOKEN") from error
        named = next((f"in {name}" for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN") if os.environ.get(name)), "")
        return Hub(
            endpoint=constants.ENDPOINT,
            token=token,
            token_from=named or "of `hf auth login`",
            offline=constants.is_offline_mode(),
            connect_timeout=float(constants.HF_HUB_ETAG_TIMEOUT),
            stall_timeout=float(constants.HF_HUB_DOWNLOAD_TIMEOUT),
        )

    def ask(self, repo: str, path: str, revision: str | None = None) -> Remote:
        """What the hub says about a file. Raises HubError."""
        asked = self._asked(repo, path, revision)
        with _explained(asked):
            response = self._head(self._url(asked))
        if response.status_code >= 400:
            raise failures.refused(asked, response)
        headers = response.headers
        commit = headers.get(constants.HUGGINGFACE_HEADER_X_REPO_COMMIT)
        etag = headers.get(constants.HUGGINGFACE_HEADER_X_LINKED_ETAG) or headers.get("ETag") or ""
        size = headers.get(constants.HUGGINGFACE_HEADER_X_LINKED_SIZE) or headers.get("Content-Length") or ""
        version = etag.removeprefix("W/").strip('"')
        if not commit or not version or not size.isdecimal():
            raise failures.unlike_a_hub(asked, str(response.url))
        return Remote(repo, path, commit, int(size), version, version if _SHA256.fullmatch(version) else None)

    @contextlib.contextmanager
    def read(self, remote: Remote, offset: int) -> Iterator[Body]:
        """Open the file at `offset`. The body may begin at 0 instead, where the server ignores ranges.

        Raises RangeRefusedError where it must be asked again from 0, and HubError.
        """
        asked = self._asked(remote.repo, remote.path, remote.commit)
        url = self._url(asked)
        headers = self._headers(url) | ({"Range": f"bytes={offset}-"} if offset else {})
        timeout = httpx2.Timeout(self.stall_timeout, connect=self.connect_timeout)
        # httpx2 drops the Authorization header itself when a redirect leaves the origin.
        with (
            _explained(asked),
            get_session().stream("GET", url, headers=headers, timeout=timeout, follow_redirects=True) as response,
        ):
            yield Body(self._offset(asked, response, remote, offset), response.iter_raw())

    def _offset(self, asked: Asked, response: httpx2.Response, remote: Remote, offset: int) -> int:
        """The byte that the answer begins at. Raises what `read` raises."""
        status = response.status_code
        if offset and status == 416:
            raise RangeRefusedError(f"{asked.host} has fewer bytes of {asked.path} than are here already")
        if status in (400, 401, 403, 404, 410) and _origin(str(response.url)) != _origin(self.endpoint):
            # A signed address that has run out; /resolve/ gives a new one.
            raise HubError(
                f"the download address that {asked.host} gave for {asked.path} is refused ({status})",
                "pull again to get a new one",
                passing=True,
            )
        if status >= 400:
            raise failures.refused(asked, response)
        if status == 206:
            match = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
            if match is None or (int(match[1]), int(match[3])) != (offset, remote.size):
                raise RangeRefusedError(f"{asked.host} answers with other bytes of {asked.path} than asked for")
            return offset
        length = response.headers.get("Content-Length")
        if length is not None and int(length) != remote.size:
            raise self._other_length(asked, response, remote, length)
        return 0

    def _other_length(self, asked: Asked, response: httpx2.Response, remote: Remote, length: str) -> HubError:
        if "html" in response.headers.get("Content-Type", ""):
            return failures.unlike_a_hub(asked, str(response.url))
        return HubError(
            f"{failures.host_of(str(response.url))} sends {length} bytes for {asked.path} instead of {remote.size}",
            "try again later or with another mirror (HF_ENDPOINT)",
            passing=True,
        )

    def _head(self, url: str) -> httpx2.Response:
        """Follow redirects up to the answer that describes the file: it comes before the one that sends it."""
        timeout = httpx2.Timeout(self.connect_timeout)
        for _ in range(_REDIRECTS):
            response = get_session().head(url, headers=self._headers(url), timeout=timeout, follow_redirects=False)
            described = constants.HUGGINGFACE_HEADER_X_LINKED_ETAG in response.headers
            if described or not response.has_redirect_location:
                return response
            url = urljoin(url, response.headers["Location"])
        raise httpx2.TooManyRedirects(f"more than {_REDIRECTS} redirects")

    def _headers(self, url: str) -> dict[str, str]:
        headers = {
            "User-Agent": f"specchat/{__version__}; python/{platform.python_version()}",
            "Accept-Encoding": "identity",  # sizes and ranges are of the file itself
        }
        if self.token and _origin(url) == _origin(self.endpoint):
            headers["Authorization"] = f"Bearer {self.token}"
        return headers

    def _asked(self, repo: str, path: str, revision: str | None) -> Asked:
        public = failures.without_login(self.endpoint)
        asked = Asked(public, repo, path, revision, self.token, self.token_from)
        if self.offline:
            raise _offline()
        if not _is_address(self.endpoint):
            raise HubError(f"{public!r} in HF_ENDPOINT is not a web address such as https://huggingface.co")
        if self.token and not (self.token.isascii() and self.token.isprintable()):
            raise HubError(f"the token {self.token_from} holds characters that no token has", "copy it again")
        return asked

    def _url(self, asked: Asked) -> str:
        try:
            default = hf_hub_url(asked.repo, asked.path, revision=asked.revision)
        except HFValidationError as error:
            raise HubError(f"{asked.repo!r} is not a repository name: {error}") from error
        return self.endpoint + default.removeprefix(constants.ENDPOINT)


@contextlib.contextmanager
def _explained(asked: Asked) -> Iterator[None]:
    """Turn what httpx2 raises into a sentence; everything else passes (a full disk, above all)."""
    try:
        yield
    except OfflineModeIsEnabled as error:
        raise _offline() from error
    except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError) as error:
        raise failures.unreachable(asked, error, _host(error)) from error


def _host(error: Exception) -> str | None:
    """The host that failed, which a redirect may have led to."""
    try:
        return failures.host_of(str(error.request.url)) if isinstance(error, httpx2.RequestError) else None
    except RuntimeError:  # what `.request` raises where no request was made
        return None


def _offline() -> HubError:
    return HubError("offline mode is on and not everything is here", "unset HF_HUB_OFFLINE to download the rest")


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)
