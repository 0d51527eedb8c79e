// consul of npm, unchanged, against the peer at the given address. An error is a finding.

import assert from "node:assert/strict";
import { once } from "node:events";

import Consul from "consul";

import { play, version } from "./parts.mjs";

const [host, port] = process.argv[2].split(":");
const c = new Consul({ host, port: Number(port) });

async function keys() {
  assert.equal(await c.kv.get("js/none"), undefined);
  assert.ok(await c.kv.set("js/a", "1", { flags: 7 }));
  const pair = await c.kv.get("js/a");
  assert.deepEqual([pair.Key, pair.Value, pair.Flags, pair.LockIndex], ["js/a", "1", 7, 0]);
  assert.ok(await c.kv.set({ key: "js/a", value: "2", cas: pair.ModifyIndex }));
  assert.ok(!(await c.kv.set({ key: "js/a", value: "3", cas: pair.ModifyIndex })), "the index is old");
  assert.ok((await c.kv.set({ key: "js/new", value: "1", cas: 0 })) && !(await c.kv.set({ key: "js/new", value: "2", cas: 0 })));
  assert.ok(!(await c.kv.del({ key: "js/a", cas: pair.ModifyIndex })));
  await c.kv.set("js/b/ä 1", "x");
  assert.deepEqual((await c.kv.get({ key: "js/", recurse: true })).map((p) => p.Key), ["js/a", "js/b/ä 1", "js/new"]);
  assert.deepEqual(await c.kv.keys("js/"), ["js/a", "js/b/ä 1", "js/new"]);
  assert.deepEqual(await c.kv.keys({ key: "js/", separator: "/" }), ["js/a", "js/b/", "js/new"]);
  const binary = Buffer.from(Array.from({ length: 250_000 }, (_, i) => i % 256));
  await c.kv.set("js/z", binary);
  assert.deepEqual((await c.kv.get({ key: "js/z", buffer: true })).Value, binary);
  assert.equal((await c.kv.get({ key: "js/a", stale: true })).Value, "2");
  await c.kv.del({ key: "js/", recurse: true });
  assert.equal(await c.kv.get({ key: "js/", recurse: true }), undefined);

  const count = async () => {
    for (let done = 0; done < 10; ) {
      const p = await c.kv.get("js/n");
      if (await c.kv.set({ key: "js/n", value: String(Number(p.Value) + 1), cas: p.ModifyIndex })) done++;
    }
  };
  await c.kv.set("js/n", "0");
  await Promise.all([count(), count(), count()]);
  assert.equal((await c.kv.get("js/n")).Value, "30");
}

async function transactions() {
  const base64 = (text) => Buffer.from(text).toString("base64");
  const done = await c.transaction.create([
    { KV: { Verb: "check-not-exists", Key: "txn/a" } },
    { KV: { Verb: "set", Key: "txn/a", Value: base64("1"), Flags: 3 } },
    { KV: { Verb: "get", Key: "txn/a" } },
  ]);
  assert.equal(done.Errors, null);
  assert.equal(done.Results.at(-1).KV.Value, base64("1"));
  await assert.rejects(c.transaction.create([{ KV: { Verb: "set", Key: "txn/b", Value: base64("1") } }, { KV: { Verb: "check-not-exists", Key: "txn/a" } }]), /conflict/i);
  assert.equal(await c.kv.get("txn/b"), undefined);
}

async function sessions() {
  const { ID } = await c.session.create({ name: "job", ttl: "10s", lockdelay: "0s", behavior: "release" });
  const info = await c.session.get(ID);
  const entry = Array.isArray(info) ? info[0] : info;
  assert.deepEqual([entry.Name, entry.TTL, entry.Behavior, entry.LockDelay], ["job", "10s", "release", 0]);
  assert.ok((await c.session.list()).some((s) => s.ID === ID));
  assert.ok((await c.session.node(entry.Node)).some((s) => s.ID === ID));
  assert.equal((await c.session.renew(ID))[0].ID, ID);
  const other = (await c.session.create({ ttl: "600s", lockdelay: "0s" })).ID;
  assert.ok(await c.kv.set({ key: "job", value: "me", acquire: ID }));
  assert.ok(!(await c.kv.set({ key: "job", value: "other", acquire: other })));
  const held = await c.kv.get("job");
  assert.deepEqual([held.Session, held.LockIndex], [ID, 1]);
  assert.ok(!(await c.kv.set({ key: "job", value: "", release: other })));
  const free = c.watch({ method: c.kv.get, options: { key: "job", wait: "60s" } });
  await new Promise((done, fail) => {
    free.on("error", fail);
    free.on("change", (pair) => !pair.Session && done()); // nobody renews the session
  });
  free.end();
  await assert.rejects(c.session.renew(ID));
  assert.ok(await c.kv.set({ key: "job", value: "other", acquire: other }));
  assert.equal((await c.kv.get("job")).LockIndex, 2);
  await c.session.destroy(other);
  assert.equal((await c.kv.get("job")).Session, undefined);
}

async function services() {
  const web = c.watch({ method: c.health.service, options: { service: "js-web", passing: true, wait: "60s" } });
  web.on("error", (e) => assert.fail(e));
  let found;
  web.on("change", (list) => (found = list));
  const changed = async (count) => {
    while (found?.length !== count) await once(web, "change");
  };
  await changed(0);
  await c.agent.service.register({ name: "js-web", id: "js-web-1", address: "127.0.0.1", port: 9000, tags: ["v1"], meta: { zone: "eu" }, check: { ttl: "60s" } });
  assert.deepEqual(await c.health.service({ service: "js-web", passing: true }), [], "critical until it passes");
  await c.agent.check.pass({ id: "service:js-web-1", note: "well" });
  await changed(1);
  const [{ Node, Service }] = await c.health.service({ service: "js-web", tag: "v1", passing: true });
  assert.deepEqual([Service.ID, Service.Service, Service.Address, Service.Port, Service.Tags, Service.Meta], ["js-web-1", "js-web", "127.0.0.1", 9000, ["v1"], { zone: "eu" }]);
  assert.deepEqual((await c.catalog.service.list())["js-web"], ["v1"]);
  assert.equal((await c.catalog.service.nodes("js-web"))[0].ServiceID, "js-web-1");
  assert.ok((await c.catalog.node.list()).some((n) => n.Node === Node.Node));
  assert.ok((await c.catalog.node.services(Node.Node)).Services["js-web-1"]);
  assert.deepEqual(await c.catalog.datacenters(), [(await c.agent.self()).Config.Datacenter]);
  assert.equal((await c.agent.service.list())["js-web-1"].Port, 9000);
  assert.equal((await c.agent.check.list())["service:js-web-1"].Status, "passing");
  await c.agent.check.warn("service:js-web-1");
  assert.equal((await c.health.checks("js-web"))[0].Status, "warning");
  await c.agent.check.fail("service:js-web-1");
  await changed(0);
  assert.ok((await c.health.state("critical")).some((k) => k.CheckID === "service:js-web-1"));
  assert.ok((await c.health.node(Node.Node)).some((k) => k.CheckID === "service:js-web-1"));
  await c.agent.check.register({ name: "second", id: "js-second", serviceid: "js-web-1", ttl: "60s" });
  await c.agent.check.deregister("js-second");
  await c.agent.service.maintenance({ id: "js-web-1", enable: true, reason: "upgrade" });
  await c.agent.service.maintenance({ id: "js-web-1", enable: false });
  await c.agent.service.deregister("js-web-1");
  assert.deepEqual(await c.health.service("js-web"), []);
  web.end();
}

async function status() {
  assert.ok((await c.status.peers()).includes(await c.status.leader()));
  await assert.rejects(c.event.fire("deploy"));
}

console.log("consul", version("consul"));
await play(keys, transactions, sessions, services, status);
