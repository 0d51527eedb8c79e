"""Client of a blackholed peer on the same host: instances, locks with fencing tokens, keys, and grants. The standard library is enough.

    from blackholed import Client

    peer = Client()                                   # http://127.0.0.1:8500
    with peer.register("mail", "10.0.0.9", 25):       # renewed while the block runs
        for i in peer.discover("db"): ...
        with peer.session(ttl=15) as s, s.lock("jobs", wait=30) as held:
            work(token=held.token)                    # the resource refuses smaller tokens
            held.check()                              # raises Lost after the lease ended
        grant = peer.reserve(key, ttl=3600)           # then: blackholed connect TOKEN
        peer.release(grant)

A lock is a promise about time, and a paused program loses track of time: give the token to the resource behind the lock.
What is kept survives every error, and says so: see Client. No proxy is used but the one that is given: it would get the token.
Offers and everything else of the API: Client.call, with the paths of /openapi.json.
"""

import base64
import http.client
import json
import logging
import random
import secrets
import socket
import ssl
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

__all__ = ["Client", "Error", "Instances", "Lost", "NotAcquired"]

log = logging.getLogger("blackholed")

# A clock that goes on while the machine sleeps. That of time.monotonic stops on Linux and macOS: a laptop would believe in its locks.
CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC if sys.platform == "darwin" else None)


def clock():
    return time.monotonic() if CLOCK is None else time.clock_gettime(CLOCK)


class Error(Exception):
    """A refusal of the peer. word is its kind ("not_found", "pool_exhausted"), field what it is about."""

    def __init__(self, status, body):
        self.status, self.body = status, body
        self.word, self.field = body.get("error", ""), body.get("field", "")
        super().__init__(f"{status} {self.word}: {body.get('message', '')}")


class Lost(Exception):
    """The lease ended: others may hold its locks from now on."""


class NotAcquired(Exception):
    """Others held the lock until the end of the wait."""


class Answer(dict):
    """What the peer said. An answer without what it should have is broken, as a cut one is."""

    def __missing__(self, name):
        raise ConnectionError(f"the answer of the peer is broken: it has no {name}")


class Instances(list):
    """Instances of a service. stale says that they may be outdated, for age seconds, and reason why."""

    def __init__(self, instances, stale=False, reason="", age=0.0):
        super().__init__(instances)
        self.stale, self.reason, self.age = stale, reason, age


class Client:
    """One peer. It is safe for concurrent use. Calls that only read, or that the peer applies once, repeat themselves for `patience`
    seconds while it is unreachable or its answers are broken.

    on_trouble(kept, error) is called when an instance or a session cannot be renewed, and with None when it is renewed again; it
    may run in another thread. Without one, the logger "blackholed" warns. proxy is an URL; the environment's proxies are not used."""

    def __init__(self, address="http://127.0.0.1:8500", token=None, timeout=10.0, patience=30.0, ca=None, proxy=None, on_trouble=None):
        self.address, self.token, self.timeout, self.patience = address.rstrip("/"), token, timeout, patience
        self.on_trouble = on_trouble
        tls = urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=ca)) if self.address.startswith("https") else None
        self.opener = urllib.request.OpenerDirector()  # without redirects: they would carry the token elsewhere
        for handler in (
            urllib.request.ProxyHandler({"http": proxy, "https": proxy} if proxy else {}), urllib.request.HTTPHandler(), tls,
            urllib.request.HTTPErrorProcessor(), urllib.request.HTTPDefaultErrorHandler(), urllib.request.UnknownHandler(),
        ):
            if handler:
                self.opener.add_handler(handler)
        self.guard, self.known, self.idle = threading.Lock(), {}, []  # the guard guards both: last lists, identities

    def call(self, method, path, body=None, timeout=None, repeat=None, raw=False, **query):
        """One request. Returns the decoded JSON, with raw the bytes. Raises Error, or OSError without a whole answer. A callable
        body makes the body of each attempt. repeat="cut" repeats it without an answer alone."""
        query = {k: v for k, v in query.items() if v is not None}
        url = self.address + path + ("?" + urllib.parse.urlencode(query, doseq=True) if query else "")
        headers = {"Authorization": "Bearer " + self.token} if self.token else {}
        if body is not None and not isinstance(body, bytes):
            headers["Content-Type"] = "application/json"
        end = self.until(timeout) if (method == "GET" if repeat is None else repeat) else 0
        pause, attempts = 0.05, 0
        while True:
            attempts += 1
            try:
                data = body() if callable(body) else body
                data = data if data is None or isinstance(data, bytes) else json.dumps(data).encode()
                return self.once(urllib.request.Request(url, data, headers, method=method), timeout or self.timeout, raw)
            except (Error, OSError) as e:
                e.attempts = attempts
                if isinstance(e, Error) and (e.status not in (502, 503) or repeat == "cut") or clock() >= end:
                    raise
            time.sleep(min(pause * random.uniform(0.8, 1.2), max(0.0, end - clock())))
            pause = min(pause * 2, 2.0)

    def until(self, timeout):
        """The end of the repetitions of a call: a long wait that is cut leaves the whole patience."""
        return clock() + self.patience + max(0.0, (timeout or self.timeout) - self.timeout)

    def once(self, request, timeout, raw):
        try:
            try:
                with self.opener.open(request, timeout=timeout) as answer:
                    text = answer.read()
                    if raw:
                        return text
                    said = {} if answer.status == 204 else json.loads(text)
                    if not isinstance(said, dict):
                        raise ValueError("the JSON is no object")
                    if answer.headers.get("X-Blackhole-Stale"):  # the peer has lost its group
                        said["stale"], said["age"] = True, float(answer.headers.get("X-Blackhole-Age", 0))
                    return Answer(said)
            except urllib.error.HTTPError as e:
                text = e.read()
                try:
                    said = json.loads(text)
                except ValueError:
                    said = None
                raise Error(e.code, said if isinstance(said, dict) else {"message": text.decode(errors="replace")}) from None
        except (http.client.HTTPException, ValueError) as e:  # cut, or no HTTP or JSON
            raise ConnectionError(f"the answer of the peer is broken: {e!r}") from e

    def command(self, path, body, timeout=None, **query):
        """A change that the group applies once, though it is repeated: it knows the repetition by an identity and a number."""
        end = self.until(timeout)
        with self.guard:
            identity = self.idle.pop() if self.idle else None
        try:
            for attempt in range(8):
                if identity is None:
                    identity = [self.call("POST", "/v1/coordination/clients", {}, repeat=True)["client"], 0]
                identity[1] += 1
                named = {"client": identity[0], "sequence": identity[1]}
                try:
                    return self.call("POST", path, lambda: {**(body() if callable(body) else body), "attempt": named}, timeout, True, **query)
                except Error as e:
                    if e.status != 404 or e.field not in ("client", "token") or clock() >= end:
                        raise
                    if e.field == "client":  # forgotten; "token": the claim of a lost connection was given back
                        identity = None
                        if e.attempts > 1:  # the group may have applied it before
                            raise
            raise ConnectionError("the group forgets each identity of this program")
        finally:
            if identity is not None:
                with self.guard:
                    self.idle.append(identity)

    # Instances

    def register(self, service, host, port, id=None, **spec):
        """Registers an instance and keeps it until close() or the end of a with block. spec has the other fields of a
        registration: zone, version, tags, health_check, namespace, ..."""
        return Instance(self, service, {"id": id or f"{service}-{socket.gethostname()}-{port}", "host": host, "port": port, **spec})

    def discover(self, service, **filters):
        """The Instances that are UP, as dictionaries; filters are those of the API: zone, version, tags, health. While the peer does not
        answer, the last list, which says that it is stale; without one it raises."""
        question = (service, repr(sorted(filters.items())))
        with self.guard:
            known = self.known.get(question)
        try:
            answer = self.call("GET", f"/v1/services/{quote(service)}/instances", timeout=min(self.timeout, 2.0) if known else None, repeat=not known, **filters)
            found = instances(answer)
        except (Error, OSError) as e:
            if known is None or isinstance(e, Error) and e.status not in (502, 503):
                raise
            at, found = known
            return outdated(found, e, clock() - at)
        with self.guard:
            self.known.pop(question, None)
            self.known[question] = (clock(), found)
            if len(self.known) > 256:
                del self.known[next(iter(self.known))]
        return found

    def watch(self, service, wait=30, **filters):
        """Yields the Instances now and after each change, for ever. When the peer is lost, it yields the last ones, which say that
        they are stale, and goes on when the peer is back; before the first answer it raises."""
        index, found, at = None, None, 0.0
        pause = 0.05
        while True:
            try:
                answer = self.call("GET", f"/v1/services/{quote(service)}/watch", timeout=wait + self.timeout, repeat=index is None, index=index, wait=f"{wait}s" if index is not None else None, **filters)
                fresh = instances(answer)
            except (Error, OSError) as e:
                if found is None or isinstance(e, Error) and e.status not in (502, 503):
                    raise
                if not found.stale:
                    found = outdated(found, e, clock() - at)
                    yield found
                time.sleep(pause * random.uniform(0.8, 1.2))
                pause = min(pause * 2, 2.0)
                continue
            at, pause = clock(), 0.05
            if answer["index"] != index or found.stale != fresh.stale:
                index, found = answer["index"], fresh
                yield found

    # Locks

    def session(self, ttl=15, application=None):
        """A lease that is kept alive until close() or the end of a with block: the owner of locks and keys."""
        return Session(self, ttl, application)

    # Grants: units of what another peer sells. A grant is a dictionary: token, provider_id, units, state ("active"), left_ms, ...

    def reserve(self, key, units=1, ttl=None, max_price=None, sequence=None, hold=False, request_id=None):
        """Takes units of the offer with a key, for ttl seconds (None: as long as it allows), or raises Error: its message has what is
        free, your share, the price. hold: for a minute, until extend or a connection confirms it. One request_id has one effect."""
        body = {"key": key, "units": units, "max_price": max_price, "sequence": sequence, "hold": hold, "ttl_ms": milliseconds(ttl)}
        body = {k: v for k, v in body.items() if v is not None}
        return granted(self.trade("POST", "", {**body, "request_id": request_id or secrets.token_hex(16)}))

    def extend(self, grant, ttl=None):
        """Gives a grant its time anew, or ttl seconds from now on. Raises Error with status 410 after its end."""
        body = {"provider_id": grant["provider_id"], "ttl_ms": milliseconds(ttl) or 0, "request_id": secrets.token_hex(16)}
        return granted(self.trade("PUT", f"/{grant['token']}/extend", body))

    def release(self, grant):
        """Gives the units of a grant back."""
        return granted(self.trade("DELETE", f"/{grant['token']}", provider_id=grant["provider_id"]))

    def revoke(self, token, reason=""):
        """Takes a grant that this peer gave from its holder. Its connections end at once."""
        return granted(self.call("POST", f"/v1/trade/given/{token}/revoke", {"reason": reason}))

    def grants(self):
        """held and given grants, and the stocks of own offers: id, unit, free, total, serve."""
        answer = self.call("GET", "/v1/trade/grants")
        return {**answer, **{side: [granted({"grant": g}) for g in answer[side]] for side in ("held", "given")}}

    def trade(self, method, path, body=None, **query):
        return self.call(method, "/v1/trade/grants" + path, body, max(self.timeout, 30.0), "cut", **query)  # the peer asks the other one for 20 s

    # Keys: text, or bytes. A key that is no UTF-8 is shown as text with surrogates (PEP 383), and taken back as such.

    def get(self, key, revision=None):
        """The value of a key as bytes, None without it."""
        found = self.entry(key, revision)
        return None if found is None else base64.b64decode(found["value"])

    def entry(self, key, revision=None):
        """A key with its revisions (mod_revision, create_revision, version), None without it."""
        try:
            return self.call("GET", "/v1/coordination/key", key=encoded(key), revision=revision)["kvs"][0]
        except Error as e:
            if e.status == 404:
                return None
            raise

    def put(self, key, value, lease=None, if_revision=None):
        """Stores bytes or text. With if_revision only while that is the key's mod_revision, 0 for an absent key; returns
        whether it was stored."""
        put = {"key": base64.b64encode(encoded(key)).decode(), "value": base64.b64encode(encoded(value)).decode()}
        return self.change(key, {"put": put if lease is None else {**put, "lease": lease}}, if_revision)

    def delete(self, key, if_revision=None):
        return self.change(key, {"delete": {"key": base64.b64encode(encoded(key)).decode()}}, if_revision)

    def list(self, prefix=""):
        """Yields (key, value) of all keys with a prefix, of one revision, page by page."""
        start = revision = None
        while True:
            page = self.call("GET", "/v1/coordination/keys", key=encoded(prefix), prefix="true", revision=revision, **({"from": start} if start else {}))
            for kv in page["kvs"]:
                yield base64.b64decode(kv["key"]).decode(errors="surrogateescape"), base64.b64decode(kv["value"])
            start, revision = base64.b64decode(page["next"]), page["revision"]
            if not start:
                return

    def change(self, key, step, if_revision):
        compare = [] if if_revision is None else [{"target": "MOD_REVISION", "operator": "EQUAL", "key": base64.b64encode(encoded(key)).decode(), "number": if_revision}]
        return self.command("/v1/coordination/txn", {"compare": compare, "then": [step]})["succeeded"]


def milliseconds(seconds):
    return None if seconds is None else int(seconds * 1000)


def granted(answer):
    """A grant with numbers in place of their digits. signed is for others who want a proof."""
    grant = Answer(answer["grant"])
    numbers = ("token", "sequence", "ttl_ms", "issued_ms", "left_ms", "sent_bytes", "received_bytes")
    grant.update({n: int(grant[n]) for n in numbers if n in grant}, state=grant["state"].removeprefix("STATE_").lower())
    return {**grant, "signed": answer["signed"]} if answer.get("signed") else dict(grant)


def encoded(text):
    return text.encode(errors="surrogateescape") if isinstance(text, str) else text


def instances(answer):
    stale = answer.get("stale", False)
    return Instances(answer["instances"], stale, "the peer has no contact to its group" if stale else "", answer.get("age", 0.0))


def outdated(known, error, since):
    return Instances(known, True, f"the peer does not answer: {error}", known.age + since)


class Kept:
    """Something that a thread renews until close(). Subclasses have renew(), which returns the seconds until the next time. cause is
    the error of the last renewal, None after a good one."""

    def __init__(self, client=None):
        self.client, self.ended, self.cause = client, threading.Event(), None
        self.keeper = threading.Thread(target=self.keep, daemon=True)

    def keep(self):
        pause = self.interval
        while not self.ended.wait(pause):
            try:
                pause = self.renew()
                self.tell(None)
            except Exception as e:  # whatever it is, the lease must not end for it
                pause = self.interval if isinstance(e, Error) and e.status not in (502, 503) else min(1.0, self.interval)
                self.tell(e)

    def tell(self, error):
        """Tells when the renewals begin to fail, and when they succeed again."""
        news, self.cause = (error is None) != (self.cause is None), error
        if not news:
            return
        try:
            if self.client is not None and self.client.on_trouble is not None:
                self.client.on_trouble(self, error)
            elif error is None:
                log.warning("%s is renewed again", self)
            else:
                log.warning("%s is not renewed: %r", self, error)
        except Exception:
            log.exception("on_trouble failed")

    def stop(self):
        """Ends the renewals, and waits for the one under way: it could undo what close() does. Returns False after the end."""
        first = not self.ended.is_set()
        self.ended.set()
        self.keeper.join()
        return first

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Instance(Kept):
    """A registration that heartbeats keep. It registers again after the peer forgot it."""

    def __init__(self, client, service, spec):
        super().__init__(client)
        self.service, self.spec, self.interval = service, spec, 10.0
        self.register(repeat=True)
        self.keeper.start()

    def register(self, repeat):
        answer = self.client.call("POST", f"/v1/services/{quote(self.service)}/instances", self.spec, repeat=repeat)
        self.id, self.lease, self.interval = answer["instance_id"], answer["lease_id"], answer["lease_ttl"] / 3

    def renew(self):
        try:
            self.client.call("PUT", f"/v1/leases/{self.lease}/renew")
        except Error as e:
            if e.status not in (404, 410):
                raise
            self.register(repeat=False)
        return self.interval

    def __str__(self):
        return f"instance {self.id} of {self.service}"

    def close(self):
        if self.stop():
            try:
                self.client.call("DELETE", f"/v1/services/{quote(self.service)}/instances/{quote(self.id)}", repeat=True, namespace=self.spec.get("namespace"))
            except Error as e:
                if e.status not in (404, 410):
                    raise


class Session(Kept):
    """A lease. lost() says whether it may have ended: its time counts from before each renewal was sent, less a margin of 5 %."""

    def __init__(self, client, ttl, application):
        super().__init__(client)
        sent = clock()
        body = {"ttl": ttl} if application is None else {"ttl": ttl, "application": application}
        granted = client.command("/v1/coordination/leases", body)
        self.lease, self.ttl = granted["id"], int(granted["ttl_ms"]) / 1000
        self.deadline, self.interval = sent + self.ttl * 0.95, self.ttl / 3
        self.keeper.start()

    def renew(self):
        sent = clock()
        try:
            self.client.call("PUT", f"/v1/coordination/leases/{self.lease}/keepalive", timeout=min(self.client.timeout, self.ttl / 3))["ttl_ms"]
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

    def __str__(self):
        return f"lease {self.lease}"

    def lost(self):
        return clock() >= self.deadline

    def check(self):
        if self.lost():
            raise Lost("the lease is lost: others may hold its locks")

    def lock(self, name, wait=None, shared=False, permits=None, metadata=b"", also=()):
        """Takes a lock within wait seconds (None: without a limit, 0: at once), or raises NotAcquired. The queue is fair. also: further
        names in the same moment, all or none; who names several by one call never waits in a circle. The session must hold none yet."""
        self.check()
        end = None if wait is None else clock() + wait
        body = {"lease_id": self.lease, "metadata": base64.b64encode(metadata).decode(), "others": list(also)}
        if permits is not None:
            body["mode"], body["permits"] = "SHARE_MODE_PERMIT", permits
        elif shared:
            body["mode"] = "SHARE_MODE_SHARED"
        def limited():
            return {**body, "timeout_ms": -1 if end is None else max(0, int((end - clock()) * 1000))}

        answer = self.client.command("/v1/coordination/lock", limited, 86400 if wait is None else wait + self.client.timeout, name=name)
        if not answer["acquired"]:
            raise NotAcquired(f"others hold the lock {name!r}" + (f", or one of {also!r}" if also else ""))
        self.check()
        return Held(self, name, int(answer["fencing_token"]), also)

    def close(self):
        if self.stop():
            self.deadline = 0.0
            try:
                self.client.call("DELETE", f"/v1/coordination/leases/{self.lease}", repeat=True)
            except Error as e:
                if e.status != 404:
                    raise


class Held:
    """A held lock, with those of also. token rises from holder to holder; check() before each step that must not run twice."""

    def __init__(self, session, name, token, also=()):
        self.session, self.name, self.token, self.also = session, name, token, also

    def check(self):
        self.session.check()

    def release(self):
        for name in (self.name, *self.also):
            try:
                self.session.client.call("DELETE", "/v1/coordination/lock", repeat=True, name=name, lease_id=self.session.lease, fencing_token=self.token)
            except Error as e:
                if e.status != 404 and not (e.status == 409 and e.attempts > 1):  # an earlier attempt released it
                    raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if not self.session.lost():
            self.release()


def quote(text):
    return urllib.parse.quote(text, safe="")
