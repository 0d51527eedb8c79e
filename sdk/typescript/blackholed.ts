/**
 * Client of a blackholed peer on the same host: instances, locks with fencing tokens, and keys. It needs nothing but fetch.
 *
 *     const peer = new Client()                                  // http://127.0.0.1:8500
 *     const mail = await peer.register("mail", {host: "10.0.0.9", port: 25})
 *     for (const i of await peer.discover("db")) { ... }
 *     const session = await peer.session(15)
 *     const held = await session.lock("jobs", {wait: 30})
 *     await work(held.token)                                     // the resource refuses smaller tokens
 *     held.check()                                               // throws Lost after the lease ended
 *
 * A lock is a promise about time, and a paused program loses track of time: give the token to the resource behind the lock.
 * Offers and everything else of the API: Client.call, with the paths of /openapi.json.
 */

/** A refusal of the peer. word is its kind ("not_found", "pool_exhausted"), field what it is about. */
export class Refused extends Error {
  readonly word: string
  readonly field: string
  constructor(readonly status: number, readonly body: { error?: string; field?: string; message?: string }) {
    super(`${status} ${body.error ?? ""}: ${body.message ?? ""}`)
    this.word = body.error ?? ""
    this.field = body.field ?? ""
  }
}

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

/** A registration: see InstanceRegistration in /openapi.json. */
export interface Registration {
  host: string
  port: number
  id?: string
  namespace?: string
  [field: string]: unknown
}

export interface Entry {
  key: string
  value: Uint8Array
  /** For ifRevision. Compare two of them by BigInt. */
  modRevision: string
}

type Values = Record<string, string | number | boolean | string[] | undefined>

interface Call {
  query?: Values
  body?: unknown
  raw?: Uint8Array
  /** Seconds for one attempt. */
  timeout?: number
  /** Repeat while the peer does not answer; default for GET. */
  repeat?: boolean
  signal?: AbortSignal
}

export interface Options {
  address?: string
  token?: string
  /** Seconds for one attempt of a call; default 10. */
  timeout?: number
  /** Seconds for which a call is repeated while the peer is unreachable; default 30. */
  patience?: number
}

const seconds = () => performance.now() / 1000
const sleep = (s: number, signal?: AbortSignal) =>
  new Promise<void>((done) => {
    const timer = setTimeout(done, s * 1000)
    signal?.addEventListener("abort", () => { clearTimeout(timer); done() }, { once: true })
  })
const part = encodeURIComponent
const bytes = (text: string) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0))
const base64 = (data: Uint8Array) => btoa(Array.from(data, (b) => String.fromCharCode(b)).join(""))
const encoded = (value: string | Uint8Array) => (typeof value === "string" ? new TextEncoder().encode(value) : value)

/** One peer. Calls that only read, or that are applied once by their content, repeat themselves while the peer is unreachable. */
export class Client {
  readonly address: string
  readonly timeout: number
  private readonly token?: string
  private readonly patience: number

  constructor(o: Options = {}) {
    this.address = (o.address ?? "http://127.0.0.1:8500").replace(/\/+$/, "")
    this.token = o.token
    this.timeout = o.timeout ?? 10
    this.patience = o.patience ?? 30
  }

  /** One request. Returns the decoded JSON. Throws Refused, or the error of fetch without an answer. */
  // eslint-disable-next-line @typescript-eslint/no-explicit-any
  async call(method: string, path: string, c: Call = {}): Promise<any> {
    const url = new URL(this.address + path)
    for (const [name, value] of Object.entries(c.query ?? {}))
      for (const one of Array.isArray(value) ? value : [value]) if (one !== undefined) url.searchParams.append(name, String(one))
    const headers: Record<string, string> = {}
    if (this.token) headers.authorization = "Bearer " + this.token
    if (c.body !== undefined) headers["content-type"] = "application/json"
    const end = seconds() + ((c.repeat ?? method === "GET") ? this.patience : 0)
    for (let pause = 0.05; ; pause = Math.min(pause * 2, 2)) {
      try {
        const limit = AbortSignal.timeout((c.timeout ?? this.timeout) * 1000)
        const answer = await fetch(url, {
          method, headers, body: c.body !== undefined ? JSON.stringify(c.body) : (c.raw as BodyInit | undefined),
          signal: c.signal ? AbortSignal.any([c.signal, limit]) : limit,
        })
        const text = await answer.text()
        if (answer.ok) return text === "" ? {} : JSON.parse(text)
        let said
        try { said = JSON.parse(text) } catch { said = { message: text } }
        const refused = new Refused(answer.status, said)
        if (answer.status !== 503 || seconds() >= end) throw refused
      } catch (e) {
        if ((e instanceof Refused && e.status !== 503) || c.signal?.aborted || seconds() >= end) throw e
      }
      await sleep(Math.max(0, Math.min(pause * (0.8 + 0.4 * Math.random()), end - seconds())), c.signal)
    }
  }

  /** Registers an instance, and keeps it until close(). */
  async register(service: string, spec: Registration): Promise<Registered> {
    const r = new Registered(this, service, { ...spec })
    await r.register(true)
    r.start()
    return r
  }

  /** The instances that are UP; filters are those of the API: zone, version, tags, health. */
  async discover(service: string, filters: Values = {}): Promise<Instance[]> {
    return (await this.call("GET", `/v1/services/${part(service)}/instances`, { query: filters })).instances
  }

  /** Yields the instances now and after each change, until signal. It goes on after a loss of the peer. */
  async *watch(service: string, o: { wait?: number; filters?: Values; signal?: AbortSignal } = {}): AsyncGenerator<Instance[]> {
    const wait = o.wait ?? 30
    for (let index: number | undefined; !o.signal?.aborted; ) {
      const query = { ...o.filters, index, wait: index === undefined ? undefined : `${wait}s` }
      let answer
      try {
        answer = await this.call("GET", `/v1/services/${part(service)}/watch`, { query, timeout: wait + this.timeout, signal: o.signal })
      } catch (e) {
        if (o.signal?.aborted) return
        throw e
      }
      if (answer.index !== index) {
        index = answer.index
        yield answer.instances
      }
    }
  }

  /** A lease of ttl seconds that is kept alive until close(): the owner of locks and keys. */
  async session(ttl = 15, application?: string): Promise<Session> {
    const sent = seconds()
    const granted = await this.call("POST", "/v1/coordination/leases", { body: { ttl, application }, repeat: true })
    const s = new Session(this, granted.id, Number(granted.ttl_ms) / 1000, sent)
    s.start()
    return s
  }

  /** The value of a key, undefined without it. */
  async get(key: string, revision?: string): Promise<Uint8Array | undefined> { return (await this.entry(key, revision))?.value }

  /** A key with its revision, undefined without it. */
  async entry(key: string, revision?: string): Promise<Entry | undefined> {
    try {
      const kv = (await this.call("GET", "/v1/coordination/key", { query: { key, revision } })).kvs[0]
      return { key, value: bytes(kv.value), modRevision: String(kv.mod_revision) }
    } catch (e) {
      if (e instanceof Refused && e.status === 404) return undefined
      throw e
    }
  }

  /** Stores a value. With ifRevision only while that is the key's modRevision, "0" for an absent key; returns whether it was stored. */
  put(key: string, value: string | Uint8Array, o: { lease?: string; ifRevision?: string } = {}): Promise<boolean> {
    return this.conditional("PUT", { key, lease_id: o.lease, if_revision: o.ifRevision }, encoded(value))
  }

  delete(key: string, o: { ifRevision?: string } = {}): Promise<boolean> {
    return this.conditional("DELETE", { key, if_revision: o.ifRevision })
  }

  /** Yields all keys with a prefix, of one revision, page by page. */
  async *list(prefix = ""): AsyncGenerator<Entry> {
    for (let from: string | undefined, revision: string | undefined; ; ) {
      const page = await this.call("GET", "/v1/coordination/keys", { query: { key: prefix, prefix: true, revision, from } })
      for (const kv of page.kvs)
        yield { key: new TextDecoder().decode(bytes(kv.key)), value: bytes(kv.value), modRevision: String(kv.mod_revision) }
      from = new TextDecoder().decode(bytes(page.next))
      revision = page.revision
      if (from === "") return
    }
  }

  private async conditional(method: string, query: Values, raw?: Uint8Array): Promise<boolean> {
    try {
      return (await this.call(method, "/v1/coordination/key", { query, raw })).succeeded
    } catch (e) {
      if (e instanceof Refused && e.status === 409 && query.if_revision !== undefined) return false
      throw e
    }
  }
}

/** Something that is renewed until close(). renew returns the seconds until the next time. */
abstract class Kept {
  protected interval = 10
  private readonly stopped = new AbortController()
  private running: Promise<void> = Promise.resolve()

  abstract renew(): Promise<number>

  start(): void {
    this.running = (async () => {
      for (let pause = this.interval; ; pause = await this.renew()) {
        await sleep(pause, this.stopped.signal)
        if (this.stopped.signal.aborted) return
      }
    })()
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
  constructor(private readonly client: Client, private readonly service: string, private readonly spec: Registration) { super() }

  get id(): string { return this.spec.id ?? "" }

  async register(repeat: boolean): Promise<void> {
    const answer = await this.client.call("POST", `/v1/services/${part(this.service)}/instances`, { body: this.spec, repeat })
    this.spec.id = answer.instance_id // the peer chose it, unless the registration did
    this.lease = answer.lease_id
    this.interval = answer.lease_ttl / 3
  }

  async renew(): Promise<number> {
    try {
      await this.client.call("PUT", `/v1/leases/${this.lease}/renew`)
      return this.interval
    } catch (e) {
      if (!gone(e)) return e instanceof Refused ? this.interval : 1
    }
    try { await this.register(false) } catch { return 1 }
    return this.interval
  }

  async close(): Promise<void> {
    if (!(await this.stop())) return
    const path = `/v1/services/${part(this.service)}/instances/${part(this.id)}`
    await this.client.call("DELETE", path, { query: { namespace: this.spec.namespace } }).catch((e) => { if (!gone(e)) throw e })
  }
}

/** A lease. lost() says whether it may have ended: its time counts from before each renewal was sent, less a margin of 5 %. */
export class Session extends Kept {
  private deadline: number
  constructor(private readonly client: Client, readonly lease: string, readonly ttl: number, sent: number) {
    super()
    this.deadline = sent + ttl * 0.95
    this.interval = ttl / 3
  }

  async renew(): Promise<number> {
    const sent = seconds()
    try {
      await this.client.call("PUT", `/v1/coordination/leases/${this.lease}/keepalive`, { timeout: this.ttl / 3 })
      this.deadline = sent + this.ttl * 0.95
      return this.interval
    } catch (e) {
      if (gone(e)) this.deadline = -Infinity
    }
    if (this.lost()) this.end()
    return Math.min(1, this.interval)
  }

  lost(): boolean { return seconds() >= this.deadline }

  check(): void { if (this.lost()) throw new Lost("the lease is lost: others may hold its locks") }

  /** Takes a lock within wait seconds (absent: without a limit, 0: at once), or throws NotAcquired. The queue is fair. */
  async lock(name: string, o: { wait?: number; shared?: boolean; permits?: number; metadata?: string | Uint8Array } = {}): Promise<Held> {
    this.check()
    const mode = o.permits !== undefined ? "SHARE_MODE_PERMIT" : o.shared ? "SHARE_MODE_SHARED" : undefined
    const answer = await this.client.call("POST", "/v1/coordination/lock", {
      query: { name }, timeout: o.wait === undefined ? 86400 : o.wait + this.client.timeout,
      body: {
        lease_id: this.lease, timeout_ms: o.wait === undefined ? -1 : Math.trunc(o.wait * 1000), mode, permits: o.permits,
        metadata: base64(encoded(o.metadata ?? "")),
      },
    })
    if (!answer.acquired) throw new NotAcquired(`others hold the lock ${name}`)
    this.check()
    return new Held(this.client, this, name, answer.fencing_token)
  }

  async close(): Promise<void> {
    if (!(await this.stop())) return
    this.deadline = -Infinity
    await this.client.call("DELETE", `/v1/coordination/leases/${this.lease}`).catch((e) => { if (!gone(e)) throw e })
  }
}

/** A held lock. token rises from holder to holder; compare it as BigInt(token). check() before each step that must not run twice. */
export class Held {
  constructor(private readonly client: Client, private readonly session: Session, readonly name: string, readonly token: string) {}

  check(): void { this.session.check() }

  async release(): Promise<void> {
    const query = { name: this.name, lease_id: this.session.lease, fencing_token: this.token }
    await this.client.call("DELETE", "/v1/coordination/lock", { query }).catch((e) => { if (!gone(e)) throw e })
  }
}
