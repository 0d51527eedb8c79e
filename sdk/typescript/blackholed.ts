/**
 * Client of a blackholed peer on the same host: offers, services, locks with fencing tokens, keys. It needs nothing
 * but fetch.
 *
 *     const peer = new Client()                                              // http://127.0.0.1:8500
 *     const mail = await peer.services().register("mail", {host: "10.0.0.9", port: 25})
 *     for (const i of await peer.services().discover("db")) { ... }
 *     const session = await peer.locks().session(15)
 *     const held = await session.lock("jobs", {wait: 30})
 *     await work(held.token)                                                 // the resource refuses smaller tokens
 *     held.check()                                                           // throws Lost after the lease ended
 *     const found = await peer.offers().query({type: "compute", near: "berlin", limit: 1})
 *     const grant = await peer.offers().reserve(found.results[0].record.key!, {ttl: 3600}) // blackholed connect TOKEN
 *     await peer.offers().release(grant)
 *
 * A lock is a promise about time, and a paused program loses track of time: give the token to the resource behind the
 * lock. What is kept survives every error, and says so: see Options.onTrouble. In Node no proxy of the environment is
 * used: it would get the token. Waits and watches end early by signal. Everything else of the API: Client.call, with
 * the paths of /openapi.json.
 */

export { Client, type Options } from "./client.js"
export { Broken, Refused, type Call } from "./http.js"
export { Kept } from "./kept.js"
export { Compacted, KV, type Batch, type KeyEvent, type KeyValue } from "./kv.js"
export { Held, Leadership, Locks, Lost, NotAcquired, Session, type Leader } from "./locks.js"
export { Offers, type Query } from "./offers.js"
export { Registered, Services, type Instances, type Registration } from "./services.js"
export type * from "./types.js"
