"""python3 test_blackholed.py ADDRESS BUYER: plays the client against a running peer, and another one that buys of it."""

import contextlib
import json
import os
import socketserver
import sys
import threading
import time
import unittest
import unittest.mock

import blackholed
from blackholed import Client, Error, Kept, Lost, NotAcquired

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
                self.assertEqual(Client(address).discover("x") if name != "cut error" else [], [])
            with self.subTest(name + ", at last"), liar(lambda n, _: text) as (address, seen):
                with self.assertRaises((OSError, Error)):
                    Client(address, patience=0.1).discover("x")

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
                session = Client(address, on_trouble=trouble).session(ttl=3)
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
                self.assertEqual(Client(address, token="secret").discover("x"), [])
            self.assertEqual((len(seen), caught), (1, []))
            with self.assertRaises(OSError):
                Client(address, token="secret", proxy=proxy).discover("x")
            self.assertEqual(len(caught), 1, "a proxy that is given is used")

    def test_no_redirect_takes_the_token_away(self):
        with liar(lambda n, _: http({"instances": []})) as (other, caught):
            away = http(b"", f"302 Found\r\nLocation: {other}/")
            with liar(lambda n, _: away) as (address, _), self.assertRaises(Error):
                Client(address, token="secret").discover("x")
            self.assertEqual(caught, [])

    def test_a_machine_that_slept(self):
        if sys.platform == "linux":
            self.assertEqual(blackholed.CLOCK, time.CLOCK_BOOTTIME)
        with liar(lambda n, line: http({"id": "7", "ttl_ms": "15000", "client": "1"})) as (address, _):
            session = Client(address).session()
            session.check()
            slept = blackholed.clock() + 3600
            with unittest.mock.patch.object(blackholed, "clock", lambda: slept), unittest.mock.patch.object(time, "monotonic", lambda: 0.0):
                with self.assertRaises(Lost):
                    session.check()
            session.stop()

    def test_a_stale_list(self):
        here = {"index": 5, "instances": [{"id": "a"}]}
        with liar(lambda n, line: http(here) if n in (0, 1) or n > 4 else b"") as (address, _):
            peer = Client(address, patience=0)
            self.assertFalse(peer.discover("x").stale)
            changes = peer.watch("x", wait=1)
            self.assertFalse(next(changes).stale)
            lost = peer.discover("x")
            self.assertEqual((list(lost), lost.stale), ([{"id": "a"}], True))
            self.assertIn("does not answer", lost.reason)
            lost = next(changes)
            self.assertEqual((list(lost), lost.stale), ([{"id": "a"}], True))
            self.assertFalse(next(changes).stale)
            with self.assertRaises(OSError):
                Client("http://127.0.0.1:1", patience=0).discover("x")

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
            session = Client(address, patience=0.2).session(ttl=600)
            self.assertEqual(session.lock("x", wait=60).token, 5)
            session.stop()

    def test_a_grant_is_asked_for_once(self):
        said = []

        def answer(n, line):
            said.append(line)
            return b"" if n == 0 else http({"error": "unavailable", "field": "key", "message": "is paused"}, "503 Busy")

        with liar(answer) as (address, _), self.assertRaises(Error) as e:
            Client(address).reserve("x")
        self.assertEqual((len(said), e.exception.field), (2, "key"), "a cut answer is repeated, a refusal is not")

    def test_a_put_is_applied_once(self):
        said = []

        def answer(n, line):
            said.append(line)
            return http({"client": "9"}) if "clients" in line else b"" if len(said) == 2 else http({"succeeded": True})

        with liar(answer) as (address, _):
            self.assertTrue(Client(address).put("a", "b", if_revision=0))
        self.assertEqual([line.split()[1] for line in said], ["/v1/coordination/clients", "/v1/coordination/txn", "/v1/coordination/txn"])


class Tests(unittest.TestCase):
    def setUp(self):
        self.peer = Client(ADDRESS)

    def test_instances(self):
        changes = self.peer.watch("py-mail", wait=5)
        self.assertEqual(next(changes), [])
        with self.peer.register("py-mail", "10.0.0.9", 25, id="mail-1", zone="a", tags=["canary"]) as mail:
            self.assertEqual([i["id"] for i in next(changes)], ["mail-1"])
            self.assertEqual(self.peer.discover("py-mail", zone="a")[0]["port"], 25)
            self.assertEqual(self.peer.discover("py-mail", zone="b"), [])
            self.assertEqual(mail.renew(), mail.interval)
            self.peer.call("DELETE", "/v1/services/py-mail/instances/mail-1")
            self.assertEqual(next(changes), [])
            mail.renew()  # the peer forgot it: it registers again
            self.assertEqual([i["id"] for i in next(changes)], ["mail-1"])
        self.assertEqual(next(changes), [])
        with self.assertRaises(Error) as e:
            self.peer.register("py-mail", "not a host", 25)
        self.assertEqual((e.exception.status, e.exception.field), (400, "host"))

    def test_locks(self):
        with self.peer.session() as one, self.peer.session() as two:
            with one.lock("py/jobs", wait=5, metadata=b"me") as held:
                with self.assertRaises(NotAcquired):
                    two.lock("py/jobs", wait=0)
                got = []
                waiter = threading.Thread(target=lambda: got.append(two.lock("py/jobs", wait=20)))
                waiter.start()
                held.check()
            waiter.join(20)
            self.assertGreater(got[0].token, held.token)
            got[0].release()
            with one.lock("py/readers", shared=True), two.lock("py/readers", wait=0, shared=True):
                pass
            held = one.lock("py/jobs")
            self.peer.call("DELETE", f"/v1/coordination/leases/{one.lease}")
            one.renew()
            with self.assertRaises(Lost):
                held.check()
            two.lock("py/jobs", wait=0).release()

    def test_several_locks(self):
        with self.peer.session() as one, self.peer.session() as two:
            with one.lock("py/a", also=["py/c", "py/b"]) as held:
                with self.assertRaises(NotAcquired):
                    two.lock("py/d", wait=0, also=["py/b"])
                two.lock("py/d", wait=0).release()  # all or none
            got = two.lock("py/c", wait=0, also=["py/b", "py/a"])
            self.assertGreater(got.token, held.token)
            got.release()
            with self.assertRaises(Error):
                one.lock("py/e", also=["py/f", "py/f"])
            for name in ("py/a", "py/b", "py/c"):
                one.lock(name, wait=0).release()

    @unittest.skipUnless(BUYER, "needs a second peer")
    def test_grants(self):
        offer = {"id": "py-gpu", "metadata": {"type": "tool", "name": "a tool", "version": "1.0.0", "access": "peer", "stock": {"unit": "slot", "total": 4}}}
        self.peer.call("POST", "/v1/discovery/records", offer)
        key = [r["key"] for r in self.peer.call("GET", "/v1/discovery/records")["records"] if r["id"] == "py-gpu"][0]
        buyer = Client(BUYER)
        grant = buyer.reserve(key, ttl=60, request_id="py-once")
        self.assertEqual((grant["units"], grant["state"]), (1, "active"))
        self.assertLessEqual(grant["left_ms"], 60000)
        self.assertTrue(grant["signed"])
        self.assertEqual(buyer.reserve(key, ttl=60, request_id="py-once")["token"], grant["token"])
        with self.assertRaises(Error) as e:
            buyer.reserve(key, units=9)
        self.assertEqual((e.exception.word, e.exception.field), ("rate_limit_exceeded", "units"))
        self.assertGreater(buyer.extend(grant, ttl=600)["left_ms"], 60000)
        self.assertIn(grant["token"], [g["token"] for g in buyer.grants()["held"]])
        sold = self.peer.grants()
        self.assertEqual([(s["free"], s["total"]) for s in sold["stocks"] if s["id"] == "py-gpu"], [(3, 4)])
        self.assertIn(grant["token"], [g["token"] for g in sold["given"]])
        self.assertEqual(buyer.release(grant)["state"], "released")
        self.assertEqual(buyer.release(grant)["state"], "released")
        with self.assertRaises(Error) as e:
            buyer.extend(grant)
        self.assertEqual(e.exception.status, 410)
        gone = buyer.reserve(key, hold=True)
        self.assertEqual(gone["state"], "held")
        self.assertEqual(self.peer.revoke(gone["token"], "maintenance")["reason"], "maintenance")

    def test_keys(self):
        self.assertIsNone(self.peer.get("py/a b/c"))
        self.assertTrue(self.peer.put("py/a b/c", "1", if_revision=0))
        self.assertFalse(self.peer.put("py/a b/c", "2", if_revision=0))
        seen = self.peer.entry("py/a b/c")
        self.assertTrue(self.peer.put("py/a b/c", b"\x00\xff", if_revision=seen["mod_revision"]))
        self.assertEqual(dict(self.peer.list("py/a")), {"py/a b/c": b"\x00\xff"})
        with self.peer.session() as s:
            self.peer.put("py/mine", "x", lease=s.lease)
            self.assertEqual(self.peer.get("py/mine"), b"x")
        self.assertIsNone(self.peer.get("py/mine"))
        self.assertTrue(self.peer.delete("py/a b/c"))
        for key in (b"py/odd/\xff\x00", b"py/odd/\xc3\xa9"):
            self.assertTrue(self.peer.put(key, "x"))
        odd = [key for key, _ in self.peer.list("py/odd/")]
        self.assertEqual([key.encode(errors="surrogateescape") for key in odd], [b"py/odd/\xc3\xa9", b"py/odd/\xff\x00"])
        self.assertEqual(self.peer.get(odd[1]), b"x")
        self.assertTrue(self.peer.delete(odd[1]))
        self.assertIsNone(self.peer.get(b"py/odd/\xff\x00"))
        for n in range(1100):
            self.peer.put(f"py/many/{n:04}", "")
        self.assertEqual(len(list(self.peer.list("py/many/"))), 1100)

    def test_close_waits_for_a_renewal(self):
        began, done, peer = threading.Event(), [], self.peer

        class Slow(Kept):
            interval = 0

            def renew(self):
                began.set()
                self.ended.wait()
                done.append(peer.discover("py-none"))
                return 60

        slow = Slow()
        slow.keeper.start()
        began.wait()
        self.assertTrue(slow.stop())
        self.assertEqual(done, [[]])

    def test_absent_peer(self):
        with self.assertRaises(OSError):
            Client("http://127.0.0.1:1", patience=0.2).discover("x")


unittest.main(verbosity=1)
