// etcd3 of npm, unchanged, against the peer whose clients of etcd use the given address. An error is a finding.

import assert from "node:assert/strict";
import { once } from "node:events";

import { EtcdLeaseInvalidError, EtcdLockFailedError, Etcd3, STMConflictError } from "etcd3";

import { play, version } from "./parts.mjs";

const hosts = "http://" + process.argv[2];
const c = new Etcd3({ hosts });
const other = new Etcd3({ hosts });

async function keys() {
  assert.equal(await c.get("js/none"), null);
  await c.put("js/a").value("1");
  assert.equal((await c.put("js/a").value("2").getPrevious()).value.toString(), "1");
  assert.equal(await c.get("js/a"), "2");
  assert.equal(await c.get("js/a").serializable(true).string(), "2");
  await c.put("js/n").value(42);
  assert.equal(await c.get("js/n").number(), 42);
  await c.put("js/j").value(JSON.stringify({ a: [1] }));
  assert.deepEqual(await c.get("js/j").json(), { a: [1] });
  const binary = Buffer.from(Array.from({ length: 250_000 }, (_, i) => i % 256));
  await c.put("js/z").value(binary);
  assert.deepEqual(await c.get("js/z").buffer(), binary);
  assert.deepEqual(await c.getAll().prefix("js/").keys(), ["js/a", "js/j", "js/n", "js/z"]);
  assert.deepEqual(await c.getAll().prefix("js/").sort("Mod", "Descend").limit(2).keys(), ["js/z", "js/j"]);
  assert.equal(await c.getAll().prefix("js/").count(), 4);
  assert.ok(await c.get("js/n").exists());
  const revision = (await c.get("js/a").exec()).header.revision;
  await c.put("js/a").value("3");
  assert.equal(await c.get("js/a").revision(revision), "2");
  await c.put("js/a").value("4").touch();
  assert.equal(await c.get("js/a"), "3");
  const [gone] = await c.delete().key("js/a").getPrevious();
  assert.equal(gone.value.toString(), "3");
  assert.equal((await c.delete().prefix("js/")).deleted, "3");
  const space = c.namespace("space/");
  await space.put("a").value("1");
  assert.deepEqual(await space.getAll().strings(), { a: "1" });
  assert.equal(await c.get("space/a"), "1");
  assert.equal((await space.delete().all()).deleted, "1");
}

async function transactions() {
  const take = () => c.if("txn/a", "Create", "==", 0).then(c.put("txn/a").value("1"), c.put("txn/b").value("2")).else(c.get("txn/a")).commit();
  assert.ok((await take()).succeeded);
  const refused = await take();
  assert.ok(!refused.succeeded);
  assert.equal(refused.responses[0].response_range.kvs[0].value.toString(), "1");
  assert.ok((await c.if("txn/a", "Value", "==", "1").and("txn/b", "Version", "<", 2).then(c.delete().key("txn/b")).commit()).succeeded);
  assert.equal(await c.get("txn/b"), null);
  await c.put("txn/n").value("0");
  const add = (stm) => stm.transact(async (tx) => tx.put("txn/n").value(1 + (await tx.get("txn/n").number())));
  for (let round = 0; round < 5; round++) {
    await Promise.all([c, other].map((client) => add(client.stm({ retries: 20 }))));
  }
  assert.equal(await c.get("txn/n").number(), 10);
  await assert.rejects(
    c.stm({ retries: 0 }).transact(async (tx) => {
      await tx.get("txn/n");
      await other.put("txn/n").value("99");
      return tx.put("txn/n").value("0");
    }),
    STMConflictError,
  );
  assert.equal(await c.get("txn/n"), "99");
}

async function leases() {
  const lease = c.lease(30);
  await lease.put("lease/a").value("1");
  const id = await lease.grant();
  assert.equal((await c.get("lease/a").exec()).kvs[0].lease, id);
  assert.equal((await lease.keepaliveOnce()).TTL, "30");
  const left = await c.leaseClient.leaseTimeToLive({ ID: id, keys: true });
  assert.deepEqual([left.grantedTTL, left.keys.map(String)], ["30", ["lease/a"]]);
  assert.ok((await c.leaseClient.leaseLeases()).leases.some((l) => l.ID === id));
  const watcher = await c.watch().key("lease/a").create();
  await Promise.all([once(watcher, "delete"), lease.revoke()]);
  await watcher.cancel();
  const lost = c.lease(30);
  const told = once(lost, "lost");
  await other.leaseClient.leaseRevoke({ ID: await lost.grant() });
  await assert.rejects(lost.keepaliveOnce(), EtcdLeaseInvalidError);
  assert.ok((await told)[0] instanceof EtcdLeaseInvalidError);
  await assert.rejects(lost.put("lease/b").value("1").exec());
  const silent = (await c.leaseClient.leaseGrant({ TTL: 5 })).ID; // the shortest
  const ends = await c.watch().key("lease/c").create();
  await c.put("lease/c").value("1").lease(silent);
  await once(ends, "delete"); // nobody renews it
  await ends.cancel();
}

async function watches() {
  const seen = [];
  const all = await c.watch().prefix("watch/").withPreviousKV().create();
  const three = new Promise((done) => {
    for (const kind of ["put", "delete"]) {
      all.on(kind, (kv, prev) => seen.push([kind, kv.key.toString(), kv.value.toString(), prev?.value.toString()]) === 3 && done());
    }
  });
  await other.put("watch/a").value("1");
  const first = (await other.get("watch/a").exec()).kvs[0].mod_revision;
  await other.put("elsewhere").value("1");
  await other.put("watch/a").value("2");
  await other.delete().key("watch/a");
  await three;
  assert.deepEqual(seen, [["put", "watch/a", "1", undefined], ["put", "watch/a", "2", "1"], ["delete", "watch/a", "", "2"]]);
  await all.cancel();
  const past = await c.watch().key("watch/a").startRevision(first).only("delete").watcher();
  const [gone] = await once(past, "delete");
  assert.equal(gone.key.toString(), "watch/a");
  await past.cancel();
}

async function locks() {
  let inside = 0;
  const work = async (client, n) => {
    for (let done = 0; done < n; ) {
      try {
        await client.lock("job").ttl(30).do(async () => {
          assert.equal(++inside, 1);
          await client.get("job");
          inside--;
        });
        done++;
      } catch (e) {
        if (!(e instanceof EtcdLockFailedError)) throw e; // this client does not wait
      }
    }
  };
  await Promise.all([work(c, 5), work(other, 5)]);
  const held = await c.lock("job").ttl(30).acquire();
  await assert.rejects(other.lock("job").ttl(30).acquire(), EtcdLockFailedError);
  await held.release();
  await (await other.lock("job").ttl(30).acquire()).release();
}

async function elections() {
  const mine = c.election("chief", 30);
  const theirs = other.election("chief", 30);
  await assert.rejects(mine.leader().then((l) => assert.ok(l)));
  const first = mine.campaign("first");
  await first.wait();
  assert.equal(await theirs.leader(), "first");
  const observer = await theirs.observe();
  const second = theirs.campaign("second");
  const changes = [];
  const followed = new Promise((done) => observer.on("change", (l) => changes.push(l) && l === "second" && done()));
  await first.proclaim("first again");
  while ((await theirs.leader()) !== "first again");
  const elected = once(second, "elected");
  await first.resign();
  await Promise.all([elected, followed]);
  assert.equal(await mine.leader(), "second");
  await second.resign();
  await observer.cancel();
}

async function cluster() {
  const { members } = await c.cluster.memberList({});
  assert.equal((await c.maintenance.status()).leader, members[0].ID);
  assert.deepEqual((await c.maintenance.alarm({ action: "Get" })).alarms, []);
  await c.put("old").value("1");
  const { header } = await c.put("old").value("2");
  await c.kv.compact({ revision: header.revision });
  await assert.rejects(c.get("old").revision(Number(header.revision) - 1).exec(), /compacted/);
  await assert.rejects(c.cluster.memberAdd({ peerURLs: ["http://127.0.0.1:1"] }));
}

console.log("etcd3", version("etcd3"));
await play(keys, transactions, leases, watches, locks, elections, cluster);
c.close();
other.close();
process.exit(); // the client keeps timers of locks that it did not get
