"""python3 test_blackholed.py ADDRESS: plays the client against a running peer."""

import sys
import threading
import unittest

from blackholed import Client, Error, Kept, Lost, NotAcquired

ADDRESS = sys.argv.pop() if len(sys.argv) > 1 else "http://127.0.0.1:8500"


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
