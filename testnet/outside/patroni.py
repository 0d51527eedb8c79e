#!/usr/bin/python3
"""Patroni on the front for clients of etcd or of Consul: three peers, two nodes of PostgreSQL, kills, and what became of the rows.

    go build -o /tmp/blackholed ./cmd/blackholed
    apt-get install patroni python3-etcd3 python3-consul postgresql nftables
    testnet/outside/patroni.py --binary /tmp/blackholed --front etcd --kills 30

A writer inserts rows one by one and remembers those that were acknowledged. The kills go round: the primary (Patroni and PostgreSQL, SIGKILL),
the leader of the group (SIGKILL, started again after 5 s), the leader stopped for 15 s (SIGSTOP), the peer beside the primary (SIGKILL; with
Consul's protocol the only front of this node), the leader cut off from the other peers for 15 s while its front still answers (nft). Twice a
second an observer asks both nodes whether they take writes. At the end every acknowledged row must be there once, and no observation may have
seen two primaries. All of it runs in a network namespace of its own.
"""

import argparse
import json
import os
import pwd
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

import psycopg2

PEERS, NODES, KINDS = (1, 2, 3), (1, 2), 5
GROUP = 4200  # of the system: each peer's processes have their own


def port(base, n):
    return base + 10 * n


class Peer:
    """One peer with both fronts."""

    def __init__(self, binary, folder, n):
        self.binary, self.folder, self.n = binary, os.path.join(folder, f"peer{n}"), n
        self.log = open(self.folder + ".log", "ab")

    def run(self, *more):
        self.process = subprocess.Popen(
            [self.binary, "run", "--network", "patroni", "--data", self.folder, "--http", f"127.0.0.1:{port(18500, self.n)}",
             "--grpc", f"127.0.0.1:{port(18502, self.n)}", "--dns", "off", "--listen", f"/ip4/127.0.0.1/tcp/{port(14801, self.n)}", *more],
            env={**os.environ, "BLACKHOLE_ETCD_LISTEN": f"127.0.0.1:{port(12379, self.n)}", "BLACKHOLE_CONSUL_ENABLED": "true"}, stdout=self.log, stderr=self.log, group=GROUP + self.n)

    def ask(self, *words):
        return subprocess.run([self.binary, *words, "--grpc", f"127.0.0.1:{port(18502, self.n)}"], capture_output=True, text=True, timeout=30)


class Etcd(Peer):
    """One member of etcd itself, to compare with."""

    def run(self, *_):
        at = f"http://127.0.0.1:{port(14801, self.n)}"
        client = f"http://127.0.0.1:{port(12379, self.n)}"
        self.process = subprocess.Popen(
            [self.binary, "--name", f"e{self.n}", "--data-dir", self.folder, "--listen-peer-urls", at, "--initial-advertise-peer-urls", at,
             "--listen-client-urls", client, "--advertise-client-urls", client,
             "--initial-cluster", ",".join(f"e{n}=http://127.0.0.1:{port(14801, n)}" for n in PEERS)], stdout=self.log, stderr=self.log, group=GROUP + self.n)

    def status(self):
        try:
            request = urllib.request.Request(f"http://127.0.0.1:{port(12379, self.n)}/v3/maintenance/status", b"{}")
            with urllib.request.urlopen(request, timeout=2) as answer:
                said = json.load(answer)
            return said["header"]["member_id"], said.get("leader")
        except (OSError, ValueError, KeyError):
            return None, None


class Node:
    """One node of PostgreSQL under Patroni."""

    def __init__(self, folder, n, bin_dir, front):
        self.folder, self.n = folder, n
        store = {"etcd3": {"hosts": [f"127.0.0.1:{port(12379, p)}" for p in PEERS]}}
        if front == "consul":  # an agent of its own for each node, as in Consul
            store = {"consul": {"host": f"127.0.0.1:{port(18500, n)}", "register_service": True}}
        self.settings = os.path.join(folder, f"node{n}.json")
        with open(self.settings, "w") as f:  # JSON is YAML
            json.dump({
                "scope": "demo", "name": f"node{n}",
                "restapi": {"listen": f"127.0.0.1:{port(18008, n)}", "connect_address": f"127.0.0.1:{port(18008, n)}"},
                **store,
                "bootstrap": {
                    "dcs": {"ttl": 20, "loop_wait": 5, "retry_timeout": 5, "synchronous_mode": True,
                            "postgresql": {"use_pg_rewind": True, "parameters": {"max_connections": 20, "fsync": "off"}}},
                    "initdb": [{"encoding": "UTF8"}, "data-checksums"],
                    "pg_hba": ["host replication all 127.0.0.1/32 trust", "host all all 127.0.0.1/32 trust"],
                },
                "postgresql": {
                    "listen": f"127.0.0.1:{port(15432, n)}", "connect_address": f"127.0.0.1:{port(15432, n)}",
                    "data_dir": os.path.join(folder, f"pgdata{n}"), "bin_dir": bin_dir, "pgpass": os.path.join(folder, f"pgpass{n}"),
                    "parameters": {"unix_socket_directories": folder},  # trials in several network namespaces share no socket
                    "authentication": {"replication": {"username": "replicator", "password": "x"}, "superuser": {"username": "postgres", "password": "x"}},
                },
            }, f)
        os.chmod(self.settings, 0o644)

    def run(self):
        log = open(os.path.join(self.folder, f"node{self.n}.log"), "ab")
        user = pwd.getpwnam("postgres")
        self.process = subprocess.Popen(["patroni", self.settings], stdout=log, stderr=log, user=user.pw_uid, group=user.pw_gid, extra_groups=[],
                                        cwd=self.folder, env={**os.environ, "HOME": self.folder}, start_new_session=True)

    def primary(self):
        try:
            with connect([self.n]) as c, c.cursor() as q:
                q.execute("select not pg_is_in_recovery()")
                return q.fetchone()[0]
        except psycopg2.Error:
            return False

    def synchronous(self):
        """Whether the key of Patroni names the node as a synchronous standby: no other one takes over."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port(18008, self.n)}/sync", timeout=2) as answer:
                return answer.status == 200
        except OSError:
            return False

    def kill(self):
        """Ends Patroni and PostgreSQL at once."""
        self.process.kill()
        self.process.wait()
        try:
            with open(os.path.join(self.folder, f"pgdata{self.n}", "postmaster.pid")) as f:
                os.kill(int(f.readline()), signal.SIGKILL)
        except (OSError, ValueError):
            pass


def connect(nodes, **more):
    c = psycopg2.connect(host=",".join("127.0.0.1" for _ in nodes), port=",".join(str(port(15432, n)) for n in nodes),
                         user="postgres", password="x", dbname="postgres", connect_timeout=2, **more)
    c.autocommit = True
    return c


def until(what, seconds, done):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if done():
            return
        time.sleep(0.2)
    sys.exit(f"not within {seconds} s: {what}")


class Trial:
    def __init__(self, folder, binary, bin_dir, front):
        self.peers = [(Etcd if front == "etcd-server" else Peer)(binary, folder, n) for n in PEERS]
        self.nodes = [Node(folder, n, bin_dir, front) for n in NODES]
        self.acknowledged, self.outages, self.double, self.observed = [], [], 0, 0
        self.ended = threading.Event()

    def start(self):
        if isinstance(self.peers[0], Etcd):
            for p in self.peers:
                p.run()
        else:
            self.start_peers()
        until("three voters", 60, self.whole)
        for n in self.nodes:
            n.run()
            until(f"node {n.n} answers", 120, lambda: n.primary() or standby(n))

    def start_peers(self):
        first = self.peers[0]
        first.run()
        until("the first peer answers", 30, lambda: first.ask("group", "status").returncode == 0)
        line = next(w for w in first.ask("invite", "--data", first.folder).stdout.split() if w.startswith("bh1_"))
        for p in self.peers[1:]:
            p.run("--join", line)

    def whole(self):
        """Whether all three vote."""
        if isinstance(self.peers[0], Etcd):
            return all(p.status()[1] not in (None, "0") for p in self.peers)
        return self.group().get("failures_survived") == 1

    def group(self):
        for p in self.peers:
            if p.process.poll() is None:
                try:
                    return json.loads(p.ask("group", "status", "-o", "json").stdout)
                except (ValueError, subprocess.TimeoutExpired):
                    pass
        return {}

    def leader(self):
        if isinstance(self.peers[0], Etcd):
            return next((p for p in self.peers if p.status()[0] and p.status()[0] == p.status()[1]), None)
        leader = self.group().get("leader")
        for p in self.peers:
            if p.process.poll() is None and leader and f'"peer_id": "{leader}"' in p.ask("status", "-o", "json").stdout:
                return p
        return None

    def write(self):
        n, c, last = 0, None, time.monotonic()
        while not self.ended.is_set():
            n += 1
            try:
                c = c or connect(NODES, target_session_attrs="read-write", options="-c statement_timeout=2000")
                with c.cursor() as q:
                    q.execute("insert into rows values (%s)", (n,))
                self.acknowledged.append(n)
                now = time.monotonic()
                if now - last > 1:
                    self.outages.append(now - last)
                last = now
            except psycopg2.Error:
                if c:
                    c.close()
                c = None
            time.sleep(0.02)

    def observe(self):
        while not self.ended.wait(0.5):
            self.observed += 1
            if sum(n.primary() for n in self.nodes) > 1:
                self.double += 1

    def kill(self, turn):
        if turn % KINDS == 0:
            for n in self.nodes:
                if n.primary():
                    n.kill()
                    time.sleep(25)
                    n.run()
                    return "primary killed"
            return "no primary"
        if turn % KINDS == 3:
            n = next((n.n for n in self.nodes if n.primary()), None)
            if n is None:
                return "no primary"
            restart(self.peers[n - 1])
            return "peer of the primary killed"
        p = self.leader()
        if p is None:
            return "no leader"
        if turn % KINDS == 1:
            restart(p)
            return "leader killed"
        if turn % KINDS == 4:
            cut_off(p)
            return "leader cut off, " + ("and leads again" if self.leader() is p else "and follows another")
        os.kill(p.process.pid, signal.SIGSTOP)
        time.sleep(15)
        os.kill(p.process.pid, signal.SIGCONT)
        return "leader stopped"

    def healthy(self):
        return self.whole() and sum(n.primary() for n in self.nodes) == 1 and all(n.primary() or standby(n) and n.synchronous() for n in self.nodes)

    def verdict(self):
        with connect(NODES, target_session_attrs="read-write") as c, c.cursor() as q:
            q.execute("select n, count(*) from rows group by n")
            kept = dict(q.fetchall())
        lost = [n for n in self.acknowledged if n not in kept]
        twice = [n for n, k in kept.items() if k > 1]
        return {"acknowledged": len(self.acknowledged), "lost": len(lost), "twice": len(twice), "observations": self.observed, "two_primaries": self.double,
                "outages_above_1s": len(self.outages), "median_outage_s": round(statistics.median(self.outages), 1) if self.outages else 0,
                "longest_outage_s": round(max(self.outages), 1) if self.outages else 0}

    def stop(self):
        self.ended.set()
        for n in self.nodes:
            if hasattr(n, "process"):
                n.kill()
        for p in self.peers:
            if hasattr(p, "process"):
                p.process.kill()


def restart(peer):
    peer.process.kill()
    peer.process.wait()
    time.sleep(5)
    peer.run()


def cut_off(peer):
    """Drops for 15 s what the peer sends to others, and what they send to its port. Each peer runs with a group of the system of its own."""
    ports = "{ " + ", ".join(str(port(14801, n)) for n in PEERS) + " }"
    rules = [f"meta skgid {GROUP + peer.n} {proto} {end} {ports}" for proto in ("tcp", "udp") for end in ("sport", "dport")]
    rules += [f"{proto} dport {port(14801, peer.n)}" for proto in ("tcp", "udp")]
    nft("add table ip cut\nadd chain ip cut out { type filter hook output priority 0; }\n" + "".join(f"add rule ip cut out {r} drop\n" for r in rules))
    time.sleep(15)
    nft("delete table ip cut\n")


def nft(commands):
    subprocess.run(["nft", "-f", "-"], input=commands, text=True, check=True)


def standby(node):
    try:
        with connect([node.n]) as c, c.cursor() as q:
            q.execute("select 1 from pg_stat_wal_receiver where status = 'streaming'")
            return q.fetchone() is not None
    except psycopg2.Error:
        return False


def alone():
    """Starts this program again in a network namespace of its own."""
    if os.environ.get("PATRONI_NAMESPACE") != "own":
        os.environ["PATRONI_NAMESPACE"] = "own"
        os.execvp("unshare", ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", sys.executable, *sys.argv])


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--binary", required=True)
    a.add_argument("--front", choices=("etcd", "consul", "etcd-server"), default="etcd", help="etcd-server compares: BINARY is etcd's")
    a.add_argument("--kills", type=int, default=6)
    a.add_argument("--postgres", default="/usr/lib/postgresql/15/bin", help="folder of PostgreSQL's programs")
    o = a.parse_args()
    alone()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that nothing goes on without this program
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        t = Trial(folder, os.path.abspath(o.binary), o.postgres, o.front)
        try:
            t.start()
            with connect(NODES, target_session_attrs="read-write") as c, c.cursor() as q:
                q.execute("create table rows (n bigint)")
            threads = [threading.Thread(target=t.write), threading.Thread(target=t.observe)]
            for one in threads:
                one.start()
            until("both nodes stream", 60, t.healthy)
            for turn in range(o.kills):
                before, what = len(t.outages), t.kill(turn)
                until("healthy again", 180, t.healthy)
                time.sleep(3)
                print(f"{turn + 1}: {what}", *[f"outage {s:.1f} s" for s in t.outages[before:]], sep="; ", flush=True)
            t.ended.set()
            for one in threads:
                one.join()
            found = t.verdict()
        finally:
            t.stop()
    print(json.dumps(found))
    if found["lost"] or found["twice"] or found["two_primaries"]:
        sys.exit(1)


main()
