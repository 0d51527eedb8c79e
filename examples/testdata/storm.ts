// node storm.js ADDRESS SECONDS: plays the client for some time over a bad network. It prints the number of its steps.
import assert from "node:assert/strict"
import { Client, type Held } from "./blackholed.js"

const length = Number(process.argv[3]), begin = performance.now(), since = () => (performance.now() - begin) / 1000
let troubles = 0, step = 0, token = 0n, revision = "0", first: Held | undefined, waits: Promise<Held> | undefined
process.on("warning", (w) => { throw w })
const peer = new Client({ address: process.argv[2], timeout: 1, patience: 120, onTrouble: () => { troubles++ } })
const instance = await peer.services().register("storm", { host: "10.0.0.9", port: 25, id: "typescript" })
const locks = peer.locks(), kv = peer.kv(), session = await locks.session(30), other = await locks.session(30)
if (length > 320) { // a wait that lasts longer than common bounds of clients
  first = await other.lock("storm/typescript/long", { wait: 0 })
  waits = session.lock("storm/typescript/long", { wait: length })
}
while (step < 3 || since() < length) {
  step++
  assert.ok(await kv.put("storm/typescript", String(step), { ifRevision: revision }), "a put was applied twice, or not at all")
  const entry = await kv.get("storm/typescript")
  assert.equal(new TextDecoder().decode(entry!.value), String(step))
  revision = entry!.modRevision
  const held = await session.lock("storm/typescript/lock", { wait: 120 })
  assert.ok(BigInt(held.token) > token)
  token = BigInt(held.token)
  await held.unlock()
  const found = await peer.services().discover("storm", { health: "any" })
  assert.ok(found.some((i) => i.id === "typescript"), `${found.stale} ${found.reason} ${JSON.stringify(found)}`)
  other.check()
  if (first && since() > 310) {
    await first.unlock()
    first = undefined
    ;(await waits)!.check()
  }
}
await session.close()
await other.close()
await instance.close()
console.log(step, "steps,", troubles, "troubles")
