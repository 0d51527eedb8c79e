"""python-etcd3, unchanged, against the peer whose clients of etcd use the given address. An AssertionError or any exception is a finding."""

import importlib.metadata
import sys
import threading

import etcd3

from parts import play, raises, together

host, port = sys.argv[1].split(":")
c = etcd3.client(host, int(port), timeout=30)
other = etcd3.client(host, int(port), timeout=30)


def values(pairs):
    return [(m.key.decode(), v.decode()) for v, m in pairs]


def keys():
    assert c.get("py/none") == (None, None)
    first = c.put("py/a", "1").header.revision
    assert c.put("py/a", "2", prev_kv=True).prev_kv.value == b"1"
    value, meta = c.get("py/a")
    assert (value, meta.key, meta.version, meta.create_revision) == (b"2", b"py/a", 2, first), meta
    assert meta.mod_revision > first and meta.lease_id == 0
    c.put("py/b/1", "x")
    c.put("py/b/2", "y")
    assert values(c.get_prefix("py/", sort_order="descend")) == [("py/b/2", "y"), ("py/b/1", "x"), ("py/a", "2")]
    assert values(c.get_prefix("py/b/", keys_only=True)) == [("py/b/1", ""), ("py/b/2", "")]
    assert values(c.get_range("py/a", "py/b/2")) == [("py/a", "2"), ("py/b/1", "x")]
    assert values(c.get_all(sort_order="ascend", sort_target="mod")) == [("py/a", "2"), ("py/b/1", "x"), ("py/b/2", "y")]
    assert c.get("py/a", serializable=True)[0] == b"2"
    assert c.put_if_not_exists("py/c", "1") and not c.put_if_not_exists("py/c", "2")
    assert c.replace("py/c", "1", "3") and not c.replace("py/c", "1", "4")
    assert c.delete("py/c") and not c.delete("py/c")
    assert c.delete("py/a", prev_kv=True, return_response=True).prev_kvs[0].value == b"2"
    assert c.delete_prefix("py/b/").deleted == 2
    assert values(c.get_all()) == []
    binary = bytes(range(256)) * 1000
    c.put(b"py/\x00\xff", binary)
    assert c.get(b"py/\x00\xff")[0] == binary


def transactions():
    t = c.transactions
    c.put("txn/a", "1")
    mod = c.get("txn/a")[1].mod_revision
    ok, answers = c.transaction(
        compare=[t.value("txn/a") == "1", t.version("txn/a") > 0, t.create("txn/a") == mod, t.mod("txn/a") < mod + 1, t.version("txn/b") == 0, t.value("txn/a") != "2"],
        success=[t.put("txn/b", "2"), t.get("txn/b"), t.delete("txn/a")],
        failure=[])
    assert ok and answers[1][0][0] == b"2", answers
    ok, answers = c.transaction(compare=[t.create("txn/a") != 0], success=[t.put("txn/c", "1")], failure=[t.get("txn/b"), t.get("txn/c")])
    assert not ok and answers[0][0][0] == b"2" and answers[1] == [], answers
    assert c.get("txn/c") == (None, None)

    def count():
        mine = etcd3.client(host, int(port), timeout=30)
        for _ in range(10):
            while True:
                value = mine.get("txn/n")[0]
                if mine.replace("txn/n", value, str(int(value) + 1)):
                    break

    c.put("txn/n", "0")
    together(*[count] * 4)
    assert c.get("txn/n")[0] == b"40"


def leases():
    lease = c.lease(60)
    c.put("lease/a", "1", lease=lease)
    assert c.get("lease/a")[1].lease_id == lease.id
    assert lease.granted_ttl == 60 and 0 < lease.remaining_ttl <= 60 and lease.keys == [b"lease/a"]
    assert lease.refresh()[0].TTL == 60
    assert c.lease(60, 4711).id == 4711
    events, cancel = c.watch("lease/a")
    lease.revoke()
    assert isinstance(next(events), etcd3.events.DeleteEvent)
    cancel()
    assert c.get("lease/a") == (None, None)
    c.revoke_lease(4711)
    short = c.lease(5)  # the shortest
    assert short.granted_ttl == 5
    c.put("lease/b", "1", lease=short)
    assert isinstance(c.watch_once("lease/b", timeout=60), etcd3.events.DeleteEvent)


def watches():
    events, cancel = c.watch_prefix("watch/", prev_kv=True)
    other.put("watch/a", "1")
    other.put("elsewhere", "1")
    other.put("watch/a", "2")
    other.delete("watch/a")
    put, again, gone = next(events), next(events), next(events)
    cancel()
    assert isinstance(put, etcd3.events.PutEvent) and (put.key, put.value) == (b"watch/a", b"1")
    assert (again.value, again.prev_value) == (b"2", b"1")
    assert isinstance(gone, etcd3.events.DeleteEvent) and gone.prev_value == b"2"
    past, cancel = c.watch("watch/a", start_revision=put.mod_revision)
    assert [next(past).value for _ in range(2)] == [b"1", b"2"]
    cancel()
    raises(etcd3.exceptions.WatchTimedOut, c.watch_once, "watch/silent", timeout=1)
    got, done = [], threading.Event()

    def callback(response):
        got.extend(response.events)
        done.set()

    id = c.add_watch_callback("watch/b", callback)
    other.put("watch/b", "1")
    assert done.wait(30) and got[0].value == b"1"
    c.cancel_watch(id)


def locks():
    order = []

    def acquire(lock):
        """Waits for a lock. With the tenacity of Debian the client's own wait raises TypeError, on etcd too."""
        while not lock.acquire(timeout=0):
            try:
                lock.etcd_client.watch_once(lock.key, timeout=0.5)  # the holder may have released it before
            except etcd3.exceptions.WatchTimedOut:
                pass
        return True

    def work(client):
        for _ in range(5):
            lock = client.lock("job", ttl=30)
            assert acquire(lock)
            assert lock.is_acquired() and lock.refresh()[0].TTL == 30
            order.append("in")
            order.append("out")
            assert lock.release()

    together(*[lambda client=client: work(client) for client in (c, other)])
    assert order == ["in", "out"] * 10, order
    with c.lock("job", ttl=30) as held:
        assert held.is_acquired()
        assert not other.lock("job").acquire(timeout=0)
    assert not held.is_acquired()
    dies = c.lock("job", ttl=5)
    assert dies.acquire()
    heir = other.lock("job", ttl=30)
    assert acquire(heir) and not dies.is_acquired()
    assert not dies.release() and heir.release()


def cluster():
    assert c.status().leader.id == next(iter(c.members)).id
    member = next(iter(c.members))
    assert [url.rpartition(":")[2] for url in member.client_urls] == [port], list(member.client_urls)
    assert list(c.list_alarms()) == []
    c.defragment()
    c.put("old", "1")
    revision = c.put("old", "2").header.revision
    c.compact(revision)
    events, cancel = c.watch("old", start_revision=1)
    error = raises(etcd3.exceptions.RevisionCompactedError, next, events)
    assert error.compacted_revision == revision
    cancel()
    raises(Exception, c.compact, revision)  # twice
    raises(Exception, c.add_member, ["http://127.0.0.1:1"])


print("python3-etcd3", importlib.metadata.version("etcd3"))
play(keys, transactions, leases, watches, locks, cluster)
