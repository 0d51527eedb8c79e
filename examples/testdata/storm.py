"""storm.py FOLDER ADDRESS SECONDS: plays the client of FOLDER for some time over a bad network. It prints the number of its steps."""

import sys
import threading
import time

sys.path.insert(0, sys.argv[1])
from blackholed import Client  # noqa: E402

seconds = float(sys.argv[3])
told = []
peer = Client(sys.argv[2], timeout=1.0, patience=120.0, on_trouble=lambda kept, error: told.append(error))
begin, step, token, revision = time.monotonic(), 0, 0, 0
kv, locks = peer.kv(), peer.locks()
with peer.services().register("storm", "10.0.0.9", 25, id="python"), locks.session(ttl=30) as session, locks.session(ttl=30) as other:
    if seconds > 320:  # a wait that lasts longer than common bounds of clients
        first = other.lock("storm/python/long", wait=0)
        got = []
        waits = threading.Thread(target=lambda: got.append(session.lock("storm/python/long", wait=seconds)))
        waits.start()
    while step < 3 or time.monotonic() < begin + seconds:
        step += 1
        assert kv.put("storm/python", str(step), if_revision=revision), "a put was applied twice, or not at all"
        entry = kv.get("storm/python")
        assert entry is not None and entry.version == step, entry
        revision = entry.mod_revision
        with session.lock("storm/python/lock", wait=120) as held:
            assert held.token > token
            token = held.token
        found = peer.services().discover("storm", health="any")
        assert "python" in [i["id"] for i in found], (found.stale, found.reason, found)
        other.check()
        if seconds > 320 and not got and time.monotonic() > begin + 310:
            first.unlock()
            waits.join()
            got[0].check()
print(step, "steps,", len(told), "troubles")
