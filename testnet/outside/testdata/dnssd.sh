#!/bin/bash
# python-zeroconf, unchanged, finds an instance of a peer with profile lan, and sees it go. Runs in a network namespace of its own:
#	unshare -n dnssd.sh BLACKHOLED
set -euo pipefail
binary=$1
folder=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; wait; rm -rf "$folder"' EXIT

ip link set lo up
ip link add lan type veth peer name switch
for end in lan switch; do ip link set $end up; done
ip address add 10.99.0.1/24 dev lan

"$binary" run --profile lan --network outside --data "$folder/peer" > "$folder/log" 2>&1 &
timeout 60 bash -c "until curl -sf http://127.0.0.1:8500/readyz > /dev/null; do sleep 0.3; done" || { cat "$folder/log"; exit 1; }
curl -sf http://127.0.0.1:8500/v1/services/web/instances -d '{"id":"web.1","host":"10.99.0.1","port":8080,"zone":"eu"}'
curl -sf http://127.0.0.1:8500/v1/services/web/instances -d '{"id":"hidden","host":"127.0.0.1","port":8080}'
echo
/usr/bin/python3 - <<'SCRIPT'
import importlib.metadata
import queue
import urllib.request

import zeroconf

print("python-zeroconf", importlib.metadata.version("zeroconf"))


class Listener(zeroconf.ServiceListener):
    def __init__(self):
        self.told = queue.Queue()

    def add_service(self, z, kind, name):
        self.told.put(("found", name))

    def remove_service(self, z, kind, name):
        self.told.put(("gone", name))

    def update_service(self, z, kind, name):
        pass


z, listener = zeroconf.Zeroconf(interfaces=["10.99.0.1"]), Listener()
assert "_web._tcp.local." in zeroconf.ZeroconfServiceTypes.find(zc=z, timeout=5)
zeroconf.ServiceBrowser(z, "_web._tcp.local.", listener)
said, name = listener.told.get(timeout=20)
assert said == "found" and name == "web.1._web._tcp.local.", (said, name)
info = z.get_service_info("_web._tcp.local.", name, timeout=5000)
assert info.parsed_addresses() == ["10.99.0.1"] and info.port == 8080, info
assert info.properties[b"zone"] == b"eu", info
urllib.request.urlopen(urllib.request.Request("http://127.0.0.1:8500/v1/services/web/instances/web.1", method="DELETE"))
assert listener.told.get(timeout=20) == ("gone", name)
z.close()
print("found, resolved, gone")
SCRIPT
