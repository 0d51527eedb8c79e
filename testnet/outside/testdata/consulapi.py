"""python-consul, unchanged, against the peer at the given address. An AssertionError or any exception is a finding."""

import importlib.metadata
import sys

import consul

from parts import play, raises, together

host, port = sys.argv[1].split(":")
c = consul.Consul(host=host, port=int(port))


def put(path, **params):
    """Calls by PUT, which Consul wants since its version 1.0. This client still uses GET there."""
    return c.http.put(consul.base.CB.bool(), "/v1/agent/" + path, params=params)


def keys():
    index, none = c.kv.get("py/none")
    assert none is None and int(index) > 0
    assert c.kv.put("py/a", "1", flags=7)
    index, pair = c.kv.get("py/a")
    assert (pair["Key"], pair["Value"], pair["Flags"], pair["LockIndex"]) == ("py/a", b"1", 7, 0), pair
    assert int(index) == pair["ModifyIndex"] == pair["CreateIndex"]
    assert c.kv.put("py/a", "2", cas=pair["ModifyIndex"])
    assert not c.kv.put("py/a", "3", cas=pair["ModifyIndex"]), "the index is old"
    assert c.kv.put("py/new", "1", cas=0) and not c.kv.put("py/new", "2", cas=0)
    assert not c.kv.delete("py/a", cas=pair["ModifyIndex"])
    assert c.kv.put("py/b/1", "x") and c.kv.put("py/b/2", None)
    assert [p["Key"] for p in c.kv.get("py/", recurse=True)[1]] == ["py/a", "py/b/1", "py/b/2", "py/new"]
    assert c.kv.get("py/", keys=True, separator="/")[1] == ["py/a", "py/b/", "py/new"]
    assert c.kv.get("py/b/2", consistency="consistent")[1]["Value"] is None
    assert c.kv.get("py/a", consistency="stale")[1]["Value"] == b"2"
    assert c.kv.delete("py/b", recurse=True) and c.kv.delete("py/none")
    assert c.kv.get("py/b", recurse=True)[1] is None
    binary = bytes(range(256)) * 1000
    assert c.kv.put("py/binary", binary) and c.kv.get("py/binary")[1]["Value"] == binary


def count():
    """Four writers count by cas."""
    def work():
        mine = consul.Consul(host=host, port=int(port))
        for _ in range(10):
            while True:
                _, pair = mine.kv.get("py/n")
                if mine.kv.put("py/n", str(int(pair["Value"]) + 1), cas=pair["ModifyIndex"]):
                    break

    assert c.kv.put("py/n", "0")
    together(*[work] * 4)
    assert c.kv.get("py/n")[1]["Value"] == b"40"


def blocking():
    c.kv.put("wait/a", "1")
    index, _ = c.kv.get("wait/a")
    assert c.kv.get("wait/a", index=index, wait="1s")[0] == index, "nothing changed"
    together(lambda: check(c.kv.get("wait/", recurse=True, index=index, wait="60s")[1]), lambda: c.kv.put("wait/b", "2"))


def check(pairs):
    assert [p["Value"] for p in pairs] == [b"1", b"2"], pairs


def sessions():
    id = c.session.create(name="job", ttl=10, lock_delay=0, behavior="release")
    _, info = c.session.info(id)
    assert (info["Name"], info["TTL"], info["Behavior"], info["LockDelay"]) == ("job", "10s", "release", 0), info
    assert id in [s["ID"] for s in c.session.list()[1]]
    assert id in [s["ID"] for s in c.session.node(info["Node"])[1]]
    assert c.session.renew(id)["ID"] == id
    other = c.session.create(ttl=600, lock_delay=0)
    assert c.kv.put("job", "me", acquire=id) and c.kv.put("job", "still me", acquire=id)
    assert not c.kv.put("job", "other", acquire=other)
    index, pair = c.kv.get("job")
    assert (pair["Session"], pair["LockIndex"], pair["Value"]) == (id, 1, b"still me"), pair
    assert not c.kv.put("job", "", release=other) and c.kv.put("job", "", release=id)
    assert c.kv.put("job", "other", acquire=other) and c.kv.get("job")[1]["LockIndex"] == 2
    assert c.kv.put("job", "", release=other) and c.kv.put("job", "me", acquire=id)
    index, pair = c.kv.get("job")
    while "Session" in pair:  # until the session ends, which nobody renews
        index, pair = c.kv.get("job", index=index, wait="60s")
    assert c.session.info(id)[1] is None
    raises(consul.NotFound, c.session.renew, id)
    assert c.kv.put("job", "other", acquire=other)
    assert c.session.destroy(other)
    gone = c.session.create(ttl=600, behavior="delete", lock_delay=0)
    assert c.kv.put("ephemeral", "1", acquire=gone) and c.session.destroy(gone)
    assert c.kv.get("ephemeral")[1] is None
    delayed = c.session.create(ttl=600, lock_delay=15)
    assert c.kv.put("slow", "1", acquire=delayed) and c.session.destroy(delayed)
    assert not c.kv.put("slow", "1", acquire=c.session.create(ttl=600)), "the lock's delay"


def services():
    index, found = c.health.service("py-web", passing=True)
    assert found == []
    assert c.agent.service.register("py-web", service_id="py-web-1", address="127.0.0.1", port=9000, tags=["v1", "eu"], check=consul.Check.ttl("60s"))
    assert c.health.service("py-web", passing=True)[1] == [], "critical until it passes"
    assert not c.agent.check.ttl_pass("service:py-web-1"), "Consul refuses GET too"
    together(lambda: passing(index), lambda: put("check/pass/service:py-web-1", note="well"))
    _, found = c.health.service("py-web", passing=True, tag="eu")
    service = found[0]["Service"]
    assert (service["ID"], service["Service"], service["Address"], service["Port"], service["Tags"]) == ("py-web-1", "py-web", "127.0.0.1", 9000, ["v1", "eu"]), service
    assert c.health.service("py-web", passing=True, tag="us")[1] == []
    node = found[0]["Node"]["Node"]
    assert sorted(c.catalog.services()[1]["py-web"]) == ["eu", "v1"]
    assert c.catalog.service("py-web")[1][0]["ServiceID"] == "py-web-1"
    assert node in [n["Node"] for n in c.catalog.nodes()[1]]
    assert "py-web-1" in c.catalog.node(node)[1]["Services"]
    assert c.catalog.datacenters() == [c.agent.self()["Config"]["Datacenter"]]
    assert c.agent.services()["py-web-1"]["Port"] == 9000
    assert c.agent.checks()["service:py-web-1"]["Status"] == "passing"
    assert put("check/warn/service:py-web-1", note="slow")
    assert c.health.checks("py-web")[1][0]["Status"] == "warning"
    assert put("check/fail/service:py-web-1", note="broken")
    assert c.health.service("py-web", passing=True)[1] == []
    assert "service:py-web-1" in [k["CheckID"] for k in c.health.state("critical")[1]]
    assert "service:py-web-1" in [k["CheckID"] for k in c.health.node(node)[1]]
    assert c.agent.check.register("second", check=consul.Check.ttl("60s"), check_id="py-second", service_id="py-web-1")
    assert "py-second" in c.agent.checks() and put("check/deregister/py-second")
    assert c.agent.service.maintenance("py-web-1", "true", "upgrade") and c.agent.service.maintenance("py-web-1", "false")
    assert not c.agent.service.deregister("py-web-1") and put("service/deregister/py-web-1")
    assert c.health.service("py-web")[1] == []


def passing(index):
    found = []
    while not found:
        index, found = c.health.service("py-web", passing=True, index=index, wait="60s")


def status():
    assert ":" in c.status.leader() and c.status.leader() in c.status.peers()


print("python3-consul", importlib.metadata.version("python-consul"))
play(keys, count, blocking, sessions, services, status)
