"""Instances of applications."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING, Any, Iterator, List, Mapping, Optional, cast

from ._http import BUSY, Error, Pauses, Stop, Stream, clock, quote
from ._kept import Kept
from .types import Instance

if TYPE_CHECKING:
    from .client import Client


class Instances(List[Instance]):
    """Instances of a service. stale says that they may be outdated, for age seconds, and reason why."""

    def __init__(
        self, instances: List[Instance], stale: bool = False, reason: str = "", age: float = 0.0, revision: int = 0,
    ) -> None:
        super().__init__(instances)
        self.stale, self.reason, self.age, self.revision = stale, reason, age, revision


class Services:
    """The instances that applications registered, at all peers of the group."""

    def __init__(self, client: Client) -> None:
        self._client, self._guard = client, threading.Lock()
        self._known: dict[tuple[str, str], tuple[float, Instances]] = {}  # the last lists, and when they came

    def register(self, service: str, host: str, port: int, id: Optional[str] = None, **spec: Any) -> Registered:
        """Registers an instance and keeps it until close() or the end of a with block. spec has the other fields of a
        registration: zone, version, tags, health_check, namespace, ..."""
        return Registered(
            self._client, service,
            {"id": id or f"{service}-{socket.gethostname()}-{port}", "host": host, "port": port, **spec},
        )

    def list(self, namespace: Optional[str] = None) -> List[str]:
        """The names of the services that have instances, ascending."""
        names: set[str] = set()
        for offset in range(0, 1_000_000, 1000):
            page = self._client.call("GET", "/v1/services", namespace=namespace, limit=1000, offset=offset)
            names.update(record["name"] for record in page)
            if len(page) < 1000:
                break
        return sorted(names)

    def discover(self, service: str, **filters: Any) -> Instances:
        """The instances that are UP; filters are those of the API: zone, version, tags, health. While the peer does not
        answer, the last list, which says that it is stale; without one it raises."""
        question = (service, repr(sorted(filters.items())))
        with self._guard:
            at, known = self._known.get(question, (0.0, None))
        try:
            timeout = None if known is None else min(self._client.timeout, 2.0)
            found = listed(
                self._client.call(
                    "GET", f"/v1/services/{quote(service)}/instances", timeout=timeout, repeat=known is None, **filters,
                )
            )
        except (Error, OSError) as e:
            if known is None or isinstance(e, Error) and e.status not in BUSY:
                raise
            return outdated(known, f"the peer does not answer: {e}", clock() - at)
        if found.stale and known is not None and not known.stale:
            return kept(found, known)
        with self._guard:
            self._known.pop(question, None)
            self._known[question] = (clock(), found)
            if len(self._known) > 256:
                del self._known[next(iter(self._known))]
        return found

    def follow(
        self, service: str, wait: float = 30, stop: Optional[threading.Event] = None, **filters: Any,
    ) -> Stream[Instances]:
        """The Instances now and after each change. When the peer is lost, the last ones, which say that they are
        stale, until the peer is back; before the first answer it raises."""
        return Stream(lambda ends: self._follow(service, wait, ends, filters), stop)

    def _follow(self, service: str, wait: float, stop: Stop, filters: Mapping[str, Any]) -> Iterator[Instances]:
        index: Optional[int] = None
        found: Optional[Instances] = None
        sure: Optional[Instances] = None  # the last list of a peer in contact with its group
        at, pauses = 0.0, Pauses()
        while True:
            try:
                answer = self._client.call(
                    "GET", f"/v1/services/{quote(service)}/watch", timeout=wait + self._client.timeout,
                    repeat=index is None, stop=stop,
                    index=index, wait=f"{wait}s" if index is not None else None, **filters)
                fresh = kept(listed(answer), sure)
                number = int(answer["index"])
            except (Error, OSError) as e:
                if found is None or isinstance(e, Error) and e.status not in BUSY:
                    raise
                if not found.stale:
                    found = outdated(found, f"the peer does not answer: {e}", clock() - at)
                    yield found
                pauses.rest(stop)
                continue
            at, pauses = clock(), Pauses()
            if not fresh.stale:
                sure = fresh
            if number != index or found is None or found.stale != fresh.stale:
                index, found = number, fresh
                yield found


def listed(answer: Mapping[str, Any]) -> Instances:
    stale = bool(answer.get("stale", False))
    reason = "the peer has no contact to its group" if stale else ""
    return Instances(
        cast(List[Instance], answer["instances"]), stale, reason, answer.get("age", 0.0), int(answer.get("index", 0)),
    )


def outdated(known: Instances, reason: str, since: float) -> Instances:
    return Instances(known, True, reason, known.age + since, known.revision)


OWN = 1 << 52  # from here on a peer without its group numbers changes by itself


def kept(fresh: Instances, sure: Optional[Instances]) -> Instances:
    """The instances that a peer without its group says, with those that it forgot by a restart."""
    if sure is None or not fresh.stale or sure.revision <= fresh.revision < OWN:
        return fresh
    here = {i["id"] for i in fresh}
    return Instances([*fresh, *(i for i in sure if i["id"] not in here)], True, fresh.reason, fresh.age, fresh.revision)


class Registered(Kept):
    """A registration that heartbeats keep. It registers again after the peer forgot it."""

    def __init__(self, client: Client, service: str, spec: Mapping[str, Any]) -> None:
        super().__init__(client)
        self._client, self.service, self.spec = client, service, spec
        self._register(repeat=True)
        self.keeper.start()

    def _register(self, repeat: bool) -> None:
        answer = self._client.call("POST", f"/v1/services/{quote(self.service)}/instances", self.spec, repeat=repeat)
        self.id: str = answer["instance_id"]
        self.lease: str = answer["lease_id"]
        self.interval = answer["lease_ttl"] / 3

    def renew(self) -> float:
        try:
            self._client.call("PUT", f"/v1/leases/{self.lease}/renew")
        except Error as e:
            if e.status not in (404, 410):
                raise
            self._register(repeat=False)
        return self.interval

    def __str__(self) -> str:
        return f"instance {self.id} of {self.service}"

    def close(self) -> None:
        """Deregisters the instance."""
        if self.stop():
            try:
                self._client.call(
                    "DELETE", f"/v1/services/{quote(self.service)}/instances/{quote(self.id)}", repeat=True,
                    namespace=self.spec.get("namespace"),
                )
            except Error as e:
                if e.status not in (404, 410):
                    raise
