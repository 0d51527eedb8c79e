#!/usr/bin/python3
"""A Kubernetes control plane whose cluster three peers keep, or three members of etcd to compare with.

    go build -o /tmp/blackholed ./cmd/blackholed
    testnet/outside/kubernetes.py --build /tmp/kubernetes
    testnet/outside/kubernetes.py --programs /tmp/kubernetes --binary /tmp/blackholed --pods 1000 --kills 15 --outage 60 --services --full --roll --restore

The API server, the controllers and the scheduler are Kubernetes' own, and kwok plays the nodes. Ten deployments get their pods. Then the
leader of the group is killed every 12 s while the deployments scale to the half and back; two of three peers are gone for a while; services of
the cluster are found at a peer, and one of a peer in the cluster; the disk of one peer is full; each peer stops in order and starts again, if
--before is given as a later program; a backup is restored into new peers, and the control plane goes on with these. After each part every
deployment must have its pods, each once, and an informer that has watched from the beginning must know what a list says. The API server
speaks to the peers by a client certificate unless --plain is given. All of it runs in namespaces of its own.
"""

import argparse
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

PEERS, DEPLOYMENTS, API = (1, 2, 3), 10, 36866
HOST = "10.255.255.1"  # an API server needs an address beyond loopback
KWOK = "v0.8.0"


def port(base, n):
    return base + 10 * n


def build(folder):
    """Builds Kubernetes' programs as one, and kwok with its stages."""
    os.makedirs(folder, exist_ok=True)
    here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "testdata", "kubernetes")
    with tempfile.TemporaryDirectory() as work:
        for name in ("go.mod", "main.go"):
            shutil.copy(os.path.join(here, name), work)
        go(work, "mod", "tidy")
        go(work, "build", "-ldflags=-s -w", "-o", os.path.join(folder, "kube"), ".")
    with tempfile.TemporaryDirectory() as work:
        with open(os.path.join(work, "go.mod"), "w") as f:
            f.write(f"module kwok\n\ngo 1.26.0\n\nrequire sigs.k8s.io/kwok {KWOK}\n")
        with open(os.path.join(work, "tools.go"), "w") as f:
            f.write('//go:build tools\n\npackage tools\n\nimport _ "sigs.k8s.io/kwok/pkg/kwok/cmd"\n')
        go(work, "mod", "tidy")
        go(work, "build", "-ldflags=-s -w", "-o", os.path.join(folder, "kwok"), "sigs.k8s.io/kwok/cmd/kwok")
        stages = os.path.join(go(work, "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kwok").strip(), "kustomize", "stage")
    with open(os.path.join(folder, "stages.yaml"), "w") as out:
        for kind in ("node/fast", "node/heartbeat-with-lease", "pod/fast"):
            for name in sorted(os.listdir(os.path.join(stages, kind))):
                if name.startswith(("node-", "pod-")) and name.endswith(".yaml"):
                    with open(os.path.join(stages, kind, name)) as f:
                        out.write("---\n" + f.read())


def go(folder, *words):
    return subprocess.run(["go", *words], cwd=folder, check=True, stdout=subprocess.PIPE, text=True).stdout


class Certificates:
    """A CA, a certificate for the peers and one for the API server."""

    def __init__(self, folder):
        self.folder = folder
        constraint = ("-addext", "basicConstraints=critical,CA:FALSE")
        signed = ("-CA", self.file("ca.crt"), "-CAkey", self.file("ca.key"), *constraint)
        self.make("ca")
        self.make("peer", *signed, "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1")
        self.make("kube", *signed, "-addext", "extendedKeyUsage=clientAuth")
        self.context = ssl.create_default_context(cafile=self.file("ca.crt"))
        self.context.load_cert_chain(self.file("kube.crt"), self.file("kube.key"))

    def file(self, name):
        return os.path.join(self.folder, name)

    def make(self, name, *more):
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc", "-days", "90",
                        "-keyout", self.file(name + ".key"), "-out", self.file(name + ".crt"), "-subj", f"/CN={name}", *more],
                       check=True, capture_output=True)

    def settings(self):
        return {"auth": {"enabled": True, "method": "mtls", "ca_cert": self.file("ca.crt"), "server_cert": self.file("peer.crt"),
                         "server_key": self.file("peer.key"), "certificates": [{"name": "kube", "role": "admin"}]}}

    def flags(self):
        return ["--tls-ca", self.file("ca.crt"), "--cert", self.file("kube.crt"), "--key", self.file("kube.key")]


class Program:
    """A process with a log of its own."""

    def __init__(self, folder, name):
        self.folder, self.name, self.process = folder, name, None

    def run(self, *words, **environment):
        with open(os.path.join(self.folder, self.name + ".log"), "ab") as log:
            self.process = subprocess.Popen(words, stdout=log, stderr=log, env={**os.environ, **environment}, cwd=self.folder)

    def end(self, with_signal=signal.SIGKILL):
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(with_signal)
            self.process.wait()

    def memory(self):
        """Resident and private memory in MB."""
        with open(f"/proc/{self.process.pid}/status") as f:
            kept = {line.split(":")[0]: int(line.split()[1]) // 1024 for line in f if line.startswith(("VmRSS", "RssAnon"))}
        return kept["VmRSS"], kept["RssAnon"]


class Peer(Program):
    """One peer with the front for clients of etcd."""

    def __init__(self, binary, folder, n, certificates):
        super().__init__(folder, f"peer{n}")
        self.binary, self.n, self.certificates = binary, n, certificates
        self.data = os.path.join(folder, f"peer{n}")
        self.scheme = "https" if certificates else "http"
        self.client = f"{self.scheme}://127.0.0.1:{port(12379, n)}"

    def start(self, *more):
        words = [self.binary, "run", "--network", "kubernetes", "--data", self.data, "--http", f"127.0.0.1:{port(18500, self.n)}",
                 "--grpc", f"127.0.0.1:{port(18502, self.n)}", "--dns", "off", "--listen", f"/ip4/127.0.0.1/tcp/{port(14801, self.n)}", *more]
        if self.certificates:
            settings = os.path.join(self.folder, "settings.yaml")
            with open(settings, "w") as f:
                json.dump(self.certificates.settings(), f)  # JSON is YAML
            words += ["--config", settings]
        self.run(*words, BLACKHOLE_ETCD_LISTEN=f"127.0.0.1:{port(12379, self.n)}")

    def ask(self, *words):
        flags = self.certificates.flags() if self.certificates else []
        return subprocess.run([self.binary, *words, "--grpc", f"127.0.0.1:{port(18502, self.n)}", *flags], capture_output=True, text=True, timeout=60)

    def post(self, path, body):
        context = self.certificates.context if self.certificates else None
        request = urllib.request.Request(self.client + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=3, context=context) as answer:
            return json.load(answer)

    def leads(self):
        try:
            said = self.post("/v3/maintenance/status", {})
            return said["leader"] == said["header"]["member_id"]
        except (OSError, ValueError, KeyError):
            return False


class Etcd(Peer):
    """One member of etcd itself, to compare with."""

    def start(self, *_):
        at = f"http://127.0.0.1:{port(14801, self.n)}"
        more = []
        if self.certificates:
            file = self.certificates.file
            more = ["--client-cert-auth", "--trusted-ca-file", file("ca.crt"), "--cert-file", file("peer.crt"), "--key-file", file("peer.key")]
        self.run(self.binary, "--name", f"e{self.n}", "--data-dir", self.data, "--listen-peer-urls", at, "--initial-advertise-peer-urls", at,
                 "--listen-client-urls", self.client, "--advertise-client-urls", self.client, "--log-level", "warn", *more,
                 "--initial-cluster", ",".join(f"e{n}=http://127.0.0.1:{port(14801, n)}" for n in PEERS))


class Cluster:
    """The control plane."""

    def __init__(self, folder, programs, peers):
        self.folder, self.programs, self.peers = folder, programs, peers
        self.ended = threading.Event()
        self.running = {}
        self.trusts = ssl._create_unverified_context()  # of the API server, whose certificate is its own
        self.known, self.missed = {}, []
        kube = os.path.join(programs, "kube")
        file = lambda name: os.path.join(folder, name)  # noqa: E731
        subprocess.run(["openssl", "genrsa", "-out", file("sa.key"), "2048"], check=True, capture_output=True)
        with open(file("tokens.csv"), "w") as f:
            f.write("admin-token,admin,admin,system:masters\n")
        with open(file("kubeconfig"), "w") as f:
            json.dump({"apiVersion": "v1", "kind": "Config", "current-context": "c",
                       "clusters": [{"name": "c", "cluster": {"server": f"https://127.0.0.1:{API}", "insecure-skip-tls-verify": True}}],
                       "users": [{"name": "u", "user": {"token": "admin-token"}}],
                       "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]}, f)
        store = ["--etcd-servers=" + ",".join(p.client for p in peers)]
        if peers[0].certificates:
            cert = peers[0].certificates.file
            store += [f"--etcd-cafile={cert('ca.crt')}", f"--etcd-certfile={cert('kube.crt')}", f"--etcd-keyfile={cert('kube.key')}"]
        self.commands = {
            "apiserver": [kube, "apiserver", *store, f"--secure-port={API}", "--bind-address=127.0.0.1", f"--cert-dir={file('certs')}",
                          f"--service-account-key-file={file('sa.key')}", f"--service-account-signing-key-file={file('sa.key')}",
                          "--service-account-issuer=https://kubernetes.local", "--service-cluster-ip-range=10.0.0.0/16", f"--advertise-address={HOST}",
                          "--authorization-mode=AlwaysAllow", f"--token-auth-file={file('tokens.csv')}",
                          "--disable-admission-plugins=ServiceAccount", "--endpoint-reconciler-type=none",
                          "--etcd-compaction-interval=1m", "--v=1"],
            "controllers": [kube, "controllers", f"--kubeconfig={file('kubeconfig')}", f"--service-account-private-key-file={file('sa.key')}",
                            "--leader-elect=true", "--v=1", "--kube-api-qps=100", "--kube-api-burst=200"],
            "scheduler": [kube, "scheduler", f"--kubeconfig={file('kubeconfig')}", "--leader-elect=true", "--v=1"],
            "kwok": [os.path.join(programs, "kwok"), f"--kubeconfig={file('kubeconfig')}", "--manage-all-nodes",
                     f"--config={os.path.join(programs, 'stages.yaml')}", "--node-lease-duration-seconds=40"],
        }

    def start(self):
        self.spawn("apiserver")
        until("the API server is ready", 120, self.ready)
        self.supervisor = threading.Thread(target=self.supervise)
        self.informer = threading.Thread(target=self.inform)
        self.supervisor.start()
        self.informer.start()

    def spawn(self, name):
        self.running[name] = Program(self.folder, name)
        self.running[name].run(*self.commands[name])

    def supervise(self):
        """Starts what has ended again, as systemd or a kubelet would: controllers and scheduler end when they lose their lease."""
        while not self.ended.wait(1):
            for name in self.commands:
                if name not in self.running or self.running[name].process.poll() is not None:
                    self.spawn(name)

    def request(self, method, path, body=None, timeout=20):
        headers = {"Authorization": "Bearer admin-token", "Content-Type": "application/json"}
        data = json.dumps(body).encode() if body is not None else None
        return urllib.request.urlopen(urllib.request.Request(f"https://127.0.0.1:{API}{path}", data, headers, method=method), timeout=timeout, context=self.trusts)

    def call(self, method, path, body=None):
        """Repeats a call for a minute; a conflict is an answer."""
        end = time.monotonic() + 60
        while True:
            try:
                with self.request(method, path, body) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as e:
                if e.code in (404, 409):
                    return json.load(e)
                if time.monotonic() > end:
                    raise
            except (OSError, ValueError):
                if time.monotonic() > end:
                    raise
            time.sleep(0.5)

    def ready(self):
        try:
            with self.request("GET", "/readyz", timeout=3) as answer:
                return answer.status == 200
        except OSError:
            return False

    def pods(self):
        return self.call("GET", "/api/v1/namespaces/default/pods?limit=100000")

    def counts(self):
        """How many pods run, and how many there are."""
        items = self.pods()["items"]
        return sum(p["status"].get("phase") == "Running" for p in items), len(items)

    def inform(self):
        """Lists the pods and watches them, as every controller does. What it knows must be what a list says."""
        at = None
        while not self.ended.is_set():
            try:
                if at is None:
                    listed = self.pods()
                    self.known = {p["metadata"]["name"]: p["metadata"]["uid"] for p in listed["items"]}
                    at = listed["metadata"]["resourceVersion"]
                path = f"/api/v1/namespaces/default/pods?watch=true&allowWatchBookmarks=true&timeoutSeconds=30&resourceVersion={at}"
                with self.request("GET", path, timeout=40) as stream:
                    for line in stream:
                        event = json.loads(line)
                        if event["type"] == "ERROR":
                            at = None
                            break
                        meta = event["object"]["metadata"]
                        at = meta["resourceVersion"]
                        if event["type"] == "DELETED":
                            self.known.pop(meta["name"], None)
                        elif event["type"] != "BOOKMARK":
                            self.known[meta["name"]] = meta["uid"]
            except (OSError, ValueError):
                time.sleep(0.5)

    def scale(self, replicas):
        for d in range(DEPLOYMENTS):
            path = f"/apis/apps/v1/namespaces/default/deployments/d{d}/scale"
            while True:
                wanted = self.call("GET", path)
                wanted["spec"]["replicas"] = replicas
                if self.call("PUT", path, wanted).get("kind") == "Scale":
                    break

    def whole(self, each, seconds):
        """Requires each deployment's pods, each once, at the list and at the informer."""
        until(f"{each} pods of each deployment run", seconds, lambda: self.counts() == (each * DEPLOYMENTS, each * DEPLOYMENTS))
        items = self.pods()["items"]
        names = {p["metadata"]["name"]: p["metadata"]["uid"] for p in items}
        per = {}
        for p in items:
            per[p["metadata"]["labels"]["app"]] = per.get(p["metadata"]["labels"]["app"], 0) + 1
        if len(set(names.values())) != each * DEPLOYMENTS or set(per.values()) != {each}:
            sys.exit(f"a pod is lost or doubled: {len(set(names.values()))} of {each * DEPLOYMENTS}; {per}")
        until("the informer knows what the list says", 60, lambda: self.known == names)

    def stop(self):
        self.ended.set()
        for p in self.running.values():
            p.end()
        for thread in ("supervisor", "informer"):
            if hasattr(self, thread):
                getattr(self, thread).join()
        for p in self.running.values():  # what the supervisor had begun meanwhile
            p.end()


def node(name):
    size = {"cpu": "64", "memory": "256Gi", "pods": "250"}
    info = {"kubeletVersion": "fake", "kubeProxyVersion": "fake", "architecture": "amd64", "operatingSystem": "linux", "bootID": "",
            "containerRuntimeVersion": "", "kernelVersion": "", "machineID": "", "osImage": "", "systemUUID": ""}
    return {"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "type": "kwok"}, "annotations": {"kwok.x-k8s.io/node": "fake"}},
            "spec": {}, "status": {"capacity": size, "allocatable": size, "nodeInfo": info}}


def deployment(name, replicas):
    container = {"name": "c", "image": "fake", "resources": {"requests": {"cpu": "10m"}}}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
            "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": name}},
                     "template": {"metadata": {"labels": {"app": name}}, "spec": {"automountServiceAccountToken": False, "containers": [container]}}}}


def empty(folder):
    """Removes what a folder has, which can be a mount."""
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.remove(entry.path)


def until(what, seconds, done):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if done():
                return
        except (OSError, ValueError, KeyError):
            pass
        time.sleep(0.3)
    sys.exit(f"not within {seconds} s: {what}")


class Trial:
    def __init__(self, folder, options):
        self.options = options
        certificates = None if options.plain else Certificates(folder)
        kind = Etcd if options.etcd else Peer
        self.peers = [kind(os.path.abspath(options.before or options.binary), folder, n, certificates) for n in PEERS]
        if options.full:
            for p in self.peers:
                os.mkdir(p.data)
                subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512m,mode=700", "tmpfs", p.data], check=True)
        self.cluster = Cluster(folder, os.path.abspath(options.programs), self.peers)
        self.each = options.pods // DEPLOYMENTS

    def start(self):
        self.start_peers()
        begun = time.monotonic()
        self.cluster.start()
        print(f"the API server is ready after {time.monotonic() - begun:.1f} s", flush=True)
        for n in range(max(2, self.options.pods // 50)):
            self.cluster.call("POST", "/api/v1/nodes", node(f"n{n}"))
        begun = time.monotonic()
        for d in range(DEPLOYMENTS):
            self.cluster.call("POST", "/apis/apps/v1/namespaces/default/deployments", deployment(f"d{d}", self.each))
        self.cluster.whole(self.each, 120 + self.options.pods / 10)
        print(f"{self.options.pods} pods run after {time.monotonic() - begun:.1f} s", flush=True)

    def start_peers(self):
        first, joins = self.peers[0], []
        first.start()
        if not self.options.etcd:
            until("the first peer answers", 30, lambda: first.ask("group", "status").returncode == 0)
            joins = ["--join", next(w for w in first.ask("invite", "--data", first.data).stdout.split() if w.startswith("bh1_"))]
        for p in self.peers[1:]:
            p.start(*joins)
        until("three members", 90, lambda: len(first.post("/v3/cluster/member/list", {})["members"]) == 3)

    def leader(self):
        return next((p for p in self.peers if p.leads()), None)

    def kills(self):
        """Kills the leader again and again while the deployments scale."""
        gaps, rounds, ended = [], 0, threading.Event()

        def killer():
            for _ in range(self.options.kills):
                time.sleep(12)
                p = self.leader()
                if p is None:
                    continue
                p.end()
                at = time.monotonic()
                until("the next leader", 30, self.leader)
                gaps.append(time.monotonic() - at)
                time.sleep(3)
                p.start()
            ended.set()

        thread = threading.Thread(target=killer, daemon=True)
        thread.start()
        while not ended.is_set() and thread.is_alive():
            self.cluster.scale([self.each // 2, self.each][rounds % 2])
            rounds += 1
            time.sleep(1)
        thread.join()
        self.cluster.scale(self.each)
        self.cluster.whole(self.each, 420)  # the scheduler tries a pod whose binding failed again after five minutes
        print(f"{len(gaps)} kills of the leader, the next one after {', '.join(f'{g:.1f}' for g in gaps)} s; {rounds} rounds of scaling; whole", flush=True)

    def outage(self):
        gone = [self.leader() or self.peers[0]]
        gone.append(next(p for p in self.peers if p is not gone[0]))
        self.cluster.scale(self.each // 2)
        for p in gone:
            p.end()
        time.sleep(self.options.outage)
        begun = time.monotonic()
        for p in gone:
            p.start()
        until("a leader after the outage", 60, self.leader)
        led = time.monotonic() - begun
        self.cluster.whole(self.each // 2, 420)
        self.cluster.scale(self.each)
        self.cluster.whole(self.each, 420)
        print(f"no majority for {self.options.outage:.0f} s; a leader {led:.1f} s after the start; whole", flush=True)

    def roll(self):
        """Each peer stops in order and starts again, with the later program."""
        for p in self.peers:
            p.end(signal.SIGTERM)
            self.cluster.scale(self.each // 2 if p.n % 2 else self.each)
            p.binary = os.path.abspath(self.options.binary)
            p.start()
            until("the peer answers again", 60, lambda: p.post("/v3/maintenance/status", {}))
        self.cluster.scale(self.each)
        self.cluster.whole(self.each, 420)
        print("a rolling upgrade; whole" if self.options.before else "a rolling restart; whole", flush=True)

    def services(self):
        """The API server itself is found at a peer, and an instance of a peer by the EndpointSlice of a service without selector."""
        peer, cluster = self.peers[0], self.cluster
        flags = ["--grpc", f"127.0.0.1:{port(18502, peer.n)}", *(peer.certificates.flags() if peer.certificates else [])]
        ledger = Program(cluster.folder, "ledger")
        ledger.run(peer.binary, "instance", "register", "ledger", "--host", HOST, "--port", "7000", "--keep", *flags)
        cluster.call("POST", "/api/v1/namespaces/default/services", {
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "books", "annotations": {"blackholed/service": "ledger"}}, "spec": {"ports": [{"port": 80}]}})
        cluster.call("POST", "/api/v1/namespaces/default/services", {
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": {"selector": {"app": "d0"}, "ports": [{"port": 80}]}})
        token = os.path.join(cluster.folder, "token")
        with open(token, "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as f:
            f.write("admin-token")
        both = []
        for way in ("--from", "--to"):
            both.append(Program(cluster.folder, "sync" + way))
            both[-1].run(peer.binary, "sync", way, f"https://127.0.0.1:{API}", "--cluster-token-file", token, "--cluster-ca", os.path.join(cluster.folder, "certs", "apiserver.crt"),
                         "--namespace", "default", "--every", "1s", *flags)
        slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices?labelSelector=kubernetes.io/service-name%3Dbooks"
        addresses = lambda: [(a, e["conditions"]["ready"]) for s in cluster.call("GET", slices)["items"] for e in s["endpoints"] for a in e["addresses"]]  # noqa: E731
        until("the cluster has the instance of the peer", 60, lambda: addresses() == [(HOST, True)])
        until("the peer has the pods behind the service", 60,
              lambda: len(json.loads(peer.ask("instance", "show", "web", "-o", "json").stdout)["instances"]) == self.each)
        ledger.end(signal.SIGTERM)
        until("the cluster has lost it", 60, lambda: addresses() == [])
        for p in both:
            p.end(signal.SIGTERM)
        print("services both ways", flush=True)

    def full(self):
        """The disk of a peer is full while the deployments scale; with room again it is a member again."""
        p = self.leader() or self.peers[0]
        filler = os.path.join(p.data, "filler")
        with open(filler, "wb") as f:
            try:
                while True:
                    f.write(bytes(1 << 20))
                    f.flush()
            except OSError:
                pass
        self.cluster.scale(self.each // 2)
        self.cluster.whole(self.each // 2, 420)
        self.cluster.scale(self.each)
        self.cluster.whole(self.each, 420)
        os.remove(filler)
        until("the peer votes again", 60, lambda: "member" in p.ask("group", "status").stdout and p.post("/v3/maintenance/status", {})["leader"] != "0")
        print(f"the disk of {p.name} was full; whole", flush=True)

    def restore(self):
        """Two peers are lost, and the third one's part of the group: it gets the backup of before. The control plane keeps running."""
        first, saved = self.peers[0], os.path.join(self.cluster.folder, "backup")
        made = first.ask("group", "backup", saved)
        if made.returncode != 0:
            sys.exit(f"group backup: {made.stderr}")
        self.cluster.scale(self.each // 2)  # what the backup lacks
        for p in self.peers:
            p.end()
            empty(p.data if p is not first else os.path.join(p.data, "coordination"))
        again = subprocess.run([first.binary, "group", "restore", saved, "--data", first.data, "--yes"], capture_output=True, text=True)
        if again.returncode != 0:
            sys.exit(f"group restore: {again.stderr}")
        self.start_peers()
        self.cluster.scale(self.each)
        self.cluster.whole(self.each, 420)
        print("restored from a backup; whole", flush=True)

    def sizes(self):
        print("revision", self.peers[0].post("/v3/kv/range", {"key": "YQ=="})["header"]["revision"])
        for p in self.peers:
            resident, private = p.memory()
            disk = subprocess.run(["du", "-sm", p.data], capture_output=True, text=True).stdout.split()[0]
            print(f"  {p.name}: {resident} MB resident, {private} MB private, {disk} MB on disk", flush=True)

    def stop(self):
        self.cluster.stop()
        for p in self.peers:
            p.end()


def alone():
    """Starts this program again in namespaces of its own, of the network and of mounts."""
    if os.environ.get("KUBERNETES_NAMESPACE") != "own":
        os.environ["KUBERNETES_NAMESPACE"] = "own"
        os.execvp("unshare", ["unshare", "--net", "--mount", "sh", "-c", f'ip link set lo up && ip address add {HOST}/32 dev lo && exec "$@"', "sh", sys.executable, *sys.argv])


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--build", metavar="FOLDER", help="build Kubernetes and kwok there, and end")
    a.add_argument("--programs", metavar="FOLDER", help="what --build has built")
    a.add_argument("--binary", help="blackholed, or etcd with --etcd")
    a.add_argument("--etcd", action="store_true", help="compare: BINARY is etcd's")
    a.add_argument("--plain", action="store_true", help="without TLS between the API server and the peers")
    a.add_argument("--pods", type=int, default=500)
    a.add_argument("--kills", type=int, default=5)
    a.add_argument("--outage", type=float, default=0, help="seconds without a majority")
    a.add_argument("--services", action="store_true", help="blackholed sync both ways; not with --etcd")
    a.add_argument("--full", action="store_true", help="fill the disk of a peer, of 512 MB in memory; not with --etcd")
    a.add_argument("--roll", action="store_true", help="restart each peer in order")
    a.add_argument("--before", help="the program with which the peers begin, before --roll")
    a.add_argument("--restore", action="store_true", help="lose all peers and restore a backup; not with --etcd")
    a.add_argument("--keep", metavar="FOLDER", help="keep logs and data there")
    o = a.parse_args()
    if o.build:
        return build(o.build)
    if not o.programs or not o.binary:
        a.error("--programs and --binary are required")
    alone()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that nothing goes on without this program
    with tempfile.TemporaryDirectory() as folder:
        t = Trial(folder, o)
        try:
            t.start()
            if o.kills:
                t.kills()
            if o.outage:
                t.outage()
            if o.services:
                t.services()
            if o.full:
                t.full()
            if o.roll:
                t.roll()
            t.sizes()
            if o.restore:
                t.restore()
        finally:
            t.stop()
            if o.keep:
                shutil.copytree(folder, o.keep, dirs_exist_ok=True)
            if o.full:
                for p in t.peers:
                    subprocess.run(["umount", p.data], check=False)
    print("ok")


main()
