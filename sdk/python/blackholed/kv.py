"""Keys of the group: text, or bytes. A key that is no UTF-8 is shown as text with surrogates (PEP 383), and taken back
as such."""

from __future__ import annotations

import base64
import json
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Iterator, List, Mapping, Optional

from ._http import BUSY, JSON, Broken, Error, Pauses, Stop, Stream, Text, base, encoded

if TYPE_CHECKING:
    from .client import Client


@dataclass(frozen=True)
class KeyValue:
    """One version of a key."""

    key: str
    value: bytes
    create_revision: int
    mod_revision: int  # for if_revision
    version: int
    lease: str  # "0": none, or one that is hidden: see lease_tag
    lease_tag: str


@dataclass(frozen=True)
class KeyEvent:
    """One change of one key."""

    revision: int
    key: str
    kv: Optional[KeyValue]  # None: it was deleted
    prev: Optional[KeyValue]


@dataclass(frozen=True)
class Batch:
    """The events of whole revisions; none: progress. A later watch may go on at next."""

    events: List[KeyEvent]
    next: int


@dataclass(frozen=True)
class Page:
    keys: List[KeyValue]
    revision: int
    next: bytes  # first key of the rest


class Compacted(Exception):
    """The group has no events of that time any more: list the keys, and watch from the next revision."""

    def __init__(self, revision: int, current: int) -> None:
        super().__init__(f"revision {revision} was compacted, the present one is {current}")
        self.revision, self.current = revision, current


class KV:
    def __init__(self, client: Client) -> None:
        self._client = client

    def get(self, key: Text, revision: Optional[int] = None) -> Optional[KeyValue]:
        """A key, None without it."""
        found = self.read(key, revision).keys
        return found[0] if found else None

    def list(self, prefix: Text = "") -> Iterator[KeyValue]:
        """All keys with a prefix, of one revision, page by page."""
        page = self.read(prefix, prefix=True)
        while True:
            yield from page.keys
            if not page.next:
                return
            page = self.read(prefix, page.revision, True, page.next)

    def read(
        self, key: Text, revision: Optional[int] = None, prefix: bool = False, start: Optional[bytes] = None,
        stop: Optional[Stop] = None,
    ) -> Page:
        """One page of keys."""
        query: JSON = {"from": start} if start else {}
        said = self._client.call(
            "GET", "/v1/coordination/keys", key=encoded(key), prefix="true" if prefix else None, revision=revision,
            stop=stop, **query,
        )
        return Page([version(kv) for kv in said["kvs"]], int(said["revision"]), base64.b64decode(said["next"]))

    def put(self, key: Text, value: Text, lease: Optional[str] = None, if_revision: Optional[int] = None) -> bool:
        """Stores bytes or text. With if_revision only while that is the key's mod_revision, 0 for an absent key;
        returns whether it was stored."""
        put: JSON = {"key": base(key), "value": base(value)}
        return self._change(key, {"put": put if lease is None else {**put, "lease": lease}}, if_revision)

    def delete(self, key: Text, if_revision: Optional[int] = None) -> bool:
        """Deletes a key. Returns as put."""
        return self._change(key, {"delete": {"key": base(key)}}, if_revision)

    def _change(self, key: Text, step: JSON, if_revision: Optional[int]) -> bool:
        compare: List[JSON] = []
        if if_revision is not None:
            compare = [{"target": "MOD_REVISION", "operator": "EQUAL", "key": base(key), "number": if_revision}]
        return bool(self._client.command("/v1/coordination/txn", {"compare": compare, "then": [step]})["succeeded"])

    def watch(
        self, prefix: Text = "", key: Optional[Text] = None, revision: int = 0, prev: bool = False,
        stop: Optional[threading.Event] = None,
    ) -> Stream[Batch]:
        """The changes of the keys with a prefix, or of one key, from a revision on (0: from now on), across lost
        connections. Raises Compacted where changes are gone."""
        return Stream(lambda ends: self.follow(prefix if key is None else key, key is None, revision, prev, ends), stop)

    def follow(self, key: Text, prefix: bool, revision: int, prev: bool, stop: Stop) -> Iterator[Batch]:
        pauses = Pauses()
        while True:
            try:
                events: List[KeyEvent] = []
                ask: JSON = {
                    "key": encoded(key), "prefix": "true" if prefix else None, "prev_kv": "true" if prev else None,
                    "start_revision": revision or None,
                }
                for kind, _, data in self._client.events("/v1/coordination/watch", stop, **ask):
                    said = json.loads(data)
                    if kind == "compacted":
                        raise Compacted(int(said["compact_revision"]), int(said["header"]["revision"]))
                    events += [event(e) for e in said.get("events", [])]
                    if said.get("fragment"):  # the rest of the revision follows
                        continue
                    fresh = Batch(
                        [e for e in events if e.revision >= revision], max(int(said["next_revision"]), revision),
                    )
                    events, revision, pauses = [], fresh.next, Pauses()
                    if kind != "created":
                        yield fresh
            except (Error, OSError, KeyError, ValueError) as e:
                if isinstance(e, Error) and e.status not in BUSY:
                    raise
                if not isinstance(e, (Error, OSError)) and pauses.next > 1:  # not once, but again and again
                    raise Broken(f"the answer of the peer is broken: {e!r}") from e
            pauses.rest(stop)


def version(kv: Mapping[str, Any]) -> KeyValue:
    return KeyValue(
        base64.b64decode(kv["key"]).decode(errors="surrogateescape"), base64.b64decode(kv["value"]),
        int(kv["create_revision"]), int(kv["mod_revision"]),
        int(kv["version"]), str(kv["lease"]), kv.get("lease_tag", ""))


def event(e: Mapping[str, Any]) -> KeyEvent:
    now = version(e["kv"])
    before = e.get("prev_kv")
    return KeyEvent(
        now.mod_revision, now.key, None if e.get("type") == "DELETE" else now,
        None if before is None else version(before),
    )
