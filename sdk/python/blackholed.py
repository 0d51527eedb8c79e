"""Client of a blackholed peer on the same host: instances, locks with fencing tokens, and keys. The standard library is enough.

    from blackholed import Client

    peer = Client()                                   # http://127.0.0.1:8500
    with peer.register("mail", "10.0.0.9", 25):       # renewed while the block runs
        for i in peer.discover("db"): ...
        with peer.session(ttl=15) as s, s.lock("jobs", wait=30) as held:
            work(token=held.token)                    # the resource refuses smaller tokens
            held.check()                              # raises Lost after the lease ended

A lock is a promise about time, and a paused program loses track of time: give the token to the resource behind the lock.
Offers and everything else of the API: Client.call, with the paths of /openapi.json.
"""

import base64
import json
import random
import socket
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

__all__ = ["Client", "Error", "Lost", "NotAcquired"]


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


class Client:
    """One peer. It is safe for concurrent use. Calls that only read, or that are applied once by their content, repeat
    themselves while the peer is unreachable, for `patience` seconds."""

    def __init__(self, address="http://127.0.0.1:8500", token=None, timeout=10.0, patience=30.0, ca=None):
        self.address, self.token, self.timeout, self.patience = address.rstrip("/"), token, timeout, patience
        self.context = ssl.create_default_context(cafile=ca) if self.address.startswith("https") else None

    def call(self, method, path, body=None, timeout=None, repeat=None, raw=False, **query):
        """One request. Returns the decoded JSON, with raw the bytes. Raises Error, or OSError without an answer."""
        query = {k: v for k, v in query.items() if v is not None}
        url = self.address + path + ("?" + urllib.parse.urlencode(query, doseq=True) if query else "")
        headers = {"Authorization": "Bearer " + self.token} if self.token else {}
        data = body
        if body is not None and not isinstance(body, bytes):
            data, headers["Content-Type"] = json.dumps(body).encode(), "application/json"
        end = time.monotonic() + (self.patience if (method == "GET" if repeat is None else repeat) else 0)
        pause = 0.05
        while True:
            try:
                request = urllib.request.Request(url, data, headers, method=method)
                with urllib.request.urlopen(request, timeout=timeout or self.timeout, context=self.context) as answer:
                    text = answer.read()
                    return text if raw else json.loads(text or b"{}")
            except urllib.error.HTTPError as e:
                text = e.read()
                try:
                    said = json.loads(text)
                except ValueError:
                    said = {"message": text.decode(errors="replace")}
                refused = Error(e.code, said)
                if e.code != 503 or time.monotonic() >= end:
                    raise refused from None
            except (OSError, socket.timeout):
                if time.monotonic() >= end:
                    raise
            time.sleep(min(pause * random.uniform(0.8, 1.2), max(0.0, end - time.monotonic())))
            pause = min(pause * 2, 2.0)

    # Instances

    def register(self, service, host, port, id=None, **spec):
        """Registers an instance and keeps it until close() or the end of a with block. spec has the other fields of a
        registration: zone, version, tags, health_check, namespace, ..."""
        return Instance(self, service, {"id": id or f"{service}-{socket.gethostname()}-{port}", "host": host, "port": port, **spec})

    def discover(self, service, **filters):
        """The instances that are UP, as dictionaries; filters are those of the API: zone, version, tags, health."""
        return self.call("GET", f"/v1/services/{quote(service)}/instances", **filters)["instances"]

    def watch(self, service, wait=30, **filters):
        """Yields the instances now and after each change, for ever."""
        index = None
        while True:
            answer = self.call("GET", f"/v1/services/{quote(service)}/watch", timeout=wait + self.timeout, index=index, wait=f"{wait}s" if index is not None else None, **filters)
            if answer["index"] != index:
                index = answer["index"]
                yield answer["instances"]

    # Locks

    def session(self, ttl=15, application=None):
        """A lease that is kept alive until close() or the end of a with block: the owner of locks and keys."""
        return Session(self, ttl, application)

    # Keys

    def get(self, key, revision=None):
        """The value of a key as bytes, None without it."""
        found = self.entry(key, revision)
        return None if found is None else base64.b64decode(found["value"])

    def entry(self, key, revision=None):
        """A key with its revisions (mod_revision, create_revision, version), None without it."""
        try:
            return self.call("GET", "/v1/coordination/key", key=key, revision=revision)["kvs"][0]
        except Error as e:
            if e.status == 404:
                return None
            raise

    def put(self, key, value, lease=None, if_revision=None):
        """Stores bytes or text. With if_revision only while that is the key's mod_revision, 0 for an absent key; returns
        whether it was stored."""
        value = value.encode() if isinstance(value, str) else value
        return self.conditional("PUT", value, key=key, lease_id=lease, if_revision=if_revision)

    def delete(self, key, if_revision=None):
        return self.conditional("DELETE", None, key=key, if_revision=if_revision)

    def list(self, prefix=""):
        """Yields (key, value) of all keys with a prefix, of one revision, page by page."""
        start = revision = None
        while True:
            page = self.call("GET", "/v1/coordination/keys", key=prefix, prefix="true", revision=revision, **({"from": start} if start else {}))
            for kv in page["kvs"]:
                yield base64.b64decode(kv["key"]).decode(), base64.b64decode(kv["value"])
            start, revision = base64.b64decode(page["next"]), page["revision"]
            if not start:
                return

    def conditional(self, method, body, **query):
        try:
            return self.call(method, "/v1/coordination/key", body, **query)["succeeded"]
        except Error as e:
            if e.status == 409 and query.get("if_revision") is not None:
                return False
            raise


class Kept:
    """Something that a thread renews until close(). Subclasses have renew(), which returns the seconds until the next time."""

    def __init__(self):
        self.ended, self.cause = threading.Event(), None
        self.keeper = threading.Thread(target=self.keep, daemon=True)

    def keep(self):
        pause = self.interval
        while not self.ended.wait(pause):
            pause = self.renew()

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
        super().__init__()
        self.client, self.service, self.spec, self.interval = client, service, spec, 10.0
        self.register(repeat=True)
        self.keeper.start()

    def register(self, repeat):
        answer = self.client.call("POST", f"/v1/services/{quote(self.service)}/instances", self.spec, repeat=repeat)
        self.id, self.lease, self.interval = answer["instance_id"], answer["lease_id"], answer["lease_ttl"] / 3

    def renew(self):
        try:
            self.client.call("PUT", f"/v1/leases/{self.lease}/renew")
        except Error as e:
            if e.status in (404, 410):
                try:
                    self.register(repeat=False)
                except (Error, OSError):
                    return 1.0
        except OSError:
            return 1.0
        return self.interval

    def close(self):
        if self.stop():
            try:
                self.client.call("DELETE", f"/v1/services/{quote(self.service)}/instances/{quote(self.id)}", namespace=self.spec.get("namespace"))
            except Error as e:
                if e.status not in (404, 410):
                    raise


class Session(Kept):
    """A lease. lost() says whether it may have ended: its time counts from before each renewal was sent, less a margin of 5 %."""

    def __init__(self, client, ttl, application):
        super().__init__()
        self.client = client
        sent = time.monotonic()
        body = {"ttl": ttl} if application is None else {"ttl": ttl, "application": application}
        granted = client.call("POST", "/v1/coordination/leases", body, repeat=True)
        self.lease, self.ttl = granted["id"], int(granted["ttl_ms"]) / 1000
        self.deadline, self.interval = sent + self.ttl * 0.95, self.ttl / 3
        self.keeper.start()

    def renew(self):
        sent = time.monotonic()
        try:
            self.client.call("PUT", f"/v1/coordination/leases/{self.lease}/keepalive", timeout=self.ttl / 3)
            self.deadline = sent + self.ttl * 0.95
            return self.interval
        except Error as e:
            if e.status == 404:
                self.deadline = 0.0
                self.ended.set()
        except OSError:
            pass
        if time.monotonic() >= self.deadline:
            self.ended.set()
        return min(1.0, self.interval)

    def lost(self):
        return time.monotonic() >= self.deadline

    def check(self):
        if self.lost():
            raise Lost("the lease is lost: others may hold its locks")

    def lock(self, name, wait=None, shared=False, permits=None, metadata=b""):
        """Takes a lock within wait seconds (None: without a limit, 0: at once), or raises NotAcquired. The queue is fair."""
        self.check()
        body = {"lease_id": self.lease, "timeout_ms": -1 if wait is None else int(wait * 1000), "metadata": base64.b64encode(metadata).decode()}
        if permits is not None:
            body["mode"], body["permits"] = "SHARE_MODE_PERMIT", permits
        elif shared:
            body["mode"] = "SHARE_MODE_SHARED"
        answer = self.client.call("POST", "/v1/coordination/lock", body, timeout=86400 if wait is None else wait + self.client.timeout, name=name)
        if not answer["acquired"]:
            raise NotAcquired(f"others hold the lock {name!r}")
        self.check()
        return Held(self, name, int(answer["fencing_token"]))

    def close(self):
        if self.stop():
            self.deadline = 0.0
            try:
                self.client.call("DELETE", f"/v1/coordination/leases/{self.lease}")
            except Error as e:
                if e.status != 404:
                    raise


class Held:
    """A held lock. token rises from holder to holder; check() before each step that must not run twice."""

    def __init__(self, session, name, token):
        self.session, self.name, self.token = session, name, token

    def check(self):
        self.session.check()

    def release(self):
        try:
            self.session.client.call("DELETE", "/v1/coordination/lock", name=self.name, lease_id=self.session.lease, fencing_token=self.token)
        except Error as e:
            if e.status != 404:
                raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if not self.session.lost():
            self.release()


def quote(text):
    return urllib.parse.quote(text, safe="")
