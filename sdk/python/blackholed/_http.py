"""Calls of a peer over HTTP, which repeat themselves where that is safe."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import random
import socket
import ssl
import sys
import threading
import time
import urllib.parse
from typing import Any, Callable, Dict, Generator, Generic, Iterator, List, Mapping, Optional, TypeVar, Union, cast

T = TypeVar("T")
Text = Union[str, bytes]
JSON = Dict[str, Any]
Body = Union[None, bytes, Mapping[str, Any], Callable[[], Mapping[str, Any]]]

# A clock that goes on while the machine sleeps. That of time.monotonic stops on Linux and macOS: a laptop would
# believe in its locks.
CLOCK: Optional[int] = getattr(
    time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None) if sys.platform == "darwin" else None,
)
BUSY = (502, 503)


def clock() -> float:
    return time.monotonic() if CLOCK is None else time.clock_gettime(CLOCK)


class Error(Exception):
    """A refusal of the peer. word is its kind ("not_found", "pool_exhausted"), field what it is about."""

    def __init__(self, status: int, body: Mapping[str, Any]) -> None:
        self.status, self.body, self.attempts = status, body, 1
        self.word: str = body.get("error", "")
        self.field: str = body.get("field", "")
        super().__init__(f"{status} {self.word}: {body.get('message', '')}")


class Broken(ConnectionError):
    """The answer was cut, or is not of a peer. The call may have had its effect."""


class Canceled(Exception):
    """stop was set."""


class Whole(Dict[str, Any]):
    """What the peer said. An answer without what it should have is broken, as a cut one is."""

    def __missing__(self, name: str) -> Any:
        raise Broken(f"the answer of the peer is broken: it has no {name}")


class Stop:
    """Any of several events; None counts as one that is never set."""

    def __init__(self, *events: Optional[threading.Event]) -> None:
        self.events = [e for e in events if e is not None]

    def is_set(self) -> bool:
        return any(e.is_set() for e in self.events)

    def wait(self, seconds: float) -> bool:
        """Reports whether it was set within the time."""
        if len(self.events) == 1:
            return self.events[0].wait(seconds)
        end = clock() + seconds
        while not self.is_set():
            left = end - clock()
            if left <= 0:
                return False
            time.sleep(min(left, 0.05) if self.events else left)
        return True

    def check(self) -> None:
        if self.is_set():
            raise Canceled("stop was set")


class Stream(Generic[T]):
    """The changes that a watch finds. It ends by close(), by the end of a with block, or by the event of its caller.
    One thread iterates."""

    def __init__(self, follow: Callable[[Stop], Iterator[T]], stop: Optional[threading.Event]) -> None:
        self._end = threading.Event()
        self._found = follow(Stop(self._end, stop))

    def __iter__(self) -> Stream[T]:
        return self

    def __next__(self) -> T:
        try:
            return next(self._found)
        except Canceled:
            raise StopIteration from None

    def close(self) -> None:
        """Ends a wait for the next change too."""
        self._end.set()

    def __enter__(self) -> Stream[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Pauses:
    """Growing pauses between attempts."""

    def __init__(self) -> None:
        self.next = 0.05

    def rest(self, stop: Stop, most: float = 2.0) -> None:
        pause, self.next = self.next, min(self.next * 2, 2.0)
        stop.wait(min(pause * random.uniform(0.8, 1.2), max(0.0, most)))
        stop.check()


class Peer:
    """The connection to one peer. It is safe for concurrent use."""

    def __init__(
        self, address: str, token: Optional[str], timeout: float, patience: float, ca: Optional[str],
        proxy: Optional[str],
    ) -> None:
        self.address, self.token, self.timeout, self.patience = address.rstrip("/"), token, timeout, patience
        self._at = urllib.parse.urlsplit(self.address)
        self._proxy = urllib.parse.urlsplit(proxy) if proxy else None
        self._tls = ssl.create_default_context(cafile=ca) if self._at.scheme == "https" else None
        self._guard = threading.Lock()
        self._idle: list[tuple[str, int]] = []  # identities for commands

    def call(
        self, method: str, path: str, body: Body = None, timeout: Optional[float] = None,
        repeat: Union[bool, str, None] = None,
        raw: bool = False, stop: Optional[Stop] = None, **query: Any,
    ) -> Any:
        """One request. Returns the decoded JSON, with raw the bytes. Raises Error, or OSError without a whole answer.
        A callable body makes the body of each attempt. repeat="cut" repeats it without an answer alone."""
        stop = stop or Stop()
        end = self._until(timeout) if (method == "GET" if repeat is None else repeat) else 0.0
        pauses, attempts = Pauses(), 0
        while True:
            attempts += 1
            try:
                with self._open(method, path, body, timeout or self.timeout, stop, query) as answer:
                    return self._said(answer, raw)
            except (Error, OSError) as e:
                if isinstance(e, Error):
                    e.attempts = attempts
                stop.check()
                if isinstance(e, Error) and (e.status not in BUSY or repeat == "cut") or clock() >= end:
                    raise
            pauses.rest(stop, end - clock())

    def _until(self, timeout: Optional[float]) -> float:
        """The end of the repetitions of a call: a long wait that is cut leaves the whole patience."""
        return clock() + self.patience + max(0.0, (timeout or self.timeout) - self.timeout)

    def _connect(self, timeout: float) -> tuple[http.client.HTTPConnection, dict[str, str], str]:
        """A connection, headers for it, and what stands before paths."""
        port = self._at.port or (443 if self._tls else 80)
        host, via = self._at.hostname or "", self._proxy
        headers: dict[str, str] = {}
        if via is not None and via.username is not None:
            words = f"{urllib.parse.unquote(via.username)}:{urllib.parse.unquote(via.password or '')}"
            headers["Proxy-Authorization"] = "Basic " + base64.b64encode(words.encode()).decode()
        to = (host, port) if via is None else (via.hostname or "", via.port or 80)
        if self._tls is not None:
            one: http.client.HTTPConnection = http.client.HTTPSConnection(
                to[0], to[1], timeout=timeout, context=self._tls,
            )
            if via is not None:
                one.set_tunnel(host, port, headers)
                headers = {}
            return one, headers, self._at.path
        before = self._at.path if via is None else self.address
        return http.client.HTTPConnection(to[0], to[1], timeout=timeout), headers, before

    @contextlib.contextmanager
    def _open(
        self, method: str, path: str, body: Body, timeout: float, stop: Stop, query: Mapping[str, Any],
        headers: Optional[Mapping[str, str]] = None,
    ) -> Generator[http.client.HTTPResponse, None, None]:
        """An answer, whose connection ends with the block, or when stop is set."""
        stop.check()
        made = body() if callable(body) else body
        data = made if made is None or isinstance(made, bytes) else json.dumps(made).encode()
        one, own, before = self._connect(timeout)
        if self.token:
            own["Authorization"] = "Bearer " + self.token
        if data is not None:
            own["Content-Type"] = "application/octet-stream" if isinstance(made, bytes) else "application/json"
        words = urllib.parse.urlencode({k: v for k, v in query.items() if v is not None}, doseq=True)
        over = threading.Event()
        answer: Optional[http.client.HTTPResponse] = None
        try:
            one.connect()
            if stop.events:
                threading.Thread(target=_cut, args=(one.sock, stop, over), daemon=True).start()
            one.request(
                method, before + path + ("?" + words if words else ""), data,
                {**own, **(headers or {}), "Connection": "close"},
            )
            answer = one.getresponse()
            yield answer
        except (http.client.HTTPException, ValueError) as e:  # cut, or no HTTP or JSON
            stop.check()
            raise Broken(f"the answer of the peer is broken: {e!r}") from e
        except OSError:
            stop.check()
            raise
        finally:
            over.set()
            if answer is not None:
                answer.close()
            one.close()

    def _said(self, answer: http.client.HTTPResponse, raw: bool) -> Any:
        text = answer.read()
        if answer.status >= 300:  # a redirect would carry the token elsewhere
            try:
                said: Any = json.loads(text)
            except ValueError:
                said = None
            raise Error(
                answer.status,
                cast(JSON, said) if isinstance(said, dict) else {"message": text.decode(errors="replace")},
            )
        if raw:
            return text
        said = {} if answer.status == 204 else json.loads(text)
        if isinstance(said, list):
            return cast(List[Any], said)
        if not isinstance(said, dict):
            raise ValueError("the JSON is no object")
        if answer.getheader("X-Blackhole-Stale"):  # the peer has lost its group
            said["stale"], said["age"] = True, float(answer.getheader("X-Blackhole-Age") or 0)
        return Whole(cast(JSON, said))

    def events(self, path: str, stop: Stop, last: str = "", **query: Any) -> Iterator[tuple[str, str, str]]:
        """The events of one stream: kind, id, data. It ends when the peer ends it; silence of 40 s is a loss."""
        headers = {"Accept": "text/event-stream", **({"Last-Event-ID": last} if last else {})}
        with self._open("GET", path, None, 40.0, stop, query, headers) as answer:
            if answer.status != 200:
                self._said(answer, False)
            kind, at, data = "message", "", ""
            while True:
                line = answer.readline()
                stop.check()
                if not line.endswith(b"\n"):
                    return
                field, _, value = line.decode(errors="replace").rstrip("\r\n").partition(":")
                value = value[1:] if value.startswith(" ") else value
                if field == "event":
                    kind = value
                elif field == "id":
                    at = value
                elif field == "data":
                    data += value
                elif field == "" and line.strip() == b"":
                    if data:
                        yield kind, at, data
                    kind, data = "message", ""

    def command(
        self, path: str, body: Body, timeout: Optional[float] = None, stop: Optional[Stop] = None, **query: Any,
    ) -> JSON:
        """A change that the group applies once, though it is repeated: it knows the repetition by an identity and a
        number."""
        end = self._until(timeout)
        with self._guard:
            identity = self._idle.pop() if self._idle else None
        try:
            for _ in range(8):
                if identity is None:
                    identity = (
                        str(self.call("POST", "/v1/coordination/clients", {}, repeat=True, stop=stop)["client"]), 0,
                    )
                identity = (identity[0], identity[1] + 1)
                named = {"client": identity[0], "sequence": identity[1]}

                def attempt(named: JSON = named) -> JSON:
                    made = body() if callable(body) else body
                    assert made is not None and not isinstance(made, bytes)
                    return {**made, "attempt": named}

                try:
                    return self.call("POST", path, attempt, timeout, True, stop=stop, **query)
                except Error as e:
                    if e.status != 404 or e.field not in ("client", "token") or clock() >= end:
                        raise
                    if e.field == "client":  # forgotten; "token": the claim of a lost connection was given back
                        identity = None
                        if e.attempts > 1:  # the group may have applied it before
                            raise
            raise Broken("the group forgets each identity of this program")
        finally:
            if identity is not None:
                with self._guard:
                    self._idle.append(identity)


def _cut(one: socket.socket, stop: Stop, over: threading.Event) -> None:
    """Ends a connection when stop is set."""
    while not over.wait(0.05):
        if stop.is_set():
            with contextlib.suppress(OSError):  # it ended meanwhile
                one.shutdown(socket.SHUT_RDWR)
            return


def quote(text: Text) -> str:
    return urllib.parse.quote(text, safe="")


def encoded(text: Text) -> bytes:
    """A key or a value as bytes: text may have surrogates (PEP 383)."""
    return text.encode(errors="surrogateescape") if isinstance(text, str) else text


def base(data: Text) -> str:
    return base64.b64encode(encoded(data)).decode()


def milliseconds(seconds: Optional[float]) -> Optional[int]:
    return None if seconds is None else int(seconds * 1000)
