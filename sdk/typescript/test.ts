// node out/test.js: plays the client against the peer BLACKHOLED, and BUYER, which buys of it.
import assert from "node:assert/strict"
import { createServer, type AddressInfo } from "node:net"
import { test } from "node:test"
import { Client, Compacted, Lost, NotAcquired, Refused, type Instance, type KeyEvent, type LockState } from "./blackholed.js"

const warnings: string[] = []
process.on("warning", (w) => warnings.push(w.name))

const peer = new Client({ address: process.env.BLACKHOLED })
const names = (list: Instance[]) => list.map((i) => i.id)
const all = async <T>(entries: AsyncIterable<T>) => { const out: T[] = []; for await (const e of entries) out.push(e); return out }

test("instances", async () => {
  const stop = new AbortController()
  const changes = peer.services().follow("ts-mail", { wait: 5, signal: stop.signal })
  const next = async () => names((await changes.next()).value ?? [])
  assert.deepEqual(await next(), [])
  const mail = await peer.services().register("ts-mail", { host: "10.0.0.9", port: 25, id: "mail-1", zone: "a", tags: ["canary"] })
  assert.deepEqual(await next(), ["mail-1"])
  assert.equal((await peer.services().discover("ts-mail", { zone: "a" }))[0].port, 25)
  assert.deepEqual(await peer.services().discover("ts-mail", { zone: "b" }), [])
  await peer.call("DELETE", "/v1/services/ts-mail/instances/mail-1")
  assert.deepEqual(await next(), [])
  await mail.renew() // the peer forgot it: it registers again
  assert.deepEqual(await next(), ["mail-1"])
  await mail.close()
  assert.deepEqual(await next(), [])
  stop.abort()
  assert.equal((await changes.next()).done, true)
  await assert.rejects(peer.services().register("ts-mail", { host: "not a host", port: 25 }), (e: Refused) => e.status === 400 && e.field === "host")
})

test("locks", async () => {
  const one = await peer.locks().session(), two = await peer.locks().session()
  const held = await one.lock("ts/jobs", { wait: 5, metadata: "me" })
  await assert.rejects(two.lock("ts/jobs", { wait: 0 }), NotAcquired)
  const waits = two.lock("ts/jobs", { wait: 20 })
  held.check()
  await held.unlock()
  const then = await waits
  assert.ok(BigInt(then.token) > BigInt(held.token))
  await then.unlock()
  const readers = await Promise.all([one.lock("ts/readers", { shared: true }), two.lock("ts/readers", { wait: 0, shared: true })])
  await Promise.all(readers.map((r) => r.unlock()))
  const again = await one.lock("ts/jobs")
  await peer.call("DELETE", `/v1/coordination/leases/${one.lease}`)
  await one.renew()
  assert.throws(() => again.check(), Lost)
  await (await two.lock("ts/jobs", { wait: 0 })).unlock()
  await one.close()
  await two.close()
})

test("several locks", async () => {
  const one = await peer.locks().session(), two = await peer.locks().session()
  const held = await one.lock("ts/a", { also: ["ts/c", "ts/b"] })
  await assert.rejects(two.lock("ts/d", { wait: 0, also: ["ts/b"] }), NotAcquired)
  await (await two.lock("ts/d", { wait: 0 })).unlock() // all or none
  await held.unlock()
  const got = await two.lock("ts/c", { wait: 0, also: ["ts/b", "ts/a"] })
  assert.ok(BigInt(got.token) > BigInt(held.token))
  await got.unlock()
  for (const name of ["ts/a", "ts/b", "ts/c"]) await (await one.lock(name, { wait: 0 })).unlock()
  await one.close()
  await two.close()
})

test("grants", { skip: !process.env.BUYER }, async () => {
  const stock = { unit: "slot", total: 4 }
  await peer.call("POST", "/v1/discovery/records", { body: { id: "ts-gpu", metadata: { type: "tool", name: "a tool", version: "1.0.0", access: "peer", stock } } })
  const key = (await peer.call("GET", "/v1/discovery/records")).records.find((r: { id: string }) => r.id === "ts-gpu").key
  const buyer = new Client({ address: process.env.BUYER })
  const grant = await buyer.offers().reserve(key, { ttl: 60, requestId: "ts-once" })
  assert.deepEqual([grant.units, grant.state, typeof grant.signed], [1, "active", "string"])
  assert.ok(grant.left_ms! <= 60000)
  assert.equal((await buyer.offers().reserve(key, { ttl: 60, requestId: "ts-once" })).token, grant.token)
  await assert.rejects(buyer.offers().reserve(key, { units: 9 }), (e: Refused) => e.field === "units")
  assert.ok((await buyer.offers().extend(grant, 600)).left_ms! > 60000)
  assert.ok((await buyer.offers().grants()).held.some((g) => g.token === grant.token))
  const sold = await peer.offers().grants()
  assert.deepEqual(sold.stocks.filter((s) => s.id === "ts-gpu").map((s) => [s.free, s.total]), [[3, 4]])
  assert.ok(sold.given.some((g) => g.token === grant.token))
  for (let n = 0; n < 2; n++) assert.equal((await buyer.offers().release(grant)).state, "released")
  await assert.rejects(buyer.offers().extend(grant), (e: Refused) => e.status === 410)
  const held = await buyer.offers().reserve(key, { hold: true })
  assert.equal(held.state, "held")
  assert.equal((await peer.offers().revoke(held.token, "maintenance")).reason, "maintenance")
})

test("keys", async () => {
  const kv = peer.kv()
  assert.equal(await kv.get("ts/a b/c"), undefined)
  assert.ok(await kv.put("ts/a b/c", "1", { ifRevision: "0" }))
  assert.ok(!(await kv.put("ts/a b/c", "2", { ifRevision: "0" })))
  const seen = await kv.get("ts/a b/c")
  assert.ok(await kv.put("ts/a b/c", Uint8Array.of(0, 255), { ifRevision: seen!.modRevision }))
  assert.equal(new TextDecoder().decode((await kv.get("ts/a b/c", { revision: seen!.modRevision }))?.value), "1")
  assert.deepEqual((await all(kv.list("ts/a"))).map((e) => [e.key, ...e.value]), [["ts/a b/c", 0, 255]])
  const s = await peer.locks().session()
  await kv.put("ts/mine", "x", { lease: s.lease })
  const mine = await kv.get("ts/mine")
  assert.deepEqual([new TextDecoder().decode(mine?.value), mine?.lease, typeof mine?.leaseTag], ["x", "0", "string"])
  await s.close()
  assert.equal(await kv.get("ts/mine"), undefined)
  assert.ok(await kv.delete("ts/a b/c"))
  const odd = [Uint8Array.of(116, 115, 47, 111, 47, 0xc3, 0xa9), Uint8Array.of(116, 115, 47, 111, 47, 0xff, 0)]
  for (const key of odd) assert.ok(await kv.put(key, "x"))
  const found = await all(kv.list("ts/o/"))
  assert.deepEqual(found.map((e) => e.raw), odd)
  assert.equal(new TextDecoder().decode((await kv.get(found[1].raw))?.value), "x")
  assert.ok(await kv.delete(odd[1]))
  assert.equal(await kv.get(odd[1]), undefined)
  for (let n = 0; n < 1100; n++) await kv.put(`ts/many/${String(n).padStart(4, "0")}`, "")
  assert.equal((await all(kv.list("ts/many/"))).length, 1100)
})

test("changes of keys", async () => {
  const kv = peer.kv(), stop = new AbortController()
  await kv.put("ts/w/a", "1")
  const first = (await kv.get("ts/w/a"))!.modRevision
  await kv.put("ts/w/b", "2")
  await kv.delete("ts/w/a")
  await kv.put("ts/w", "no")
  const events: KeyEvent[] = []
  const changes = kv.watch({ prefix: "ts/w/", revision: first, prev: true, signal: stop.signal })
  while (events.length < 3) events.push(...(await changes.next()).value!.events)
  assert.deepEqual(events.map((e) => [e.key, e.kv && new TextDecoder().decode(e.kv.value)]), [["ts/w/a", "1"], ["ts/w/b", "2"], ["ts/w/a", undefined]])
  assert.equal(new TextDecoder().decode(events[2].prev?.value), "1")
  setTimeout(() => stop.abort(), 100)
  assert.deepEqual((await all(changes)).flatMap((b) => b.events), [])
  for await (const batch of kv.watch({ key: "ts/w/b", revision: first })) { // leaving the loop ends the stream
    if (batch.events.length === 0) continue
    assert.deepEqual(batch.events.map((e) => e.key), ["ts/w/b"])
    break
  }
})

test("elections", async () => {
  const locks = peer.locks(), one = await locks.session(), two = await locks.session(), stop = new AbortController()
  assert.equal(await locks.leader("ts/boss"), undefined)
  const seen = locks.observe("ts/boss", { signal: stop.signal })
  const next = async () => { const { value } = await seen.next(); return value?.value && new TextDecoder().decode(value.value) }
  assert.equal(await next(), undefined)
  const lead = await one.campaign("ts/boss", "one")
  assert.equal(await next(), "one")
  await lead.proclaim("still one")
  assert.equal(await next(), "still one")
  await assert.rejects(two.campaign("ts/boss", "two", { wait: 0 }), NotAcquired)
  await lead.resign()
  assert.equal(await next(), undefined)
  const then = await two.campaign("ts/boss", "two", { wait: 5 })
  assert.ok(BigInt(then.token) > BigInt(lead.token))
  await assert.rejects(lead.proclaim("late"), Lost)
  assert.equal(await next(), "two")
  await then.resign()
  stop.abort()
  await one.close()
  await two.close()
})

test("a wait that is canceled", async () => {
  const one = await peer.locks().session(), two = await peer.locks().session()
  const held = await one.lock("ts/wanted")
  await assert.rejects(two.lock("ts/wanted", { signal: AbortSignal.timeout(200) }), { name: "TimeoutError" })
  const waiting = async () => (await all<LockState>(peer.locks().list("ts/wanted"))).some((l) => l.waiting.length > 0)
  while (await waiting()) await new Promise((done) => setTimeout(done, 50)) // the test has a limit of its own
  await held.unlock()
  await one.close()
  await two.close()
})

test("offers", async () => {
  const offers = peer.offers()
  const offer = {
    id: "ts-box", metadata: { type: "cdn", name: "a box", version: "1.0.0" }, capabilities: { cdn: { bandwidth_mbps: 1000 } },
    location: { latitude: 52.52, longitude: 13.4, country: "DE" }, pricing: { currency: "USDC", base_price: 1, price_unit: "per-gb" },
  }
  const receipt = await offers.register(offer)
  await assert.rejects(offers.register(offer), (e: Refused) => e.word === "service_already_exists")
  for (const near of ["berlin", { latitude: 52.5, longitude: 13.4 }]) {
    const found = await offers.query({ type: "cdn", near, radius_km: 100, max_price: 2, countries: ["Germany"] })
    assert.deepEqual(found.results.map((r) => r.record.id), ["ts-box"])
    for await (const e of offers.watch({ type: "cdn", near, radius_km: 100 })) {
      if (e.kind !== "added") continue
      assert.equal(e.record?.key, receipt.key)
      break
    }
  }
  await assert.rejects(offers.query({ type: "cdn", near: "Berlim" }), (e: Refused) => e.field === "near.city" && e.message.includes("Berlin"))
  assert.equal((await offers.resolve(receipt.key)).id, "ts-box")
  await offers.update({ ...offer, pricing: { ...offer.pricing, base_price: 2 } })
  assert.equal((await offers.get("ts-box")).pricing?.base_price, 2)
  await offers.pause("ts-box", 60)
  assert.ok((await offers.get("ts-box")).paused)
  await offers.resume("ts-box")
  assert.ok((await offers.list()).some((r) => r.id === "ts-box"))
  const two = { id: "ts-two", metadata: { type: "tool", name: "x", version: "1.0.0" } }
  assert.deepEqual((await offers.registerBatch([offer, two])).map((o) => o.error?.error), ["service_already_exists", undefined])
  for (const id of ["ts-box", "ts-two"]) await offers.withdraw(id)
  const listed = await peer.services().register("ts-listed", { host: "10.0.0.9", port: 1 })
  assert.ok((await peer.services().list()).includes("ts-listed"))
  await listed.close()
})

test("an absent peer", async () => {
  await assert.rejects(new Client({ address: "http://127.0.0.1:1", patience: 0.2 }).services().discover("x"))
})

const http = (body: unknown, head = "200 OK", length?: string) => {
  const text = typeof body === "string" ? body : JSON.stringify(body)
  return `HTTP/1.1 ${head}\r\nConnection: close\r\nContent-Length: ${length ?? text.length}\r\n\r\n${text}`
}

const broken: Record<string, string> = {
  nothing: "", cut: http('{"inst', undefined, "99"), "no JSON": http('{"instances": [}'), "no object": http("7"), "no UTF-8": http('"\xff"'),
  "no HTTP": "\xff\xfe\0\r\n\r\n", "half a head": "HTTP/1.1 200", "no length": http('{"inst', undefined, "x"),
  "of a proxy": http("<html>", "502 Bad Gateway"), "error, no object": http("[]", "503 Busy"),
}

/** A peer that answers the nth request with answer(n, its first line). */
async function liar(answer: (n: number, line: string) => string | Promise<string>, play: (address: string, seen: string[]) => Promise<void>) {
  const seen: string[] = []
  const server = createServer((c) => {
    c.on("error", () => undefined)
    let text = ""
    c.on("data", async (data) => {
      text += data.toString("latin1")
      const head = text.indexOf("\r\n\r\n"), length = Number(/content-length: (\d+)/i.exec(text)?.[1] ?? 0)
      if (head < 0 || text.length < head + 4 + length) return
      seen.push(text)
      c.end(Buffer.from(await answer(seen.length - 1, text.slice(0, text.indexOf("\r\n"))), "latin1"))
    })
  }).listen(0, "127.0.0.1")
  await new Promise((done) => server.once("listening", done))
  try { await play(`http://127.0.0.1:${(server.address() as AddressInfo).port}`, seen) } finally { server.close() }
}

test("a broken answer is repeated", async () => {
  for (const [name, text] of Object.entries(broken)) {
    await liar((n) => (n === 0 ? text : http({ instances: [] })), async (address) => {
      assert.deepEqual(await new Client({ address }).services().discover("x"), [], name)
    })
    await liar(() => text, async (address) => { await assert.rejects(new Client({ address, patience: 0.1 }).services().discover("x"), name) })
  }
})

test("the keeper survives and tells", async () => {
  for (const [name, text] of Object.entries(broken)) {
    let renewals = 0
    const told: boolean[] = []
    const answer = (_: number, line: string) => {
      if (line.includes("keepalive")) return ++renewals <= 2 ? text : http({ ttl_ms: "300" })
      return http(line.includes("clients") ? { client: "1" } : { id: "7", ttl_ms: renewals === 0 ? "60" : "300" })
    }
    await liar(answer, async (address) => {
      let again = () => {}
      const back = new Promise<void>((done) => { again = done })
      const onTrouble = (_: unknown, e?: unknown) => { told.push(e === undefined); if (e === undefined) again(); throw new Error("it ends nothing") }
      const session = await new Client({ address, onTrouble }).locks().session()
      Object.assign(session, { deadline: Infinity, ttl: 600 }) // the test may be slow; the interval stays short
      await back
      assert.deepEqual(told, [false, true], name)
      const before = renewals
      while (renewals < before + 20 && !session.lost()) await new Promise((done) => setTimeout(done, 5)) // one listener for each would warn
      session.check()
      await session.close()
    })
  }
  assert.ok(!warnings.includes("MaxListenersExceededWarning"), String(warnings))
})

test("a machine that slept", async () => {
  await liar((_, line) => http(line.includes("clients") ? { client: "1" } : { id: "7", ttl_ms: "15000" }), async (address) => {
    const session = await new Client({ address }).locks().session()
    session.check()
    const now = Date.now
    Date.now = () => now() + 3600_000 // performance.now stood still
    try { assert.throws(() => session.check(), Lost) } finally { Date.now = now }
    await session.close()
  })
})

test("a stale list", async () => {
  const here = { index: 5, instances: [{ id: "a" }] }
  await liar((n) => (n < 2 || n > 4 ? http(here) : ""), async (address) => {
    const peer = new Client({ address, patience: 0 }), stop = new AbortController()
    assert.equal((await peer.services().discover("x")).stale, false)
    const changes = peer.services().follow("x", { wait: 1, signal: stop.signal })
    const next = async () => (await changes.next()).value!
    assert.equal((await next()).stale, false)
    for (const lost of [await peer.services().discover("x"), await next()]) {
      assert.deepEqual([names(lost), lost.stale], [["a"], true])
      assert.match(lost.reason, /does not answer/)
    }
    assert.equal((await next()).stale, false)
    stop.abort()
  })
})

test("a stale list after a restart", async () => {
  const stale = "200 OK\r\nX-Blackhole-Stale: true\r\nX-Blackhole-Age: 3"
  const full = http({ index: 50, instances: [{ id: "a" }, { id: "c" }] }), own = http({ index: 2 ** 52 + 7, instances: [{ id: "a", port: 2 }] }, stale)
  for (const back of [http({ index: 60, instances: [{ id: "b" }] }), http({ index: 2, instances: [{ id: "b" }] })]) {
    await liar((n) => (n < 2 ? full : n < 4 ? own : back), async (address) => {
      const services = new Client({ address }).services(), stop = new AbortController()
      const changes = services.follow("x", { wait: 1, signal: stop.signal })
      const next = async () => (await changes.next()).value!
      assert.deepEqual([names(await services.discover("x")), names(await next())], [["a", "c"], ["a", "c"]])
      for (const lost of [await services.discover("x"), await next()]) {
        assert.deepEqual([names(lost), lost[0].port, lost.stale], [["a", "c"], 2, true])
        assert.match(lost.reason, /no contact/)
      }
      assert.deepEqual([names(await next()), names(await services.discover("x"))], [["b"], ["b"]])
      stop.abort()
    })
  }
})

test("a watch of keys goes on", async () => {
  const sse = (...events: [string, object][]) =>
    "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: text/event-stream\r\n\r\n" + events.map(([k, d]) => `event: ${k}\ndata: ${JSON.stringify(d)}\n\n`).join("")
  const change = (revision: number, more = {}): [string, object] => {
    const kv = { key: "YQ==", value: "", create_revision: "1", mod_revision: String(revision), version: "1", lease: "0" }
    return ["events", { events: [{ type: "PUT", kv }], next_revision: String(revision + 1), ...more }]
  }
  const answers = [
    sse(["created", { next_revision: "5" }], change(5), change(6, { fragment: true })), "", http({ error: "no_quorum" }, "503 Busy"),
    sse(change(6, { fragment: true }), change(6), ["progress", { events: [], next_revision: "9" }]),
    sse(["compacted", { compact_revision: "20", header: { revision: "30" } }]),
  ]
  await liar((n) => answers[n], async (address, seen) => {
    const changes = new Client({ address }).kv().watch({ prefix: "a" })
    for (const want of [[["5"], "6"], [["6", "6"], "7"], [[], "9"]]) {
      const { value } = await changes.next()
      assert.deepEqual([value!.events.map((e) => e.revision), value!.next], want)
    }
    await assert.rejects(changes.next(), (e) => e instanceof Compacted && e.revision === "20" && e.current === "30")
    assert.deepEqual(seen.map((text) => /start_revision=(\d+)/.exec(text)?.[1]), [undefined, "6", "6", "6", "9"])
  })
})

test("a long wait that is cut", async () => {
  let claims = 0
  const answer = async (_: number, line: string) => {
    if (!line.includes("/lock")) return http(line.includes("clients") ? { client: "9" } : { id: "7", ttl_ms: "600000" })
    if (++claims > 1) return http({ acquired: true, fencing_token: "5" })
    await new Promise((done) => setTimeout(done, 500)) // longer than the patience
    return ""
  }
  await liar(answer, async (address) => {
    const session = await new Client({ address, patience: 0.2 }).locks().session(600)
    assert.equal((await session.lock("x", { wait: 60 })).token, "5")
    await session.close()
  })
})

test("a grant is asked for once", async () => {
  const answer = (n: number) => (n === 0 ? "" : http({ error: "unavailable", field: "key", message: "is paused" }, "503 Busy"))
  await liar(answer, async (address, seen) => {
    await assert.rejects(new Client({ address }).offers().reserve("x"), (e: Refused) => e.field === "key")
    assert.equal(seen.length, 2, "a cut answer is repeated, a refusal is not")
    assert.equal(seen[0].split("\r\n\r\n")[1], seen[1].split("\r\n\r\n")[1])
  })
})

test("a put is applied once", async () => {
  const answer = (n: number, line: string) => (line.includes("clients") ? http({ client: "9" }) : n === 1 ? "" : http({ succeeded: true }))
  await liar(answer, async (address, seen) => {
    assert.ok(await new Client({ address }).kv().put("a", "b", { ifRevision: "0" }))
    assert.equal(seen.length, 3)
    assert.equal(seen[1].split("\r\n\r\n")[1], seen[2].split("\r\n\r\n")[1])
    assert.match(seen[1], /"attempt":{"client":"9","sequence":1}/)
  })
})

test("no proxy of the environment, no redirect", async () => {
  await liar(() => http({}), async (proxy, caught) => {
    for (const name of ["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"]) process.env[name] = proxy
    try {
      await liar((n) => (n === 0 ? http({ instances: [] }) : http("", `302 Found\r\nLocation: ${proxy}/`)), async (address) => {
        const peer = new Client({ address, token: "secret", patience: 0 })
        assert.deepEqual(await peer.services().discover("x"), [])
        await assert.rejects(peer.services().discover("y"))
      })
    } finally {
      for (const name of ["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"]) delete process.env[name]
    }
    assert.deepEqual(caught, [])
  })
})
