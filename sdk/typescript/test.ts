// node out/test.js ADDRESS: plays the client against a running peer.
import assert from "node:assert/strict"
import { test } from "node:test"
import { Client, Lost, NotAcquired, Refused, type Entry, type Instance } from "./blackholed.js"

const peer = new Client({ address: process.env.BLACKHOLED })
const names = (list: Instance[]) => list.map((i) => i.id)
const all = async (entries: AsyncIterable<Entry>) => { const out = []; for await (const e of entries) out.push(e); return out }

test("instances", async () => {
  const stop = new AbortController()
  const changes = peer.watch("ts-mail", { wait: 5, signal: stop.signal })
  const next = async () => names((await changes.next()).value ?? [])
  assert.deepEqual(await next(), [])
  const mail = await peer.register("ts-mail", { host: "10.0.0.9", port: 25, id: "mail-1", zone: "a", tags: ["canary"] })
  assert.deepEqual(await next(), ["mail-1"])
  assert.equal((await peer.discover("ts-mail", { zone: "a" }))[0].port, 25)
  assert.deepEqual(await peer.discover("ts-mail", { zone: "b" }), [])
  await peer.call("DELETE", "/v1/services/ts-mail/instances/mail-1")
  assert.deepEqual(await next(), [])
  await mail.renew() // the peer forgot it: it registers again
  assert.deepEqual(await next(), ["mail-1"])
  await mail.close()
  assert.deepEqual(await next(), [])
  stop.abort()
  assert.equal((await changes.next()).done, true)
  await assert.rejects(peer.register("ts-mail", { host: "not a host", port: 25 }), (e: Refused) => e.status === 400 && e.field === "host")
})

test("locks", async () => {
  const one = await peer.session(), two = await peer.session()
  const held = await one.lock("ts/jobs", { wait: 5, metadata: "me" })
  await assert.rejects(two.lock("ts/jobs", { wait: 0 }), NotAcquired)
  const waits = two.lock("ts/jobs", { wait: 20 })
  held.check()
  await held.release()
  const then = await waits
  assert.ok(BigInt(then.token) > BigInt(held.token))
  await then.release()
  const readers = await Promise.all([one.lock("ts/readers", { shared: true }), two.lock("ts/readers", { wait: 0, shared: true })])
  await Promise.all(readers.map((r) => r.release()))
  const again = await one.lock("ts/jobs")
  await peer.call("DELETE", `/v1/coordination/leases/${one.lease}`)
  await one.renew()
  assert.throws(() => again.check(), Lost)
  await (await two.lock("ts/jobs", { wait: 0 })).release()
  await one.close()
  await two.close()
})

test("keys", async () => {
  assert.equal(await peer.get("ts/a b/c"), undefined)
  assert.ok(await peer.put("ts/a b/c", "1", { ifRevision: "0" }))
  assert.ok(!(await peer.put("ts/a b/c", "2", { ifRevision: "0" })))
  const seen = await peer.entry("ts/a b/c")
  assert.ok(await peer.put("ts/a b/c", Uint8Array.of(0, 255), { ifRevision: seen!.modRevision }))
  assert.deepEqual((await all(peer.list("ts/a"))).map((e) => [e.key, ...e.value]), [["ts/a b/c", 0, 255]])
  const s = await peer.session()
  await peer.put("ts/mine", "x", { lease: s.lease })
  assert.equal(new TextDecoder().decode(await peer.get("ts/mine")), "x")
  await s.close()
  assert.equal(await peer.get("ts/mine"), undefined)
  assert.ok(await peer.delete("ts/a b/c"))
  for (let n = 0; n < 1100; n++) await peer.put(`ts/many/${String(n).padStart(4, "0")}`, "")
  assert.equal((await all(peer.list("ts/many/"))).length, 1100)
})

test("an absent peer", async () => {
  await assert.rejects(new Client({ address: "http://127.0.0.1:1", patience: 0.2 }).discover("x"))
})
