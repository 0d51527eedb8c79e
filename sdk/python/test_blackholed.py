"""python3 test_blackholed.py ADDRESS BUYER: plays the client against a running peer, and another one that buys of it."""

import contextlib
import io
import json
import os
import socketserver
import sys
import threading
import time
import typing
import unittest
import unittest.mock

import blackholed.locks
import blackholed.manifest
import blackholed.types
from blackholed import Canceled, Client, Compacted, Error, Lost, NotAcquired
from blackholed._kept import Kept

BUYER = sys.argv.pop() if len(sys.argv) > 2 else ""
ADDRESS = sys.argv.pop() if len(sys.argv) > 1 else "http://127.0.0.1:8500"


def http(body, head="200 OK", length=None):
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return f"HTTP/1.1 {head}\r\nConnection: close\r\nContent-Length: {len(text) if length is None else length}\r\n\r\n".encode() + text


BROKEN = {
    "nothing": b"", "cut": http(b'{"inst', length=99), "no JSON": http(b'{"instances": [}'), "no object": http(b"7"), "no UTF-8": http(b'"\xff"'),
    "no HTTP": b"\xff\xfe\x00\r\n\r\n", "half a head": b"HTTP/1.1 200", "no length": http(b'{"inst', length="x"),
    "cut error": http(b"oops", "500 Internal Server Error", 99), "of a proxy": http(b"<html>", "502 Bad Gateway"), "error, no object": http(b"[]", "503 Busy"),
}


@contextlib.contextmanager
def liar(answer):
    """A peer that answers the nth request with the bytes of answer(n, its first line)."""
    seen = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self):
            line = self.rfile.readline().decode()
            seen.append((line, {k.lower(): v.strip() for k, _, v in (h.decode().partition(":") for h in iter(self.rfile.readline, b"\r\n"))}))
            self.rfile.read(int(seen[-1][1].get("content-length", 0)))
            self.wfile.write(answer(len(seen) - 1, line))

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", seen
        finally:
            server.shutdown()


class Broken(unittest.TestCase):
    """What a cut, garbled or absent answer, a proxy of the environment, and a sleep of the machine do."""

    def test_a_broken_answer_is_repeated(self):
        for name, text in BROKEN.items():
            with self.subTest(name), liar(lambda n, _: text if n == 0 else http({"instances": []})) as (address, seen):
                self.assertEqual(Client(address).services().discover("x") if name != "cut error" else [], [])
            with self.subTest(name + ", at last"), liar(lambda n, _: text) as (address, seen):
                with self.assertRaises((OSError, Error)):
                    Client(address, patience=0.1).services().discover("x")

    def test_the_keeper_survives_and_tells(self):
        for name, text in BROKEN.items():
            told, again = [], threading.Event()

            def answer(n, line):
                if "keepalive" not in line:
                    return http({"id": "7", "ttl_ms": "3000"} if "leases" in line else {"client": "1"})
                renewals.append(line)
                return text if len(renewals) <= 2 else http({"ttl_ms": "3000"})

            def trouble(kept, error):
                told.append(error)
                if error is None:
                    again.set()
                raise RuntimeError("a callback that fails ends nothing")

            renewals = []
            with self.subTest(name), liar(answer) as (address, _), self.assertLogs("blackholed"):
                session = Client(address, on_trouble=trouble).locks().session(ttl=3)
                session.deadline, session.ttl = session.deadline + 600, 600  # the test may be slow
                session.interval = 0.01
                self.assertTrue(again.wait(60), "the keeper ended")
                self.assertTrue(session.keeper.is_alive())
                self.assertEqual([e is None for e in told], [False, True])
                session.check()
                session.stop()

    def test_no_proxy_of_the_environment(self):
        with liar(lambda n, _: http({"instances": []})) as (address, seen), liar(lambda n, _: http({})) as (proxy, caught):
            names = {n: proxy for n in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY")}
            with unittest.mock.patch.dict(os.environ, names):
                os.environ.pop("no_proxy", None)
                self.assertEqual(Client(address, token="secret").services().discover("x"), [])
            self.assertEqual((len(seen), caught), (1, []))
            with self.assertRaises(OSError):
                Client(address, token="secret", proxy=proxy).services().discover("x")
            self.assertEqual(len(caught), 1, "a proxy that is given is used")

    def test_no_redirect_takes_the_token_away(self):
        with liar(lambda n, _: http({"instances": []})) as (other, caught):
            away = http(b"", f"302 Found\r\nLocation: {other}/")
            with liar(lambda n, _: away) as (address, _), self.assertRaises(Error):
                Client(address, token="secret").services().discover("x")
            self.assertEqual(caught, [])

    def test_a_machine_that_slept(self):
        if sys.platform == "linux":
            self.assertEqual(blackholed._http.CLOCK, time.CLOCK_BOOTTIME)
        with liar(lambda n, line: http({"id": "7", "ttl_ms": "15000", "client": "1"})) as (address, _):
            session = Client(address).locks().session()
            session.check()
            slept = blackholed.locks.clock() + 3600
            with unittest.mock.patch.object(blackholed.locks, "clock", lambda: slept), unittest.mock.patch.object(time, "monotonic", lambda: 0.0):
                with self.assertRaises(Lost):
                    session.check()
            session.stop()

    def test_a_stale_list(self):
        here = {"index": 5, "instances": [{"id": "a"}]}
        with liar(lambda n, line: http(here) if n in (0, 1) or n > 4 else b"") as (address, _):
            peer = Client(address, patience=0)
            self.assertFalse(peer.services().discover("x").stale)
            changes = peer.services().follow("x", wait=1)
            self.assertFalse(next(changes).stale)
            lost = peer.services().discover("x")
            self.assertEqual((list(lost), lost.stale), ([{"id": "a"}], True))
            self.assertIn("does not answer", lost.reason)
            lost = next(changes)
            self.assertEqual((list(lost), lost.stale), ([{"id": "a"}], True))
            self.assertFalse(next(changes).stale)
            with self.assertRaises(OSError):
                Client("http://127.0.0.1:1", patience=0).services().discover("x")

    def test_a_stale_list_after_a_restart(self):
        stale = "200 OK\r\nX-Blackhole-Stale: true\r\nX-Blackhole-Age: 3"
        full, own = http({"index": 50, "instances": [{"id": "a", "port": 1}, {"id": "c"}]}), http({"index": 2**52 + 7, "instances": [{"id": "a", "port": 2}]}, stale)
        for back in (http({"index": 60, "instances": [{"id": "b"}]}), http({"index": 2, "instances": [{"id": "b"}]})):
            with liar(lambda n, line: full if n in (0, 1) else own if n < 4 else back) as (address, _):
                peer = Client(address)
                changes = peer.services().follow("x", wait=1)
                self.assertEqual([len(found) for found in (peer.services().discover("x"), next(changes))], [2, 2])
                for lost in (peer.services().discover("x"), next(changes)):
                    self.assertEqual((list(lost), lost.stale), ([{"id": "a", "port": 2}, {"id": "c"}], True))
                    self.assertIn("no contact", lost.reason)
                self.assertEqual((next(changes), peer.services().discover("x")), ([{"id": "b"}], [{"id": "b"}]))

    def test_a_watch_of_keys_goes_on(self):
        def sse(*events):
            return b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + "".join(f"event: {k}\ndata: {json.dumps(d)}\n\n" for k, d in events).encode()

        def change(revision, **more):
            kv = {"key": "YQ==", "value": "", "create_revision": "1", "mod_revision": str(revision), "version": "1", "lease": "0"}
            return "events", {"events": [{"type": "PUT", "kv": kv}], "next_revision": str(revision + 1), **more}

        answers = [
            sse(("created", {"next_revision": "5"}), change(5), change(6, fragment=True)), b"", http({"error": "no_quorum"}, "503 Busy"),
            sse(change(6, fragment=True), change(6), ("progress", {"events": [], "next_revision": "9"})),
            sse(("compacted", {"compact_revision": "20", "header": {"revision": "30"}})),
        ]
        with liar(lambda n, line: answers[n]) as (address, seen):
            changes = Client(address).kv().watch("a")
            self.assertEqual([([e.revision for e in b.events], b.next) for b in (next(changes), next(changes), next(changes))], [([5], 6), ([6, 6], 7), ([], 9)])
            with self.assertRaises(Compacted) as e:
                next(changes)
            self.assertEqual((e.exception.revision, e.exception.current), (20, 30))
        self.assertEqual(["start_revision=" + r in line for (line, _), r in zip(seen, ("", "6", "6", "6", "9"))], [False, True, True, True, True])

    def test_a_long_wait_that_is_cut(self):
        said = []

        def answer(n, line):
            said.append(line)
            if "/lock" not in line:
                return http({"client": "9"} if "clients" in line else {"id": "7", "ttl_ms": "600000"})
            if len([line for line in said if "/lock" in line]) > 1:
                return http({"acquired": True, "fencing_token": "5"})
            time.sleep(0.5)  # longer than the patience
            return b""

        with liar(answer) as (address, _):
            session = Client(address, patience=0.2).locks().session(ttl=600)
            self.assertEqual(session.lock("x", wait=60).token, 5)
            session.stop()

    def test_a_grant_is_asked_for_once(self):
        said = []

        def answer(n, line):
            said.append(line)
            return b"" if n == 0 else http({"error": "unavailable", "field": "key", "message": "is paused"}, "503 Busy")

        with liar(answer) as (address, _), self.assertRaises(Error) as e:
            Client(address).offers().reserve("x")
        self.assertEqual((len(said), e.exception.field), (2, "key"), "a cut answer is repeated, a refusal is not")

    def test_a_put_is_applied_once(self):
        said = []

        def answer(n, line):
            said.append(line)
            return http({"client": "9"}) if "clients" in line else b"" if len(said) == 2 else http({"succeeded": True})

        with liar(answer) as (address, _):
            self.assertTrue(Client(address).kv().put("a", "b", if_revision=0))
        self.assertEqual([line.split()[1] for line in said], ["/v1/coordination/clients", "/v1/coordination/txn", "/v1/coordination/txn"])


def whole(document, schema):
    """A schema without references, alternatives to null, and parts."""
    while "$ref" in schema:
        schema = document[schema["$ref"].rsplit("/", 1)[1]]
    for some in ("oneOf", "anyOf"):
        alternatives = [s for s in schema.get(some, []) if s.get("type") != "null"]
        if len(alternatives) == 1:
            return whole(document, alternatives[0])
    if "allOf" in schema:
        parts = [whole(document, s) for s in schema["allOf"]]
        return {
            "type": "object", "properties": {k: v for p in parts for k, v in p["properties"].items()},
            "required": [name for p in parts for name in p.get("required", [])],
        }
    return schema


class Tests(unittest.TestCase):
    def setUp(self):
        self.peer = Client(ADDRESS)

    def test_instances(self):
        changes = self.peer.services().follow("py-mail", wait=5)
        self.assertEqual(next(changes), [])
        with self.peer.services().register("py-mail", "10.0.0.9", 25, id="mail-1", zone="a", tags=["canary"]) as mail:
            self.assertEqual([i["id"] for i in next(changes)], ["mail-1"])
            self.assertEqual(self.peer.services().discover("py-mail", zone="a")[0]["port"], 25)
            self.assertEqual(self.peer.services().discover("py-mail", zone="b"), [])
            self.assertEqual(mail.renew(), mail.interval)
            self.peer.call("DELETE", "/v1/services/py-mail/instances/mail-1")
            self.assertEqual(next(changes), [])
            mail.renew()  # the peer forgot it: it registers again
            self.assertEqual([i["id"] for i in next(changes)], ["mail-1"])
        self.assertEqual(next(changes), [])
        with self.assertRaises(Error) as e:
            self.peer.services().register("py-mail", "not a host", 25)
        self.assertEqual((e.exception.status, e.exception.field), (400, "host"))

    def test_locks(self):
        with self.peer.locks().session() as one, self.peer.locks().session() as two:
            with one.lock("py/jobs", wait=5, metadata=b"me") as held:
                with self.assertRaises(NotAcquired):
                    two.lock("py/jobs", wait=0)
                got = []
                waiter = threading.Thread(target=lambda: got.append(two.lock("py/jobs", wait=20)))
                waiter.start()
                held.check()
            waiter.join(20)
            self.assertGreater(got[0].token, held.token)
            got[0].unlock()
            with one.lock("py/readers", shared=True), two.lock("py/readers", wait=0, shared=True):
                pass
            held = one.lock("py/jobs")
            self.peer.call("DELETE", f"/v1/coordination/leases/{one.lease}")
            one.renew()
            with self.assertRaises(Lost):
                held.check()
            two.lock("py/jobs", wait=0).unlock()

    def test_several_locks(self):
        with self.peer.locks().session() as one, self.peer.locks().session() as two:
            with one.lock("py/a", also=["py/c", "py/b"]) as held:
                with self.assertRaises(NotAcquired):
                    two.lock("py/d", wait=0, also=["py/b"])
                two.lock("py/d", wait=0).unlock()  # all or none
            got = two.lock("py/c", wait=0, also=["py/b", "py/a"])
            self.assertGreater(got.token, held.token)
            got.unlock()
            with self.assertRaises(Error):
                one.lock("py/e", also=["py/f", "py/f"])
            for name in ("py/a", "py/b", "py/c"):
                one.lock(name, wait=0).unlock()

    @unittest.skipUnless(BUYER, "needs a second peer")
    def test_grants(self):
        offer = {"id": "py-gpu", "metadata": {"type": "tool", "name": "a tool", "version": "1.0.0", "access": "peer", "stock": {"unit": "slot", "total": 4}}}
        self.peer.call("POST", "/v1/discovery/records", offer)
        key = [r["key"] for r in self.peer.call("GET", "/v1/discovery/records")["records"] if r["id"] == "py-gpu"][0]
        buyer = Client(BUYER)
        grant = buyer.offers().reserve(key, ttl=60, request_id="py-once")
        self.assertEqual((grant["units"], grant["state"]), (1, "active"))
        self.assertLessEqual(grant["left_ms"], 60000)
        self.assertTrue(grant["signed"])
        self.assertEqual(buyer.offers().reserve(key, ttl=60, request_id="py-once")["token"], grant["token"])
        with self.assertRaises(Error) as e:
            buyer.offers().reserve(key, units=9)
        self.assertEqual((e.exception.word, e.exception.field), ("rate_limit_exceeded", "units"))
        self.assertGreater(buyer.offers().extend(grant, ttl=600)["left_ms"], 60000)
        self.assertIn(grant["token"], [g["token"] for g in buyer.offers().grants()["held"]])
        sold = self.peer.offers().grants()
        self.assertEqual([(s["free"], s["total"]) for s in sold["stocks"] if s["id"] == "py-gpu"], [(3, 4)])
        self.assertIn(grant["token"], [g["token"] for g in sold["given"]])
        self.assertEqual(buyer.offers().release(grant)["state"], "released")
        self.assertEqual(buyer.offers().release(grant)["state"], "released")
        with self.assertRaises(Error) as e:
            buyer.offers().extend(grant)
        self.assertEqual(e.exception.status, 410)
        gone = buyer.offers().reserve(key, hold=True)
        self.assertEqual(gone["state"], "held")
        self.assertEqual(self.peer.offers().revoke(gone["token"], "maintenance")["reason"], "maintenance")

    def test_keys(self):
        kv = self.peer.kv()
        self.assertIsNone(kv.get("py/a b/c"))
        self.assertTrue(kv.put("py/a b/c", "1", if_revision=0))
        self.assertFalse(kv.put("py/a b/c", "2", if_revision=0))
        seen = kv.get("py/a b/c")
        self.assertTrue(kv.put("py/a b/c", b"\x00\xff", if_revision=seen.mod_revision))
        self.assertEqual(kv.get("py/a b/c", seen.mod_revision).value, b"1")
        self.assertEqual({k.key: k.value for k in kv.list("py/a")}, {"py/a b/c": b"\x00\xff"})
        with self.peer.locks().session() as s:
            kv.put("py/mine", "x", lease=s.lease)
            self.assertEqual((kv.get("py/mine").value, kv.get("py/mine").lease), (b"x", "0"))
            self.assertTrue(kv.get("py/mine").lease_tag, "the id is a credential")
        self.assertIsNone(kv.get("py/mine"))
        self.assertTrue(kv.delete("py/a b/c"))
        for key in (b"py/odd/\xff\x00", b"py/odd/\xc3\xa9"):
            self.assertTrue(kv.put(key, "x"))
        odd = [found.key for found in kv.list("py/odd/")]
        self.assertEqual([key.encode(errors="surrogateescape") for key in odd], [b"py/odd/\xc3\xa9", b"py/odd/\xff\x00"])
        self.assertEqual(kv.get(odd[1]).value, b"x")
        self.assertTrue(kv.delete(odd[1]))
        self.assertIsNone(kv.get(b"py/odd/\xff\x00"))
        for n in range(1100):
            kv.put(f"py/many/{n:04}", "")
        self.assertEqual(len(list(kv.list("py/many/"))), 1100)

    def test_key_changes(self):
        kv = self.peer.kv()
        kv.put("py/w/a", "1")
        first = kv.get("py/w/a").mod_revision
        kv.put("py/w/b", "2")
        kv.delete("py/w/a")
        kv.put("py/w", "no")
        with kv.watch("py/w/", revision=first, prev=True) as changes:
            events = []
            while len(events) < 3:
                batch = next(changes)
                events += batch.events
                self.assertGreater(batch.next, first)
            self.assertEqual([(e.key, e.kv.value if e.kv else None) for e in events], [("py/w/a", b"1"), ("py/w/b", b"2"), ("py/w/a", None)])
            self.assertEqual(events[2].prev.value, b"1")
            threading.Timer(0.2, changes.close).start()
            self.assertEqual([e for batch in changes for e in batch.events], [], "close ends the wait")
        stop = threading.Event()
        stop.set()
        self.assertEqual(list(kv.watch(key="py/w/a", stop=stop)), [])
        with kv.watch(key="py/w/b", revision=first) as one:
            self.assertEqual([e.key for e in next(b for b in one if b.events).events], ["py/w/b"])

    def test_elections(self):
        locks = self.peer.locks()
        self.assertIsNone(locks.leader("py/boss"))
        with locks.session() as one, locks.session() as two, locks.observe("py/boss") as seen:
            self.assertIsNone(next(seen).value)
            lead = one.campaign("py/boss", "one")
            self.assertEqual((next(seen).value, locks.leader("py/boss").value), (b"one", b"one"))
            lead.proclaim(b"still one")
            self.assertEqual(next(seen).value, b"still one")
            with self.assertRaises(NotAcquired):
                two.campaign("py/boss", "two", wait=0)
            lead.resign()
            self.assertIsNone(next(seen).value)
            with two.campaign("py/boss", "two", wait=5) as then:
                self.assertGreater(then.token, lead.token)
                with self.assertRaises(Lost):
                    lead.proclaim("late")
                self.assertEqual(next(seen).value, b"two")
            self.assertIsNone(locks.leader("py/boss"))

    def test_a_wait_that_is_canceled(self):
        with self.peer.locks().session() as one, self.peer.locks().session() as two, one.lock("py/wanted"):
            stop = threading.Event()
            threading.Timer(0.3, stop.set).start()
            with self.assertRaises(Canceled):
                two.lock("py/wanted", stop=stop)
            deadline = time.monotonic() + 60
            while [state for state in self.peer.locks().list("py/wanted") if state["waiting"]]:
                self.assertLess(time.monotonic(), deadline, "the claim stays in the queue")
                time.sleep(0.05)

    def test_offers(self):
        offers = self.peer.offers()
        offer = {"id": "py-box", "metadata": {"type": "compute", "name": "a box", "version": "1.0.0"}, "capabilities": {"compute": {"cpu_cores": 8, "memory_mb": 16000}},
                 "location": {"latitude": 52.52, "longitude": 13.4, "country": "DE"}, "pricing": {"currency": "USDC", "base_price": 1, "price_unit": "per-hour"}}
        receipt = offers.register(offer)
        with self.assertRaises(Error) as e:
            offers.register(offer)
        self.assertEqual(e.exception.word, "service_already_exists")
        for near in ("berlin", (52.5, 13.4), {"latitude": 52.5, "longitude": 13.4}):
            found = offers.query(type="compute", near=near, radius_km=100, max_price=2, countries=["Germany"])
            self.assertEqual([r["record"]["id"] for r in found["results"]], ["py-box"])
            with offers.watch(type="compute", near=near, radius_km=100) as changes:
                first = next(e for e in changes if e["kind"] == "added")
                self.assertEqual(first["record"]["key"], receipt["key"])
        with self.assertRaises(Error) as e:
            offers.query(type="compute", near="Berlim")
        self.assertEqual(e.exception.field, "near.city")
        self.assertIn("Berlin", str(e.exception))
        self.assertEqual(offers.resolve(receipt["key"])["id"], "py-box")
        offers.update({**offer, "pricing": {**offer["pricing"], "base_price": 2}})
        self.assertEqual(offers.get("py-box")["pricing"]["base_price"], 2)
        self.assertEqual(offers.pause("py-box", 60)["id"], "py-box")
        self.assertIn("paused", offers.get("py-box"))
        offers.resume("py-box")
        self.assertIn("py-box", [r["id"] for r in offers.list()])
        outcomes = offers.register_batch([offer, {"id": "py-two", "metadata": {"type": "tool", "name": "x", "version": "1.0.0"}}])
        self.assertEqual([o.get("error", {}).get("error", "") for o in outcomes], ["service_already_exists", ""])
        for id in ("py-box", "py-two"):
            offers.withdraw(id)

    def test_the_services_of_a_namespace(self):
        with self.peer.services().register("py-listed", "10.0.0.9", 25):
            self.assertIn("py-listed", self.peer.services().list())

    def test_types_are_those_of_the_document(self):
        document = self.peer.call("GET", "/openapi.json")["components"]["schemas"]
        for name, ours in {
            "Instance": blackholed.types.Instance, "Offer": blackholed.types.Offer, "Record": blackholed.types.Record, "Receipt": blackholed.types.Receipt,
            "Answer": blackholed.types.Answer, "Grant": blackholed.types.Grant, "StockState": blackholed.types.Stock, "Quote": blackholed.types.Quote,
            "LockClaim": blackholed.types.LockClaim, "LockState": blackholed.types.LockState, "ListGrantsResponse": blackholed.types.Grants,
        }.items():
            self.compare(document, {"$ref": "#/components/schemas/" + name}, ours, name, {"signed"})
        self.compare(document, document["BatchResult"]["properties"]["results"]["items"], blackholed.types.Outcome, "BatchResult", set())

    def compare(self, document, schema, ours, at, added):
        """Compares a type with a schema: names, kinds, and that what the type requires is always there."""
        schema = whole(document, schema)
        origin, args = typing.get_origin(ours), typing.get_args(ours)
        if origin is list:
            self.assertEqual(schema["type"], "array", at)
            self.compare(document, schema["items"], args[0], at + "[]", added)
        elif hasattr(ours, "__required_keys__"):
            hints, fields = typing.get_type_hints(ours), schema["properties"]
            self.assertEqual(set(hints) - added, set(fields) - added, at)
            self.assertLessEqual(set(ours.__required_keys__), set(schema.get("required", [])), at)
            for name in set(hints) - added:
                self.compare(document, fields[name], hints[name], f"{at}.{name}", added)
        elif origin is dict:
            self.assertEqual(schema.get("type"), "object", at)
        elif ours is not typing.Any:
            digits = schema.get("pattern") == "^-?[0-9]+$"
            kinds = {str: ["string"], int: ["integer", "string"] if digits else ["integer"], float: ["number"], bool: ["boolean"]}[ours]
            self.assertIn(schema.get("type") or "string", kinds, at)  # an enumeration is a text

    def test_the_registry_of_sap_044(self):
        with self.peer.services().register("manifest", "10.0.0.1", 1, version="1.0.0", interfaces={"REST": "http://10.0.0.1:8500"}), unittest.mock.patch.dict(sys.modules, {"chora_manifest_client": blackholed.manifest}):
            client = blackholed.manifest.ManifestClient(ADDRESS)
            other = client.register("orchestrator", "2.0.0", {"REST": "http://10.0.0.7:9000"})
            said = io.StringIO()
            with contextlib.redirect_stdout(said), unittest.mock.patch("atexit.register", lambda end: ends.append(end)):
                ends = []
                for name in ("manifest_client.py", "manifest_errors.py"):
                    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "testdata", name)) as block:
                        exec(compile(block.read().replace("http://localhost:8500", ADDRESS), name, "exec"), {})
            self.assertRegex(said.getvalue(), "(?s)^Registered with ID: .*Orchestrator REST endpoint: http://10.0.0.7:9000\n.*my-service v1.0.0 - http://10.0.0.10:9000.*Service not found: ")
            self.assertEqual(client.get_service("my-service")["status"], "up")
            ends[0]()
            with self.assertRaises(blackholed.manifest.ServiceNotFoundError):
                for _ in range(600):  # the peer's own copy may be some moments old
                    client.get_service("my-service")
                    time.sleep(0.1)
            with self.assertRaises(blackholed.manifest.ManifestError) as e:
                client.register("bad name!", "1.0.0", {"CLI": "x"})
            self.assertEqual(e.exception.error_code, "validation_error")
            client.deregister("orchestrator", other)
        with self.assertRaises(blackholed.manifest.ManifestError):
            blackholed.manifest.ManifestClient("http://127.0.0.1:1").deregister("a", "b")

    def test_close_waits_for_a_renewal(self):
        began, done, peer = threading.Event(), [], self.peer

        class Slow(Kept):
            interval = 0

            def renew(self):
                began.set()
                self.ended.wait()
                done.append(peer.services().discover("py-none"))
                return 60

        slow = Slow()
        slow.keeper.start()
        began.wait()
        self.assertTrue(slow.stop())
        self.assertEqual(done, [[]])

    def test_absent_peer(self):
        with self.assertRaises(OSError):
            Client("http://127.0.0.1:1", patience=0.2).services().discover("x")


unittest.main(verbosity=2 if os.environ.get("V") else 1)
