"""A model hub on loopback: real HTTP on real sockets, with a knob for everything that can go wrong.

`FakeHub` answers /OWNER/REPO/resolve/REVISION/PATH the way the hub does: a HEAD describes the file in headers, a
GET sends it, either itself or, with `cdn`, through a redirect to a second server on another port and host name
whose addresses are signed. Every request is in `log`, with what was sent.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import re
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

COMMIT: Final = "c0ffee" * 6 + "c0ff"
_RESOLVE: Final = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")
_SIGNED: Final = re.compile(r"/signed/(\d+)/([^/]+/[^/]+)/(.+)")
_RANGE: Final = re.compile(r"bytes=(\d+)-")
_CHUNK: Final = 16 * 1024


@dataclass
class Request:
    """One request as the server saw it, and how it answered."""

    server: str  # "hub" or "cdn"
    method: str
    path: str
    headers: Mapping[str, str]
    status: int = 0
    sent: int = 0  # bytes of the body

    @property
    def start(self) -> int:
        """The byte that was asked for first."""
        match = _RANGE.fullmatch(self.headers.get("range", ""))
        return int(match[1]) if match else 0


@dataclass
class Knobs:
    """What goes wrong. The plain numbers count down the requests that it happens to."""

    cdn: bool = False
    pace: float | None = None  # bytes a second
    stall_after: int | None = None  # bytes of a body, then silence with the line held open
    stalls: int = 10**9
    drop_after: int | None = None  # bytes of a body, then the line is cut
    drops: int = 10**9
    wrong_bytes: int = 0  # answers whose body has the right size and other bytes
    ignore_range: bool = False
    shift_range: int = 0  # Content-Range, and the body, begin so many bytes late
    chunked: bool = False  # no Content-Length
    empty_bodies: int = 0
    extra: bytes = b""  # at the end of a chunked body
    refuse_ranges: bool = False  # 416
    limited: int = 0  # 429
    limited_headers: dict[str, str] = field(default_factory=dict)
    unavailable: int = 0  # 503
    unavailable_on: str = "HEAD"
    link_uses: int = 10**9  # requests that a signed address is good for
    gated_for: set[str] | None = None  # tokens that have access
    valid_tokens: set[str] | None = None
    refusal: int = 401  # of a token that is not valid
    captive: str = ""  # "page": 200 with a login page; "redirect": to a login page elsewhere
    revisions: set[str] | None = None  # those there are
    etag: str | None = None
    no_commit: bool = False
    echo_token: bool = False  # the error message quotes what was sent


@dataclass
class FakeHub:
    """Use as a context manager. `files` maps (repository, path) to bytes, or to a file on disk."""

    files: dict[tuple[str, str], bytes | Path] = field(default_factory=dict)
    knobs: Knobs = field(default_factory=Knobs)
    log: list[Request] = field(default_factory=list)

    def __enter__(self) -> FakeHub:
        self._links: dict[int, int] = {}
        self._lock = threading.Lock()
        self.closing = threading.Event()
        self._servers = [_Server(self, "hub"), _Server(self, "cdn")]
        for server in self._servers:
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        for server in self._servers:
            server.shutdown()
            server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._servers[0].server_port}"

    @property
    def cdn_url(self) -> str:
        # Another name of this machine: to a client it is another host.
        return f"http://localhost:{self._servers[1].server_port}"

    def requests(self, method: str = "GET", server: str | None = None) -> list[Request]:
        """The log's requests of that method."""
        return [r for r in self.log if r.method == method and server in (None, r.server)]

    def count_down(self, knob: str) -> bool:
        """Whether this request is one of those the knob is for."""
        with self._lock:
            left: int = getattr(self.knobs, knob)
            setattr(self.knobs, knob, max(0, left - 1))
            return left > 0

    def sign(self) -> int:
        with self._lock:
            link = len(self._links) + 1
            self._links[link] = self.knobs.link_uses
            return link

    def admit(self, link: int) -> bool:
        with self._lock:
            self._links[link] = self._links.get(link, 0) - 1
            return self._links[link] >= 0


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, hub: FakeHub, name: str) -> None:
        self.hub = hub
        self.name = name
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, *_: object) -> None:
        """A client that goes away is what many tests are about."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        headers = {key.lower(): value for key, value in self.headers.items()}
        self.request_seen = Request(self.server.name, self.command, unquote(self.path), headers)
        self.server.hub.log.append(self.request_seen)
        parts = urlsplit(unquote(self.path))
        if self.server.name == "cdn":
            self._answer_signed(parts.path)
        elif not self._answered_with_trouble():
            match = _RESOLVE.fullmatch(parts.path)
            self._answer_resolve(*match.groups()) if match else self._refuse(404, "")

    # -- trouble before any file --------------------------------------------------------------------------

    def _answered_with_trouble(self) -> bool:
        hub, knobs = self.server.hub, self.server.hub.knobs
        if knobs.captive == "page":
            self._page()
        elif knobs.captive == "redirect":
            self._respond(302, {"Location": f"{hub.cdn_url}/login", "Content-Length": "0"})
        elif hub.count_down("limited"):
            self._refuse(429, "", knobs.limited_headers)
        elif self.command == knobs.unavailable_on and hub.count_down("unavailable"):
            self._refuse(503, "")
        else:
            return self._answered_about_tokens()
        return True

    def _answered_about_tokens(self) -> bool:
        knobs = self.server.hub.knobs
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        said = f"Invalid credentials in Authorization header{' ' + token if knobs.echo_token else ''}"
        if token and knobs.valid_tokens is not None and token not in knobs.valid_tokens:
            self._refuse(knobs.refusal, "", {"X-Error-Message": said})
        elif knobs.gated_for is not None and token not in knobs.gated_for:
            self._refuse(403 if token else 401, "GatedRepo")
        else:
            return False
        return True

    def _page(self) -> None:
        page = b"<html>Welcome to the hotel. Please log in.</html>"
        self._respond(200, {"Content-Type": "text/html", "Content-Length": str(len(page))})
        if self.command == "GET":
            self.wfile.write(page)

    def _refuse(self, status: int, code: str, headers: Mapping[str, str] | None = None) -> None:
        named = {"X-Error-Code": code} if code else {}
        self._respond(status, {**named, **(headers or {}), "Content-Length": "0"})

    # -- files --------------------------------------------------------------------------------------------

    def _answer_resolve(self, repo: str, revision: str, path: str) -> None:
        hub = self.server.hub
        if repo not in {known for known, _ in hub.files}:
            # What the hub says to someone without a token; with one it is 404 and a code.
            known = "Authorization" in self.headers
            self._refuse(404 if known else 401, "RepoNotFound" if known else "")
        elif hub.knobs.revisions is not None and revision not in hub.knobs.revisions:
            self._refuse(404, "RevisionNotFound")
        elif (repo, path) not in hub.files:
            self._refuse(404, "EntryNotFound")
        elif hub.knobs.cdn:
            link = f"{hub.cdn_url}/signed/{hub.sign()}/{repo}/{path}?Signature=s3cret"
            self._respond(302, {**self._described(repo, path), "Location": link, "Content-Length": "0"})
        else:
            self._send_file(repo, path, self._described(repo, path))

    def _answer_signed(self, path: str) -> None:
        match = _SIGNED.fullmatch(path)
        if match is None:
            self._page()
        elif not self.server.hub.admit(int(match[1])):
            self._refuse(403, "")
        else:
            self._send_file(match[2], match[3], {"ETag": '"another-kind-of-etag"'})

    def _described(self, repo: str, path: str) -> dict[str, str]:
        hub = self.server.hub
        content = hub.files[repo, path]
        etag = hub.knobs.etag or content_sha256(content)
        commit = {} if hub.knobs.no_commit else {"X-Repo-Commit": COMMIT}
        return {**commit, "X-Linked-Etag": f'"{etag}"', "X-Linked-Size": str(_size(content)), "ETag": f'"{etag}"'}

    def _send_file(self, repo: str, path: str, headers: dict[str, str]) -> None:
        knobs = self.server.hub.knobs
        content = self.server.hub.files[repo, path]
        size = _size(content)
        start = 0 if knobs.ignore_range else self.request_seen.start
        if start and (start >= size or knobs.refuse_ranges):
            self._respond(416, {"Content-Range": f"bytes */{size}", "Content-Length": "0"})
            return
        if self.command == "GET" and self.server.hub.count_down("empty_bodies"):
            self._respond(200, {**headers, "Transfer-Encoding": "chunked"})
            self.wfile.write(b"0\r\n\r\n")
            return
        status = 206 if start else 200
        start += knobs.shift_range if status == 206 else 0
        if status == 206:
            headers["Content-Range"] = f"bytes {start}-{size - 1}/{size}"
        chunked = knobs.chunked and self.command == "GET"
        headers |= {"Transfer-Encoding": "chunked"} if chunked else {"Content-Length": str(size - start)}
        self._respond(status, headers)
        if self.command == "GET":
            self._send_body(content, start)

    def _respond(self, status: int, headers: Mapping[str, str]) -> None:
        self.request_seen.status = status
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()

    def _send_body(self, content: bytes | Path, start: int) -> None:
        hub, knobs = self.server.hub, self.server.hub.knobs
        if isinstance(content, Path):
            with content.open("rb") as stream:
                self.wfile.flush()
                self.request_seen.sent = self.connection.sendfile(stream, start)
            return
        body = content[start:] + (knobs.extra if knobs.chunked else b"")
        if hub.count_down("wrong_bytes"):
            body = bytes(255 - byte for byte in body)
        stall = knobs.stall_after if hub.count_down("stalls") else None
        drop = knobs.drop_after if hub.count_down("drops") else None
        for piece in _pieces(body, [n for n in (stall, drop) if n is not None]):
            if self.request_seen.sent == stall:
                hub.closing.wait()
            if drop is not None and self.request_seen.sent == drop:
                self._cut()
                return
            self._send_piece(piece)
        if knobs.chunked:
            self.wfile.write(b"0\r\n\r\n")

    def _send_piece(self, piece: bytes) -> None:
        knobs = self.server.hub.knobs
        self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece) if knobs.chunked else piece)
        self.request_seen.sent += len(piece)
        if knobs.pace is not None:
            time.sleep(len(piece) / knobs.pace)

    def _cut(self) -> None:
        self.wfile.flush()
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self.close_connection = True


def _pieces(body: bytes, stops: list[int]) -> Iterator[bytes]:
    """The body in chunks that end at every stop as well."""
    edges = sorted({*range(0, len(body), _CHUNK), len(body), *(n for n in stops if n < len(body))})
    for begin, end in itertools.pairwise(edges):
        yield body[begin:end]


def _size(content: bytes | Path) -> int:
    return content.stat().st_size if isinstance(content, Path) else len(content)


def content_sha256(content: bytes | Path) -> str:
    if isinstance(content, Path):
        with content.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    return hashlib.sha256(content).hexdigest()


def model(size: int, seed: int = 0) -> bytes:
    """Bytes that are nobody's model, the same for the same seed."""
    return hashlib.shake_128(seed.to_bytes(8, "big")).digest(size)
