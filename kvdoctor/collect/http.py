"""Pages of a server by GET, and of a pod through the Kubernetes API server. Every failure is a sentence and a hint.

A server gets one GET per page and sample (plus one for a redirect, once: its target is remembered), never a POST. The time
limit covers the whole answer, so a server that sends one byte a second does not hold a run up.
"""

from __future__ import annotations

import ipaddress
import json
import re
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urljoin, urlsplit, urlunsplit

from kvdoctor.collect import SpecError
from kvdoctor.collect.command import run
from kvdoctor.collect.mask import mask_text, mask_url
from kvdoctor.frozen import frozen
from kvdoctor.snapshot import Missing

if TYPE_CHECKING:
    import requests

MAX_BODY = 64 << 20
MAX_REDIRECTS = 3
SAID = 160

_JSON_KINDS = frozenset({"version", "models", "server-info", "loads", "slots", "props", "iterstats", "info"})
_NEEDED_KEY = {"version": "version", "models": "data"}
_FINAL = frozenset({400, 401, 403, 404, 405, 406, 407, 410, 501})


@frozen
class Page:
    """A page. ``kind`` is None where a metrics path answered with JSON and the content has to tell.

    ``answered_s``: seconds from asking to the first byte of the answer, when the server made the page.
    """

    body: bytes
    kind: str | None
    origin: str
    answered_s: float


@frozen
class Failure:
    """No page: why. ``again``: asking once more in the same run may help (a server that starts, a time-out)."""

    missing: Missing
    again: bool = False


class Source(Protocol):
    """Something that gives pages by path."""

    @property
    def origin(self) -> str: ...

    def get(self, path: str, kind: str) -> Page | Failure: ...

    def close(self) -> None: ...


def parse_header(text: str) -> tuple[str, str]:
    """``Name: value`` -> (name, value); raises :class:`SpecError` (which never repeats the value)."""
    name, colon, value = text.partition(":")
    if not colon or not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name.strip()) or re.search(r"[\r\n\0]", value):
        raise SpecError("a header is written 'Name: value', as in --header 'Authorization: Bearer ...'")
    return name.strip(), value.strip()


def split_url(text: str) -> tuple[str, str | None]:
    """(base, path of the metrics page or None) of what a user gave as ``--url``; raises :class:`SpecError`.

    ``host:8000`` means ``http://host:8000``. A path that ends in ``metrics`` is the metrics page itself; the ``/v1`` of an
    OpenAI base URL is taken off; any other path is a prefix of every page.
    """
    if text.startswith("k8s:"):
        pod = text.removeprefix("k8s:")
        if not _KUBE_URL.fullmatch(pod):
            raise SpecError(f"{mask_text(text)}: a pod is written k8s:NAMESPACE/POD or k8s:NAMESPACE/POD:PORT")
        return text, None
    full = text if re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", text) else f"http://{text}"
    try:
        parts = urlsplit(full)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise SpecError(f"{mask_url(full)} is not a usable URL: {error}") from error
    if parts.scheme not in ("http", "https") or not host or re.search(r"\s", full):
        raise SpecError(f"{mask_url(full)} is not a usable URL: give http://HOST:PORT, or k8s:NAMESPACE/POD:PORT")
    path = parts.path.rstrip("/")
    page: str | None = None
    if path.endswith("metrics"):
        path, _, last = path.rpartition("/")
        page = f"/{last}" + (f"?{parts.query}" if parts.query else "")
        if path.endswith("/prometheus"):
            # TensorRT-LLM keeps its Prometheus page one folder below its other pages
            path, page = path.removesuffix("/prometheus"), f"/prometheus{page}"
    elif path.endswith("/v1"):
        path = path.removesuffix("/v1")
    return urlunsplit((parts.scheme, parts.netloc, path, "", "")), page


def open_source(base: str, *, headers: Mapping[str, str], timeout_s: float) -> Source:
    """The source behind a base of :func:`split_url`."""
    if base.startswith("k8s:"):
        return KubePod(base, timeout_s=timeout_s)
    return WebServer(base, headers=headers, timeout_s=timeout_s)


class WebServer:
    """One server, one connection kept alive. Not for use by two threads at a time."""

    def __init__(self, base: str, *, headers: Mapping[str, str], timeout_s: float) -> None:
        self.base = base
        self.origin = mask_url(base)
        self._timeout_s = timeout_s
        self._watch = _Watch()
        self._session = _session(base, headers, self._watch)
        self._moved: dict[str, str] = {}

    def close(self) -> None:
        self._session.close()

    def get(self, path: str, kind: str) -> Page | Failure:
        """One page; ``kind`` names what is expected there (``exposition``, ``version``, ``slots`` ...)."""
        import requests
        import urllib3

        origin = self.origin + mask_url(path)
        url = self._moved.get(path, self.base + path)
        self._watch.start(self._timeout_s)
        try:
            return self._follow(url, path, kind, origin)
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError, UnicodeError) as error:
            if self._watch.fired:
                return self._too_slow(kind, origin, None)
            return _transport_failure(error, kind, origin, self.base, self._timeout_s)
        finally:
            self._watch.stop()

    def _follow(self, url: str, path: str, kind: str, origin: str) -> Page | Failure:
        accept = "application/json" if kind in _JSON_KINDS else "text/plain;version=0.0.4"
        for _ in range(MAX_REDIRECTS + 1):
            asked = time.monotonic()
            response = self._session.get(
                url,
                headers={"Accept": f"{accept}, */*;q=0.1"},
                timeout=self._timeout_s,
                stream=True,
                allow_redirects=False,
            )
            answered = time.monotonic() - asked
            try:
                target = response.headers.get("location") if response.is_redirect else None
                if target is None:
                    if url != self.base + path:
                        self._moved[path] = url
                    return self._body(response, kind, origin, answered)
                following = urljoin(url, target)
                if not _same_server(url, following):
                    return _failure(
                        kind, origin, f"it redirects to another server ({mask_url(following)}), which is not followed",
                        "a login page or a proxy stands before it: give the server's own address, or --header with its credentials",
                    )  # fmt: skip
                url = following
            finally:
                response.close()
        return _failure(kind, origin, f"more than {MAX_REDIRECTS} redirects", "give the final address of the page")

    def _body(self, response: requests.Response, kind: str, origin: str, answered: float) -> Page | Failure:
        body = bytearray()
        limit = MAX_BODY if response.status_code == 200 else SAID * 64
        for block in response.iter_content(1 << 16):
            body += block
            if len(body) > limit:
                break
        if self._watch.fired:
            return self._too_slow(kind, origin, len(body))
        if response.status_code != 200:
            return _status_failure(response.status_code, bytes(body), kind, origin)
        if len(body) > MAX_BODY:
            return _failure(
                kind, origin, f"the page is larger than {MAX_BODY >> 20} MiB", "is this the metrics page of the server?"
            )
        return page_or_failure(bytes(body), response.headers.get("content-type", ""), kind, origin, answered)

    def _too_slow(self, kind: str, origin: str, got: int | None) -> Failure:
        part = "no answer" if got is None else f"the answer was not complete ({got:,} bytes had come)"
        return _failure(
            kind, origin, f"{part} within {self._timeout_s:g} s",
            "the server is stuck or overloaded, or the network is slow: look at its log, or raise --timeout", again=True,
        )  # fmt: skip


class _Watch:
    """Ends the transfer in progress when the time is up, by shutting its socket down: a slow drip never trips a read timeout."""

    def __init__(self) -> None:
        self.fired = False
        self._sock: socket.socket | None = None
        self._timer: threading.Timer | None = None

    def start(self, seconds: float) -> None:
        self.fired = False
        self._timer = threading.Timer(seconds, self._fire)
        self._timer.daemon = True
        self._timer.start()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def connected(self, sock: socket.socket | None) -> None:
        # the socket, not its connection: that lets go of it when the answer has no length
        self._sock = sock

    def _fire(self) -> None:
        self.fired = True
        if self._sock is not None:
            try:
                self._sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                return  # closed meanwhile: nothing is left to end


def _session(base: str, headers: Mapping[str, str], watch: _Watch) -> requests.Session:
    import requests
    from requests.adapters import HTTPAdapter
    from requests.auth import HTTPBasicAuth
    from urllib3 import HTTPConnectionPool, HTTPSConnectionPool, PoolManager
    from urllib3.connection import HTTPConnection, HTTPSConnection

    class Plain(HTTPConnection):
        def connect(self) -> None:
            super().connect()
            watch.connected(self.sock)

    class Tls(HTTPSConnection):
        def connect(self) -> None:
            super().connect()
            watch.connected(self.sock)

    class PlainPool(HTTPConnectionPool):
        ConnectionCls = Plain

    class TlsPool(HTTPSConnectionPool):
        ConnectionCls = Tls

    def watched(manager: PoolManager) -> None:
        manager.pool_classes_by_scheme = {"http": PlainPool, "https": TlsPool}

    class Adapter(HTTPAdapter):
        def init_poolmanager(self, *args: object, **kwargs: object) -> None:
            super().init_poolmanager(*args, **kwargs)  # type: ignore[arg-type]
            watched(self.poolmanager)

        def proxy_manager_for(self, *args: object, **kwargs: object) -> PoolManager:
            manager: PoolManager = super().proxy_manager_for(*args, **kwargs)  # type: ignore[arg-type]
            watched(manager)
            return manager

    session = requests.Session()
    session.mount("http://", Adapter())
    session.mount("https://", Adapter())
    parts = urlsplit(base)
    if _is_local(parts.hostname or ""):
        session.trust_env = False  # a proxy of the environment cannot reach this host's loopback
    session.headers["User-Agent"] = "kvdoctor"
    session.headers["Accept-Encoding"] = "gzip"
    session.headers.update(headers)
    if parts.username is not None and "authorization" not in {name.lower() for name in headers}:
        session.auth = HTTPBasicAuth(parts.username, parts.password if parts.password is not None else "")
    else:
        session.auth = _as_it_is  # else a .netrc entry would replace the header the user gave
    return session


def _as_it_is(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _same_server(a: str, b: str) -> bool:
    """The same host and port, or the step from http to https on the same host; never back."""
    try:
        one, two = urlsplit(a), urlsplit(b)
        ports = [p.port or {"http": 80, "https": 443}.get(p.scheme) for p in (one, two)]
    except ValueError:
        return False
    if one.hostname != two.hostname:
        return False
    return (one.scheme == two.scheme and ports[0] == ports[1]) or (one.scheme, two.scheme) == ("http", "https")


def page_or_failure(body: bytes, content_type: str, kind: str, origin: str, answered_s: float) -> Page | Failure:
    """Is the body at all what was asked for? HTML, nothing, or no JSON where JSON belongs is a failure with that reason."""
    head = body[:2048].lstrip()
    if not head:
        return _failure(kind, origin, "the page is empty", "the server may still be starting: try again", again=True)
    if "text/html" in content_type.lower() or re.match(rb"<(?:!doctype|html|head|body|\?xml)", head, re.I):
        return _failure(
            kind, origin, f"an HTML page instead of {_what(kind)}",
            "a proxy, a login page or another program answers here: check host and port, or give --header with credentials",
        )  # fmt: skip
    found: str | None = kind
    if kind in _JSON_KINDS:
        try:
            document = json.loads(body)
        except (ValueError, RecursionError):
            return _failure(kind, origin, f"no JSON where {_what(kind)} belongs", "is another program on this port?")
        key = _NEEDED_KEY.get(kind)
        if key is not None and not (isinstance(document, dict) and key in document):
            return _failure(kind, origin, f"JSON without {key!r}", "is another program on this port?")
    elif head[:1] in (b"{", b"["):
        found = None
    return Page(body, found, origin, answered_s)


def _what(kind: str) -> str:
    return {"exposition": "metrics", "iterstats": "iteration stats"}.get(kind, kind)


def _failure(kind: str, origin: str, reason: str, hint: str, *, again: bool = False) -> Failure:
    return Failure(Missing(_what(kind), origin, reason, hint), again)


def _status_failure(status: int, body: bytes, kind: str, origin: str) -> Failure:
    said = _server_says(body)
    reason = f"the server answers {status}" + (f": {said}" if said else "")
    hint = "look at the server's log"
    if status in (401, 403, 407):
        reason = f"the server answers {status}: it wants other credentials" + (f" ({said})" if said else "")
        hint = "give --header 'Authorization: Bearer ...'"
        if status == 407:
            hint = "the proxy of the environment wants credentials: set NO_PROXY for this host"
    elif status == 404:
        reason = f"the server has no such page (404{': ' + said if said else ''})"
        hint = (
            "metrics may be switched off, or under another path: give the full URL of the metrics page"
            if kind == "exposition"
            else "this version of the server does not have it"
        )
    elif status == 400 and b"HTTPS" in body:
        hint = "this port speaks TLS: use https:// in --url"
    elif status in (502, 503, 504):
        hint = "the server may still be starting or be down behind its proxy: look at its log"
    return _failure(kind, origin, reason, hint, again=status not in _FINAL)


def _server_says(body: bytes) -> str:
    """The message of a JSON error body (llama.cpp says there which option switches a page on), else nothing."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    error = document.get("error") if isinstance(document, dict) else None
    for part in (error, document):
        if isinstance(part, str):
            return mask_text(part[:SAID])
        if isinstance(part, dict):
            for key in ("message", "detail", "error"):
                if isinstance(part.get(key), str):
                    return mask_text(part[key][:SAID])
    return ""


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and everything wrapped in it."""
    seen: set[int] = set()
    stack: list[object] = [error]
    while stack:
        one = stack.pop(0)
        if isinstance(one, BaseException) and id(one) not in seen:
            seen.add(id(one))
            yield one
            stack += [getattr(one, "reason", None), one.__cause__, one.__context__, *one.args]


def _transport_failure(error: BaseException, kind: str, origin: str, base: str, timeout_s: float) -> Failure:
    """A connection that failed -> what failed, in the words an operator uses."""
    import ssl

    import requests
    import urllib3

    parts = urlsplit(base)
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    where = f"{parts.hostname}:{port}"
    causes = list(_causes(error))

    def has(*kinds: type[BaseException]) -> BaseException | None:
        return next((c for c in causes if isinstance(c, kinds)), None)

    if has(requests.exceptions.ProxyError, urllib3.exceptions.ProxyError):
        return _failure(
            kind, origin, "the proxy of the environment (HTTP_PROXY) does not let the request through",
            f"set NO_PROXY={parts.hostname}",
        )  # fmt: skip
    unverified = has(ssl.SSLCertVerificationError)
    if unverified is not None:
        said = getattr(unverified, "verify_message", "") or "not verified"
        return _failure(
            kind, origin, f"TLS: the certificate of {where} is not trusted ({said})",
            "set REQUESTS_CA_BUNDLE=/path/to/ca.pem to trust its authority",
        )  # fmt: skip
    if has(ssl.SSLError, requests.exceptions.SSLError):
        return _failure(
            kind,
            origin,
            f"TLS: {where} does not complete the handshake",
            "if the server speaks plain HTTP, use http:// in --url",
        )
    if has(socket.gaierror, urllib3.exceptions.NameResolutionError):
        return _failure(
            kind, origin, f"the name {parts.hostname} cannot be resolved", "check the host name and DNS", again=True
        )
    if has(ConnectionRefusedError):
        return _failure(
            kind, origin, f"connection refused: nothing listens on {where}",
            "is the server running, and on this port? In a container, is the port published?", again=True,
        )  # fmt: skip
    if has(requests.Timeout, urllib3.exceptions.TimeoutError, TimeoutError):
        return _failure(
            kind, origin, f"no answer within {timeout_s:g} s",
            "the server is stuck or overloaded, or a firewall drops the packets: look at its log, or raise --timeout",
            again=True,
        )  # fmt: skip
    if has(requests.exceptions.ContentDecodingError, urllib3.exceptions.DecodeError):
        return _failure(
            kind, origin, "the compressed answer is damaged", "a proxy on the way may garble it", again=True
        )
    if has(
        ConnectionResetError,
        BrokenPipeError,
        urllib3.exceptions.ProtocolError,
        requests.exceptions.ChunkedEncodingError,
    ):
        return _failure(
            kind, origin, "the connection broke off before the answer was complete",
            "the server may have stopped or restarted, or this port speaks TLS (https://)", again=True,
        )  # fmt: skip
    if has(requests.exceptions.InvalidHeader):
        return _failure(kind, origin, "a header cannot be sent as it is written", "write it --header 'Name: value'")
    system = next((c.strerror for c in causes if isinstance(c, OSError) and c.strerror), "")
    reason = f"{where} cannot be reached" + (f": {system}" if system else "")
    return _failure(kind, origin, reason, "check host, port and network", again=True)


# ---- kubernetes -----------------------------------------------------------------------------------------------------

KUBE_NAME = r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?"
_KUBE_URL = re.compile(rf"({KUBE_NAME})/({KUBE_NAME})(?::([0-9]{{1,5}}))?")


class KubePod:
    """Pages of one pod through the API server's proxy, by ``kubectl get --raw`` with the user's own access."""

    def __init__(self, spec: str, *, timeout_s: float) -> None:
        found = _KUBE_URL.fullmatch(spec.removeprefix("k8s:"))
        if found is None:
            raise SpecError(f"{mask_text(spec)}: a pod is written k8s:NAMESPACE/POD or k8s:NAMESPACE/POD:PORT")
        namespace, pod, port = found.groups()
        self.origin = spec
        self._timeout_s = timeout_s
        # without a port the API server takes the first one of the pod's first container
        self._proxy = f"/api/v1/namespaces/{namespace}/pods/{pod}{':' + port if port else ''}/proxy"

    def close(self) -> None:
        """Nothing is held between two pages."""

    def get(self, path: str, kind: str) -> Page | Failure:
        """One page of the pod."""
        origin = self.origin + path
        asked = time.monotonic()
        argv = ["kubectl", "get", "--raw", self._proxy + path, f"--request-timeout={max(round(self._timeout_s), 1)}s"]
        output = run(argv, timeout_s=self._timeout_s, cap=MAX_BODY)
        if output.absent:
            return _failure(kind, origin, output.problem, "install kubectl, or use --url http://HOST:PORT")
        if output.problem:
            return _failure(
                kind, origin, output.problem, kube_hint(output.problem, "get pods/proxy"), again=output.timed_out
            )
        if output.cut:
            return _failure(kind, origin, f"the page is larger than {MAX_BODY >> 20} MiB", "is this the metrics page?")
        return page_or_failure(output.data, "", kind, origin, time.monotonic() - asked)


def kube_hint(problem: str, right: str) -> str:
    """What to do about an error of kubectl; ``right`` is the access the command needs."""
    text = problem.lower()
    for words, hint in (
        (("forbidden",), f"the user of this kubeconfig needs the right to {right}"),
        (("container name must be specified", "container not found", "is not valid for pod"),
         "name the container: k8s:NAMESPACE/POD/CONTAINER"),
        (("notfound", "not found"), "check namespace and pod: kubectl get pods -A"),
        (("did not finish",), "the API server or the pod does not answer in time: raise --timeout"),
        (("serviceunavailable", "error trying to reach service", "bad gateway"),
         "the pod does not listen on that port: give k8s:NAMESPACE/POD:PORT"),
        (("unauthorized", "must be logged in", "credentials"), "log in to the cluster again, then repeat"),
    ):  # fmt: skip
        if any(word in text for word in words):
            return hint
    return "try the same with kubectl by hand: kubectl cluster-info"
