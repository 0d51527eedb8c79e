"""Sessions, locks and elections."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Iterator, Mapping, Optional, Sequence

from ._http import JSON, Error, Stop, Stream, Text, base, clock, milliseconds
from ._kept import Kept
from .kv import Compacted
from .types import LockState

if TYPE_CHECKING:
    from .client import Client


class Lost(Exception):
    """The lease ended: others may hold its locks from now on."""


class NotAcquired(Exception):
    """Others held the lock until the end of the wait."""


@dataclass(frozen=True)
class Leader:
    """The leader of an election as others see it. value is its last proclamation, None without a leader."""

    value: Optional[bytes]
    revision: int


class Locks:
    """Sessions, and what others hold."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def session(self, ttl: float = 15, application: Optional[str] = None) -> Session:
        """A lease that is kept alive until close() or the end of a with block: the owner of locks and keys."""
        return Session(self._client, ttl, application)

    def list(self, prefix: str = "") -> Iterator[LockState]:
        """The locks that clients hold or wait for."""
        after = ""
        while True:
            page = self._client.call("GET", "/v1/coordination/locks", prefix=prefix, after=after)["locks"]
            if not page:
                return
            yield from page
            after = page[-1]["name"]

    def leader(self, name: str) -> Optional[Leader]:
        """The leader of an election; None without a proclamation."""
        now = self._client.kv().get(leader_key(name))
        return None if now is None else Leader(now.value, now.mod_revision)

    def observe(self, name: str, stop: Optional[threading.Event] = None) -> Stream[Leader]:
        """The present leader and then every change. After a long loss of the peer, only the last of what was missed."""
        return Stream(lambda ends: self._observe(name, ends), stop)

    def _observe(self, name: str, stop: Stop) -> Iterator[Leader]:
        kv, key = self._client.kv(), leader_key(name)
        while True:
            page = kv.read(key, stop=stop)
            now = page.keys[0] if page.keys else None
            yield Leader(None, page.revision) if now is None else Leader(now.value, now.mod_revision)
            try:
                for batch in kv.follow(key, False, page.revision + 1, False, stop):
                    for e in batch.events:
                        yield Leader(None if e.kv is None else e.kv.value, e.revision)
            except Compacted:
                continue


def leader_key(name: str) -> str:
    return name + "/leader"


class Session(Kept):
    """A lease. lost() says whether it may have ended: its time counts from before each renewal was sent, less a margin
    of 5 %."""

    def __init__(self, client: Client, ttl: float, application: Optional[str]) -> None:
        super().__init__(client)
        self.client, sent = client, clock()
        body: JSON = {"ttl_ms": milliseconds(ttl)} if application is None else {
            "ttl_ms": milliseconds(ttl), "application": application,
        }
        granted = client.command("/v1/coordination/leases", body)
        self.lease: str = granted["id"]
        self.ttl = int(granted["ttl_ms"]) / 1000
        self.deadline, self.interval = sent + self.ttl * 0.95, self.ttl / 3
        self.keeper.start()

    def renew(self) -> float:
        sent = clock()
        try:
            self.client.call(
                "PUT", f"/v1/coordination/leases/{self.lease}/keepalive",
                timeout=min(self.client.timeout, self.ttl / 3),
            )["ttl_ms"]
            self.deadline = sent + self.ttl * 0.95
            return self.interval
        except Error as e:
            if e.status != 404:
                raise
            self.deadline = 0.0
        finally:
            if self.lost():
                self.ended.set()
                self.tell(Lost("the lease is lost: others may hold its locks"))
        return self.interval

    def __str__(self) -> str:
        return f"lease {self.lease}"

    def lost(self) -> bool:
        return clock() >= self.deadline

    def check(self) -> None:
        if self.lost():
            raise Lost("the lease is lost: others may hold its locks")

    def lock(
        self, name: str, wait: Optional[float] = None, shared: bool = False, permits: Optional[int] = None,
        metadata: Text = b"",
        also: Sequence[str] = (), stop: Optional[threading.Event] = None,
    ) -> Held:
        """Takes a lock within wait seconds (None: without a limit, 0: at once), or raises NotAcquired. The queue is
        fair. also: further names in the same moment, all or none; who names several by one call never waits in a
        circle. The session must hold none yet. stop ends the wait with Canceled."""
        self.check()
        end = None if wait is None else clock() + wait
        body: JSON = {"lease_id": self.lease, "metadata": base(metadata), "others": list(also)}
        if permits is not None:
            body["mode"], body["permits"] = "SHARE_MODE_PERMIT", permits
        elif shared:
            body["mode"] = "SHARE_MODE_SHARED"

        def limited() -> Mapping[str, Any]:
            return {**body, "timeout_ms": -1 if end is None else max(0, int((end - clock()) * 1000))}

        limit = 86400 if wait is None else wait + self.client.timeout
        answer = self.client.command("/v1/coordination/lock", limited, limit, Stop(stop), name=name)
        if not answer["acquired"]:
            raise NotAcquired(f"others hold the lock {name!r}" + (f", or one of {also!r}" if also else ""))
        self.check()
        return Held(self, name, int(answer["fencing_token"]), also)

    def campaign(
        self, name: str, value: Text, wait: Optional[float] = None, stop: Optional[threading.Event] = None,
    ) -> Leadership:
        """Waits until the session leads, and proclaims a value. Errors: as lock()."""
        lead = Leadership(self.lock(name, wait, metadata=value, stop=stop))
        try:
            lead.proclaim(value)
        except BaseException:
            lead.held.unlock()
            raise
        return lead

    def close(self) -> None:
        """Ends the lease, with its locks and keys."""
        if self.stop():
            self.deadline = 0.0
            try:
                self.client.call("DELETE", f"/v1/coordination/leases/{self.lease}", repeat=True)
            except Error as e:
                if e.status != 404:
                    raise


class Held:
    """A held lock, with those of also. token rises from holder to holder; check() before each step that must not run
    twice."""

    def __init__(self, session: Session, name: str, token: int, also: Sequence[str] = ()) -> None:
        self.session, self.name, self.token, self.also = session, name, token, also

    def check(self) -> None:
        self.session.check()

    def unlock(self) -> None:
        for name in (self.name, *self.also):
            try:
                self.session.client.call(
                    "DELETE", "/v1/coordination/lock", repeat=True, name=name, lease_id=self.session.lease,
                    fencing_token=self.token,
                )
            except Error as e:
                if e.status != 404 and not (e.status == 409 and e.attempts > 1):  # an earlier attempt released it
                    raise

    def __enter__(self) -> Held:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.session.lost():
            self.unlock()


class Leadership:
    """A won election: a held lock, and the key NAME/leader with the proclamation. It ends with the session."""

    def __init__(self, held: Held) -> None:
        self.held, self.token = held, held.token

    def check(self) -> None:
        self.held.check()

    def proclaim(self, value: Text) -> None:
        """Replaces the proclamation. Raises Lost if another one leads by now."""
        self._write(
            {"put": {"key": base(leader_key(self.held.name)), "value": base(value), "lease": self.held.session.lease}}
        )

    def resign(self) -> None:
        """Ends the leadership at once."""
        try:
            self._write({"delete": {"key": base(leader_key(self.held.name))}})
        except Lost:
            pass
        self.held.unlock()

    def _write(self, step: JSON) -> None:
        leads = {"target": "HOLDS", "operator": "EQUAL", "lock": self.held.name, "fencing_token": self.token}
        if not self.held.session.client.command(
            "/v1/coordination/txn", {"compare": [leads], "then": [step]},
        )["succeeded"]:
            raise Lost("another one leads by now")

    def __enter__(self) -> Leadership:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.held.session.lost():
            self.resign()


