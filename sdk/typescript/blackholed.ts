/**
 * Client of a blackholed peer on the same host: instances, locks with fencing tokens, keys, and grants. It needs nothing but fetch.
 *
 *     const peer = new Client()                                  // http://127.0.0.1:8500
 *     const mail = await peer.register("mail", {host: "10.0.0.9", port: 25})
 *     for (const i of await peer.discover("db")) { ... }
 *     const session = await peer.session(15)
 *     const held = await session.lock("jobs", {wait: 30})
 *     await work(held.token)                                     // the resource refuses smaller tokens
 *     held.check()                                               // throws Lost after the lease ended
 *     const grant = await peer.reserve(key, {ttl: 3600})         // then: blackholed connect TOKEN
 *     await peer.release(grant)
 *
 * A lock is a promise about time, and a paused program loses track of time: give the token to the resource behind the lock.
 * What is kept survives every error, and says so: see Options.onTrouble. In Node no proxy of the environment is used: it would get the token.
 * Offers and everything else of the API: Client.call, with the paths of /openapi.json.
 */

/** A refusal of the peer. word is its kind ("not_found", "pool_exhausted"), field what it is about. */
export class Refused extends Error {
  readonly word: string
  readonly field: string
  /** How often it was sent. */
  attempts = 1
  constructor(readonly status: number, readonly body: { error?: string; field?: string; message?: string }) {
    super(`${status} ${body.error ?? ""}: ${body.message ?? ""}`)
    this.word = body.error ?? ""
    this.field = body.field ?? ""
  }
}

/** The answer was cut, or is not of a peer. The call may have had its effect. */
export class Broken extends Error {}

/** The lease ended: others may hold its locks from now on. */
export class Lost extends Error {}

/** Others held the lock until the end of the wait. */
export class NotAcquired extends Error {}

export interface Instance {
  id: string
  host: string
  port: number
  status: string
  tags?: string[]
  metadata?: Record<string, string>
  [field: string]: unknown
}

/** Instances of a service. stale says that they may be outdated, for age seconds, and reason why. */
export type Instances = Instance[] & { readonly stale: boolean; readonly reason: string; readonly age: number }

/** A registration: see InstanceRegistration in /openapi.json. */
export interface Registration {
  host: string
  port: number
  id?: string
  namespace?: string
  [field: string]: unknown
}

export interface Entry {
  /** With U+FFFD for what is no UTF-8: raw has the key as it is. */
  key: string
  raw: Uint8Array
  value: Uint8Array
  /** For ifRevision. Compare two of them by BigInt. */
  modRevision: string
}

/** Units of what another peer sells. */
export interface Grant {
  /** Rises over all grants of the provider. Compare it as BigInt(token). */
  token: string
  key: string
  provider_id: string
  consumer_id: string
  units: number
  /** held, active, expired, released, revoked */
  state: string
  /** Why it was revoked. */
  reason: string
  left_ms?: number
  ttl_ms: number
  price?: number
  currency: string
  price_unit: string
  /** By the holder. */
  sent_bytes: number
  received_bytes: number
  /** The grant as its provider signed it, in base64, for others who want a proof. */
  signed?: string
  [field: string]: unknown
}

export interface Grants {
  held: Grant[]
  given: Grant[]
  /** Of own offers. */
  stocks: { id: string; unit: string; free: number; total: number; serve: string }[]
}

type Values = Record<string, string | number | boolean | Uint8Array | string[] | undefined>

interface Call {
  query?: Values
  /** A function makes the body of each attempt. */
  body?: unknown
  /** Seconds for one attempt. */
  timeout?: number
  /** Repeat while the peer does not answer; default for GET. "cut": without an answer alone. */
  repeat?: boolean | "cut"
  signal?: AbortSignal
}

export interface Options {
  address?: string
  token?: string
  /** Seconds for one attempt of a call; default 10. */
  timeout?: number
  /** Seconds for which a call is repeated while the peer is unreachable; default 30. */
  patience?: number
  /** Is called when an instance or a session cannot be renewed, and without an error when it is renewed again; default console.warn. */
  onTrouble?: (kept: Kept, error?: unknown) => void
}

/** A clock that goes on while the machine sleeps. performance.now stops then, so jumps of the wall clock are added to it. */
const clock = () => {
  let skew = Date.now() - performance.now(), slept = 0
  return () => {
    const ahead = Date.now() - performance.now() - skew
    if (Math.abs(ahead) > 1000) { // less is rounding, or a clock that is adjusted
      skew += ahead
      slept += Math.max(ahead, 0)
    }
    return (performance.now() + slept) / 1000
  }
}
const seconds = clock()
const sleep = (s: number, signal?: AbortSignal) =>
  new Promise<void>((done) => {
    const end = () => { clearTimeout(timer); signal?.removeEventListener("abort", end); done() }
    const timer = setTimeout(end, Math.min(s * 1000, 2 ** 31 - 1))
    if (signal?.aborted) end()
    else signal?.addEventListener("abort", end)
  })

/**
 * In Node fetch ends a wait after 300 s, and takes proxies of the environment if NODE_USE_ENV_PROXY is set. The class of its own dispatcher
 * makes one that does neither. Elsewhere there is none.
 */
let dispatcher: Promise<object> | undefined
const own = () => dispatcher ??= (async () => {
  const global = Symbol.for("undici.globalDispatcher.1")
  await fetch("data:,").catch(() => undefined) // Node loads the dispatcher at the first call
  const of = (globalThis as unknown as Record<symbol, { constructor: new (o: object) => object } | undefined>)[global]
  return of && "process" in globalThis ? { dispatcher: new of.constructor({ headersTimeout: 0, bodyTimeout: 0, httpProxy: "", httpsProxy: "" }) } : {}
})()
const transient = (e: unknown) => !(e instanceof Refused) || e.status === 502 || e.status === 503
const part = encodeURIComponent
const percent = (v: string | number | boolean | Uint8Array) =>
  v instanceof Uint8Array ? Array.from(v, (b) => "%" + b.toString(16).padStart(2, "0")).join("") : part(String(v))
const bytes = (text: string) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0))
const base64 = (data: Uint8Array) => btoa(Array.from(data, (b) => String.fromCharCode(b)).join(""))
const encoded = (value: string | Uint8Array) => (typeof value === "string" ? new TextEncoder().encode(value) : value)

/** One peer. Calls that only read, or that are applied once by their content, repeat themselves while the peer is unreachable. */
export class Client {
  readonly address: string
  readonly timeout: number
  private readonly token?: string
  private readonly patience: number
  readonly onTrouble?: Options["onTrouble"]
  private readonly known = new Map<string, { at: number; list: Instances }>()
  private readonly idle: { client: string; sequence: number }[] = []

  constructor(o: Options = {}) {
    this.address = (o.address ?? "http://127.0.0.1:8500").replace(/\/+$/, "")
    this.token = o.token
    this.timeout = o.timeout ?? 10
    this.patience = o.patience ?? 30
    this.onTrouble = o.onTrouble
  }

  /** One request. Returns the decoded JSON. Throws Refused, Broken, or the error of fetch without an answer. */
  // eslint-disable-next-line @typescript-eslint/no-explicit-any
  async call(method: string, path: string, c: Call = {}): Promise<any> {
    const words = Object.entries(c.query ?? {}).flatMap(([name, value]) =>
      (Array.isArray(value) ? value : [value]).filter((one) => one !== undefined).map((one) => part(name) + "=" + percent(one)))
    const url = this.address + path + (words.length > 0 ? "?" + words.join("&") : "")
    const headers: Record<string, string> = {}
    if (this.token) headers.authorization = "Bearer " + this.token
    if (c.body !== undefined) headers["content-type"] = "application/json"
    const end = (c.repeat ?? method === "GET") ? this.until(c.timeout) : 0
    for (let pause = 0.05, attempts = 1; ; pause = Math.min(pause * 2, 2), attempts++) {
      try {
        return await this.once(url, c, { method, headers })
      } catch (e) {
        if (e instanceof Refused) e.attempts = attempts
        if (!transient(e) || (c.repeat === "cut" && e instanceof Refused) || c.signal?.aborted || seconds() >= end) throw e
      }
      await sleep(Math.max(0, Math.min(pause * (0.8 + 0.4 * Math.random()), end - seconds())), c.signal)
    }
  }

  /** The end of the repetitions of a call: a long wait that is cut leaves the whole patience. */
  private until(timeout = this.timeout): number { return seconds() + this.patience + Math.max(0, timeout - this.timeout) }

  // eslint-disable-next-line @typescript-eslint/no-explicit-any
  private async once(url: string, c: Call, init: RequestInit): Promise<any> {
    const options = await own(), limit = new AbortController()
    const abort = () => limit.abort(c.signal?.reason)
    const timer = setTimeout(() => limit.abort(new DOMException("the peer does not answer in time", "TimeoutError")), (c.timeout ?? this.timeout) * 1000)
    c.signal?.addEventListener("abort", abort)
    if (c.signal?.aborted) abort()
    try {
      const body = c.body === undefined ? undefined : JSON.stringify(typeof c.body === "function" ? c.body() : c.body)
      const answer = await fetch(url, { ...init, body, signal: limit.signal, redirect: "manual", ...options })
      const text = await answer.text()
      if (answer.status === 204) return {}
      let said
      try { said = JSON.parse(text) } catch { said = undefined }
      const whole = typeof said === "object" && said !== null && !Array.isArray(said)
      if (!answer.ok) throw new Refused(answer.status, whole ? said : { message: text })
      if (!whole) throw new Broken("the answer of the peer is broken: it is no object of JSON")
      if (answer.headers.get("x-blackhole-stale")) { // the peer has lost its group
        said.stale = true
        said.age = Number(answer.headers.get("x-blackhole-age"))
      }
      return said
    } finally {
      clearTimeout(timer)
      c.signal?.removeEventListener("abort", abort)
    }
  }

  /** A change that the group applies once, though it is repeated: it knows the repetition by an identity and a number. */
  // eslint-disable-next-line @typescript-eslint/no-explicit-any
  async command(path: string, body: () => object, c: Call = {}): Promise<any> {
    const end = this.until(c.timeout)
    let identity = this.idle.pop()
    try {
      for (let n = 0; n < 8; n++) {
        identity ??= { client: must(await this.call("POST", "/v1/coordination/clients", { body: {}, repeat: true }), "client"), sequence: 0 }
        const attempt = { client: identity.client, sequence: ++identity.sequence }
        try {
          return await this.call("POST", path, { ...c, repeat: true, body: () => ({ ...body(), attempt }) })
        } catch (e) {
          const again = e instanceof Refused && e.status === 404 && (e.field === "client" || e.field === "token")
          if (!again || seconds() >= end) throw e
          if (e.field === "client") { // forgotten; "token": the claim of a lost connection was given back
            identity = undefined
            if (e.attempts > 1) throw e // the group may have applied it before
          }
        }
      }
      throw new Broken("the group forgets each identity of this program")
    } finally {
      if (identity) this.idle.push(identity)
    }
  }

  /** Registers an instance, and keeps it until close(). */
  async register(service: string, spec: Registration): Promise<Registered> {
    const r = new Registered(this, service, { ...spec })
    await r.register(true)
    r.start()
    return r
  }

  /**
   * The instances that are UP; filters are those of the API: zone, version, tags, health. While the peer does not answer, the last
   * list, which says that it is stale; without one it throws.
   */
  async discover(service: string, filters: Values = {}): Promise<Instances> {
    const question = JSON.stringify([service, Object.entries(filters).sort()])
    const known = this.known.get(question)
    try {
      const list = instances(await this.call("GET", `/v1/services/${part(service)}/instances`, {
        query: filters, repeat: !known, timeout: known ? Math.min(this.timeout, 2) : undefined,
      }))
      this.known.delete(question)
      this.known.set(question, { at: seconds(), list })
      for (const oldest of this.known.keys()) if (this.known.size > 256) this.known.delete(oldest)
      return list
    } catch (e) {
      if (!known || !transient(e)) throw e
      return outdated(known.list, e, seconds() - known.at)
    }
  }

  /**
   * Yields the instances now and after each change, until signal. When the peer is lost, it yields the last ones, which say that they are
   * stale, and goes on when the peer is back; before the first answer it throws.
   */
  async *watch(service: string, o: { wait?: number; filters?: Values; signal?: AbortSignal } = {}): AsyncGenerator<Instances> {
    const wait = o.wait ?? 30
    let index: number | undefined, list: Instances | undefined
    for (let at = 0, pause = 0.05; !o.signal?.aborted; ) {
      const query = { ...o.filters, index, wait: index === undefined ? undefined : `${wait}s` }
      let answer, fresh
      try {
        answer = await this.call("GET", `/v1/services/${part(service)}/watch`, { query, timeout: wait + this.timeout, repeat: index === undefined, signal: o.signal })
        fresh = instances(answer)
      } catch (e) {
        if (o.signal?.aborted) return
        if (!list || !transient(e)) throw e
        if (!list.stale) yield list = outdated(list, e, seconds() - at)
        await sleep(pause * (0.8 + 0.4 * Math.random()), o.signal)
        pause = Math.min(pause * 2, 2)
        continue
      }
      at = seconds()
      pause = 0.05
      if (answer.index !== index || list?.stale !== fresh.stale) {
        index = answer.index
        yield list = fresh
      }
    }
  }

  /** A lease of ttl seconds that is kept alive until close(): the owner of locks and keys. */
  async session(ttl = 15, application?: string): Promise<Session> {
    const sent = seconds()
    const granted = await this.command("/v1/coordination/leases", () => ({ ttl, application }))
    const s = new Session(this, must(granted, "id"), Number(granted.ttl_ms) / 1000, sent)
    s.start()
    return s
  }

  /**
   * Takes units of the offer with a key, for ttl seconds (absent: as long as it allows), or throws Refused: its message has what is free,
   * your share, the price. hold: for a minute, until extend or a connection confirms it. One requestId has one effect.
   */
  async reserve(key: string, o: { units?: number; ttl?: number; maxPrice?: number; sequence?: string; hold?: boolean; requestId?: string } = {}): Promise<Grant> {
    const body = { key, units: o.units, ttl_ms: milliseconds(o.ttl), max_price: o.maxPrice, sequence: o.sequence, hold: o.hold, request_id: o.requestId ?? crypto.randomUUID() }
    return granted(await this.trade("POST", "", { body }))
  }

  /** Gives a grant its time anew, or ttl seconds from now on. Throws Refused with status 410 after its end. */
  async extend(grant: Grant, ttl?: number): Promise<Grant> {
    const body = { provider_id: grant.provider_id, ttl_ms: milliseconds(ttl), request_id: crypto.randomUUID() }
    return granted(await this.trade("PUT", `/${grant.token}/extend`, { body }))
  }

  /** Gives the units of a grant back. */
  async release(grant: Grant): Promise<Grant> {
    return granted(await this.trade("DELETE", `/${grant.token}`, { query: { provider_id: grant.provider_id } }))
  }

  /** Takes a grant that this peer gave from its holder. Its connections end at once. */
  async revoke(token: string, reason = ""): Promise<Grant> {
    return granted(await this.call("POST", `/v1/trade/given/${token}/revoke`, { body: { reason } }))
  }

  /** The grants that the peer holds and gave, and the stocks of its offers. */
  async grants(): Promise<Grants> {
    const all = await this.call("GET", "/v1/trade/grants")
    const list = (side: string): Grant[] => must(all, side).map((grant: object) => granted({ grant }))
    return { ...all, held: list("held"), given: list("given") }
  }

  /** The peer asks the other one for 20 s. */
  private trade(method: string, path: string, c: Call) {
    return this.call(method, "/v1/trade/grants" + path, { ...c, timeout: Math.max(this.timeout, 30), repeat: "cut" })
  }

  /** The value of a key, undefined without it. */
  async get(key: string | Uint8Array, revision?: string): Promise<Uint8Array | undefined> { return (await this.entry(key, revision))?.value }

  /** A key with its revision, undefined without it. */
  async entry(key: string | Uint8Array, revision?: string): Promise<Entry | undefined> {
    try {
      return entryOf(must(await this.call("GET", "/v1/coordination/key", { query: { key, revision } }), "kvs")[0])
    } catch (e) {
      if (e instanceof Refused && e.status === 404) return undefined
      throw e
    }
  }

  /** Stores a value. With ifRevision only while that is the key's modRevision, "0" for an absent key; returns whether it was stored. */
  put(key: string | Uint8Array, value: string | Uint8Array, o: { lease?: string; ifRevision?: string } = {}): Promise<boolean> {
    return this.change(key, { put: { key: base64(encoded(key)), value: base64(encoded(value)), lease: o.lease } }, o.ifRevision)
  }

  delete(key: string | Uint8Array, o: { ifRevision?: string } = {}): Promise<boolean> {
    return this.change(key, { delete: { key: base64(encoded(key)) } }, o.ifRevision)
  }

  /** Yields all keys with a prefix, of one revision, page by page. */
  async *list(prefix: string | Uint8Array = ""): AsyncGenerator<Entry> {
    for (let from: Uint8Array | undefined, revision: string | undefined; ; ) {
      const page = await this.call("GET", "/v1/coordination/keys", { query: { key: prefix, prefix: true, revision, from } })
      for (const kv of must(page, "kvs")) yield entryOf(kv)
      from = bytes(page.next)
      revision = page.revision
      if (from.length === 0) return
    }
  }

  private async change(key: string | Uint8Array, step: object, ifRevision?: string): Promise<boolean> {
    const compare = ifRevision === undefined ? [] : [{ target: "MOD_REVISION", operator: "EQUAL", key: base64(encoded(key)), number: ifRevision }]
    return must(await this.command("/v1/coordination/txn", () => ({ compare, then: [step] })), "succeeded")
  }
}

/** A field of an answer. Without it the answer is broken, as a cut one is. */
// eslint-disable-next-line @typescript-eslint/no-explicit-any
const must = (answer: any, field: string): any => {
  if (answer[field] === undefined) throw new Broken(`the answer of the peer is broken: it has no ${field}`)
  return answer[field]
}
const milliseconds = (s?: number) => (s === undefined ? undefined : Math.trunc(s * 1000))
/** A grant with numbers in place of their digits, but for what compares as BigInt. */
const granted = (answer: { grant?: object; signed?: string }): Grant => {
  const grant = { ...must(answer, "grant") }
  for (const name of ["ttl_ms", "issued_ms", "left_ms", "sent_bytes", "received_bytes"]) if (grant[name] !== undefined) grant[name] = Number(grant[name])
  grant.state = must(grant, "state").replace("STATE_", "").toLowerCase()
  return answer.signed ? { ...grant, signed: answer.signed } : grant
}
const entryOf = (kv: { key: string; value: string; mod_revision: string }): Entry =>
  ({ key: new TextDecoder().decode(bytes(kv.key)), raw: bytes(kv.key), value: bytes(kv.value), modRevision: String(kv.mod_revision) })
const listOf = (list: Instance[], stale: boolean, reason: string, age: number) =>
  Object.defineProperties([...list], { stale: { value: stale }, reason: { value: reason }, age: { value: age } }) as Instances
const instances = (answer: { stale?: boolean; age?: number }) =>
  listOf(must(answer, "instances"), answer.stale ?? false, answer.stale ? "the peer has no contact to its group" : "", answer.age ?? 0)
const outdated = (list: Instances, e: unknown, since: number) => listOf(list, true, `the peer does not answer: ${e}`, list.age + since)

/** Something that is renewed until close(). renew returns the seconds until the next time. cause is the error of the last renewal. */
export abstract class Kept {
  protected interval = 10
  cause: unknown
  private readonly stopped = new AbortController()
  private running: Promise<void> = Promise.resolve()

  constructor(protected readonly client: Client) {}

  abstract renew(): Promise<number>

  start(): void {
    this.running = (async () => {
      for (let pause = this.interval; ; ) {
        await sleep(pause, this.stopped.signal)
        if (this.stopped.signal.aborted) return
        try {
          pause = await this.renew()
          this.tell(undefined)
        } catch (e) { // whatever it is, the lease must not end for it
          pause = transient(e) ? Math.min(1, this.interval) : this.interval
          this.tell(e)
        }
      }
    })()
  }

  /** Tells when the renewals begin to fail, and when they succeed again. */
  protected tell(error: unknown): void {
    const news = (error === undefined) !== (this.cause === undefined)
    this.cause = error
    if (!news) return
    try {
      if (this.client.onTrouble) this.client.onTrouble(this, error)
      else console.warn(`blackholed: ${this} is ${error === undefined ? "renewed again" : `not renewed: ${error}`}`)
    } catch (e) {
      console.error("blackholed: onTrouble failed:", e)
    }
  }

  protected end(): void { this.stopped.abort() }

  /** Ends the renewals, and waits for the one under way: it could undo what close does. Returns false after the end. */
  protected async stop(): Promise<boolean> {
    const first = !this.stopped.signal.aborted
    this.stopped.abort()
    await this.running
    return first
  }
}

const gone = (e: unknown) => e instanceof Refused && (e.status === 404 || e.status === 410)

/** A registration that heartbeats keep. It registers again after the peer forgot it. */
export class Registered extends Kept {
  private lease = ""
  constructor(client: Client, private readonly service: string, private readonly spec: Registration) { super(client) }

  get id(): string { return this.spec.id ?? "" }
  toString(): string { return `instance ${this.id} of ${this.service}` }

  async register(repeat: boolean): Promise<void> {
    const answer = await this.client.call("POST", `/v1/services/${part(this.service)}/instances`, { body: this.spec, repeat })
    this.lease = must(answer, "lease_id")
    this.interval = must(answer, "lease_ttl") / 3
    this.spec.id = must(answer, "instance_id") // the peer chose it, unless the registration did
  }

  async renew(): Promise<number> {
    try {
      await this.client.call("PUT", `/v1/leases/${this.lease}/renew`)
      return this.interval
    } catch (e) {
      if (!gone(e)) throw e
    }
    await this.register(false)
    return this.interval
  }

  async close(): Promise<void> {
    if (!(await this.stop())) return
    const path = `/v1/services/${part(this.service)}/instances/${part(this.id)}`
    await this.client.call("DELETE", path, { query: { namespace: this.spec.namespace }, repeat: true }).catch((e) => { if (!gone(e)) throw e })
  }
}

/** A lease. lost() says whether it may have ended: its time counts from before each renewal was sent, less a margin of 5 %. */
export class Session extends Kept {
  private deadline: number
  constructor(client: Client, readonly lease: string, readonly ttl: number, sent: number) {
    super(client)
    this.deadline = sent + ttl * 0.95
    this.interval = ttl / 3
  }

  async renew(): Promise<number> {
    const sent = seconds()
    try {
      const timeout = Math.min(this.client.timeout, this.ttl / 3)
      must(await this.client.call("PUT", `/v1/coordination/leases/${this.lease}/keepalive`, { timeout }), "ttl_ms")
      this.deadline = sent + this.ttl * 0.95
    } catch (e) {
      if (!gone(e)) throw e
      this.deadline = -Infinity
    } finally {
      if (this.lost()) {
        this.end()
        this.tell(new Lost("the lease is lost: others may hold its locks"))
      }
    }
    return this.interval
  }

  toString(): string { return `lease ${this.lease}` }

  lost(): boolean { return seconds() >= this.deadline }

  check(): void { if (this.lost()) throw new Lost("the lease is lost: others may hold its locks") }

  /**
   * Takes a lock within wait seconds (absent: without a limit, 0: at once), or throws NotAcquired. The queue is fair. also: further names in
   * the same moment, all or none; who names several by one call never waits in a circle. The session must hold none yet.
   */
  async lock(name: string, o: { wait?: number; shared?: boolean; permits?: number; metadata?: string | Uint8Array; also?: string[] } = {}): Promise<Held> {
    this.check()
    const mode = o.permits !== undefined ? "SHARE_MODE_PERMIT" : o.shared ? "SHARE_MODE_SHARED" : undefined
    const end = o.wait === undefined ? undefined : seconds() + o.wait
    const answer = await this.client.command("/v1/coordination/lock", () => ({
      lease_id: this.lease, timeout_ms: end === undefined ? -1 : Math.max(0, Math.trunc((end - seconds()) * 1000)), mode, permits: o.permits,
      metadata: base64(encoded(o.metadata ?? "")), others: o.also,
    }), { query: { name }, timeout: o.wait === undefined ? 86400 : o.wait + this.client.timeout })
    if (!must(answer, "acquired")) throw new NotAcquired(`others hold the lock ${[name, ...(o.also ?? [])].join(", or ")}`)
    this.check()
    return new Held(this.client, this, name, answer.fencing_token, o.also)
  }

  async close(): Promise<void> {
    if (!(await this.stop())) return
    this.deadline = -Infinity
    await this.client.call("DELETE", `/v1/coordination/leases/${this.lease}`, { repeat: true }).catch((e) => { if (!gone(e)) throw e })
  }
}

/** A held lock, with those of also. token rises from holder to holder; compare it as BigInt(token). check() before each step that must not run twice. */
export class Held {
  constructor(private readonly client: Client, private readonly session: Session, readonly name: string, readonly token: string, readonly also: string[] = []) {}

  check(): void { this.session.check() }

  async release(): Promise<void> {
    const released = (e: unknown) => gone(e) || (e instanceof Refused && e.status === 409 && e.attempts > 1) // by an earlier attempt
    for (const name of [this.name, ...this.also]) {
      const query = { name, lease_id: this.session.lease, fencing_token: this.token }
      await this.client.call("DELETE", "/v1/coordination/lock", { query, repeat: true }).catch((e) => { if (!released(e)) throw e })
    }
  }
}
