"""Each way of failing has a sentence of its own, within seconds, without secrets, that says what to do next."""

from __future__ import annotations

import email.utils
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import huggingface_hub
import pytest

from specchat.pairs import failures
from specchat.pairs.failures import Asked, HubError
from specchat.pairs.hub import Hub
from tests.fakehub import FakeHub, Knobs, model
from tests.promptly import promptly

REPO, FILE, TOKEN = "some/models-GGUF", "target.gguf", "hf_verySecretToken"
CERTIFICATE = Path(__file__).with_name("loopback.pem")  # made for 127.0.0.1, signed by itself


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with FakeHub({(REPO, FILE): model(1000)}) as hub:
        yield hub


@pytest.fixture
def fresh_session() -> Iterator[None]:
    """The hub client's session reads proxies and certificates when it is made."""
    huggingface_hub.close_session()
    yield
    huggingface_hub.close_session()


def client(url: str, token: str | None = None) -> Hub:
    return Hub(url, token, "in HF_TOKEN", connect_timeout=0.5, stall_timeout=0.5)


def failure(act: Callable[[], object]) -> HubError:
    with promptly(), pytest.raises(HubError) as caught:
        act()
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert TOKEN not in sentence
    return caught.value


@pytest.mark.parametrize(
    ("knobs", "token", "repo", "path", "words"),
    [
        (Knobs(gated_for={"x"}), None, REPO, FILE, "is gated: accept its terms at http.*set it as HF_TOKEN"),
        (Knobs(gated_for={"x"}), TOKEN, REPO, FILE, "token in HF_TOKEN has no access.*ask for access"),
        (Knobs(valid_tokens={"x"}), TOKEN, REPO, FILE, "does not accept the token in HF_TOKEN.*make a new one"),
        (Knobs(), None, "no/such", FILE, "no repository no/such.*check the name, or set HF_TOKEN"),
        (Knobs(), TOKEN, "no/such", FILE, "no repository no/such.*check the name$"),
        (Knobs(), None, REPO, "no.gguf", "has no file no.gguf: .*/tree/main shows what it holds"),
        (Knobs(limited=9), None, REPO, FILE, "limits how often.*wait a few minutes.*with a token"),
        (Knobs(unavailable=9), None, REPO, FILE, r"having trouble \(503 Service Unavailable\): try again"),
        (Knobs(captive="page"), None, REPO, FILE, "not a model hub.*log in.*HF_ENDPOINT"),
        (Knobs(captive="redirect"), TOKEN, REPO, FILE, "not a model hub but a page of localhost"),
        (Knobs(no_commit=True), None, REPO, FILE, "not a model hub"),
    ],
)
def test_what_the_hub_refuses(hub: FakeHub, knobs: Knobs, token: str | None, repo: str, path: str, words: str) -> None:
    hub.knobs = knobs
    error = failure(lambda: client(hub.url, token).ask(repo, path))
    assert re.search(words, str(error))
    assert not any("authorization" in r.headers for r in hub.log if r.server == "cdn")


def test_a_missing_revision_is_named(hub: FakeHub) -> None:
    hub.knobs.revisions = {"main"}
    error = failure(lambda: client(hub.url).ask(REPO, FILE, "abc123"))
    assert "has no revision abc123" in str(error)


def test_a_token_that_the_server_quotes_is_not_shown(hub: FakeHub) -> None:
    hub.knobs.valid_tokens, hub.knobs.echo_token, hub.knobs.refusal = set(), True, 403
    assert "forbids access" in str(failure(lambda: client(hub.url, TOKEN).ask(REPO, FILE)))


def test_a_server_that_is_down() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    assert "refuses connections: it is down" in str(failure(lambda: client(url).ask(REPO, FILE)))


def test_a_name_that_cannot_be_looked_up() -> None:
    error = failure(lambda: client("http://hub.invalid").ask(REPO, FILE))
    assert "the name hub.invalid cannot be looked up: check the network connection" in str(error)


def test_a_server_that_never_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        error = failure(lambda: client(url).ask(REPO, FILE))
    assert "does not answer" in str(error)
    assert error.passing


class _Quiet(HTTPServer):
    def handle_error(self, *_: object) -> None:
        """A client that turns away is the point."""


@pytest.mark.usefixtures("fresh_session")
def test_a_certificate_nobody_signed() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    server = _Quiet(("127.0.0.1", 0), BaseHTTPRequestHandler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        error = failure(lambda: client(f"https://127.0.0.1:{server.server_port}").ask(REPO, FILE))
    finally:
        server.shutdown()
        server.server_close()
    assert "certificate of 127.0.0.1" in str(error)
    assert "SSL_CERT_FILE" in str(error)
    assert not error.passing


def test_plain_http_where_tls_is_expected(hub: FakeHub) -> None:
    error = failure(lambda: client(hub.url.replace("http:", "https:")).ask(REPO, FILE))
    assert "no secure connection" in str(error)


@pytest.mark.parametrize("endpoint", ["huggingface.co", "ftp://x", "http://[::1"])
def test_an_endpoint_that_is_no_address(endpoint: str) -> None:
    assert "HF_ENDPOINT is not a web address" in str(failure(lambda: client(endpoint).ask(REPO, FILE)))


def test_a_repository_that_is_no_name(hub: FakeHub) -> None:
    assert "not a repository name" in str(failure(lambda: client(hub.url).ask("a/b/c", FILE)))


def test_offline_mode_asks_nobody(hub: FakeHub) -> None:
    error = failure(lambda: replace(client(hub.url), offline=True).ask(REPO, FILE))
    assert "unset HF_HUB_OFFLINE" in str(error)
    assert not hub.log


@pytest.mark.usefixtures("fresh_session")
def test_a_proxy_is_used(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", hub.url)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert client("http://hub.example").ask(REPO, FILE).size == 1000
    assert hub.log[0].path.startswith("http://hub.example/")


@pytest.mark.usefixtures("fresh_session")
def test_a_proxy_that_is_down_is_named_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    monkeypatch.setenv("HTTP_PROXY", f"http://me:pa55word@{address}")
    sentence = str(failure(lambda: client("http://hub.example").ask(REPO, FILE)))
    assert f"through the proxy {address}" in sentence
    assert "pa55word" not in sentence


def test_a_token_that_cannot_be_one(hub: FakeHub) -> None:
    assert "characters that no token has" in str(failure(lambda: client(hub.url, "hf_ä").ask(REPO, FILE)))
    assert not hub.log


def test_what_a_server_says_is_quoted_without_the_token_and_without_control_characters() -> None:
    asked = Asked("https://hub.example", REPO, FILE, None, TOKEN)
    assert asked.quoted(f"no \x1b[31m{TOKEN}\n!") == "no [31m*** !"


@pytest.mark.parametrize(
    ("knobs", "token"),
    [
        (Knobs(gated_for={"x"}), None),
        (Knobs(gated_for={"x"}), TOKEN),
        (Knobs(valid_tokens={"x"}), TOKEN),
        (Knobs(unavailable=9), None),
        (Knobs(limited=9), None),
        (Knobs(captive="page"), None),
    ],
)
def test_a_mirrors_password_is_in_no_sentence(hub: FakeHub, knobs: Knobs, token: str | None) -> None:
    hub.knobs = knobs
    url = hub.url.replace("//", "//me:pa55word@")
    for repo, path in ((REPO, FILE), (REPO, "nothing.gguf"), ("no/where", FILE)):
        assert "pa55word" not in str(failure(partial(client(url, token).ask, repo, path)))


@pytest.mark.parametrize("endpoint", ["me:pa55word@hub.example", "ftp://me:pa55word@x", "http://me:pa55word@[::1"])
def test_a_password_in_what_is_no_address_is_in_no_sentence_either(endpoint: str) -> None:
    assert "pa55word" not in str(failure(lambda: client(endpoint).ask(REPO, FILE)))
    assert "pa55word" not in client(endpoint).host


def test_no_secret_shows_in_the_values() -> None:
    assert TOKEN not in repr(client("https://hub.example", TOKEN))
    assert TOKEN not in repr(Asked("https://hub.example", REPO, FILE, None, TOKEN))
    assert failures.host_of("https://me:pa55word@hub.example:8/x") == "hub.example:8"


def test_retry_after_is_read_in_all_its_forms() -> None:
    assert failures.retry_after({"Retry-After": "7"}) == 7
    date = email.utils.formatdate(time.time() + 100, usegmt=True)
    assert failures.retry_after({"Retry-After": date}) == pytest.approx(100, abs=3)
    for nonsense in ("soon", "²"):
        assert failures.retry_after({"Retry-After": nonsense}) is None
    assert failures.retry_after({"RateLimit": '"api";r=0;t=55'}) == 55
    assert failures.retry_after({"RateLimit": '"api";r=3;t=55'}) is None
    assert failures.retry_after({}) is None
