/** Calls of a peer over HTTP, which repeat themselves where that is safe. */

/** A refusal of the peer. word is its kind ("not_found", "pool_exhausted"), field what it is about. */
export class Refused extends Error {
  override readonly name = "Refused"
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
export class Broken extends Error {
  override readonly name = "Broken"
}

export type Values = Record<string, string | number | boolean | Uint8Array | string[] | undefined>

export interface Call {
  query?: Values
  /** A function makes the body of each attempt. */
  body?: unknown
  /** Seconds for one attempt. */
  timeout?: number
  /** Repeat while the peer does not answer; default for GET. "cut": without an answer alone. */
  repeat?: boolean | "cut"
  /** Ends the call, and its repetitions. */
  signal?: AbortSignal
}

/** What the peer said: an object, or a list of them. */
// eslint-disable-next-line @typescript-eslint/no-explicit-any
export type Said = any

/**
 * A clock that goes on while the machine sleeps. performance.now stops then, so jumps of the wall clock are added to
 * it.
 */
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
export const seconds = clock()
export const sleep = (s: number, signal?: AbortSignal) =>
  new Promise<void>((done) => {
    const end = () => { clearTimeout(timer); signal?.removeEventListener("abort", end); done() }
    const timer = setTimeout(end, Math.min(s * 1000, 2 ** 31 - 1))
    if (signal?.aborted) end()
    else signal?.addEventListener("abort", end)
  })

/**
 * In Node fetch ends a wait after 300 s, and takes proxies of the environment if NODE_USE_ENV_PROXY is set. The class
 * of its own dispatcher makes one that does neither. Elsewhere there is none.
 */
let dispatcher: Promise<object> | undefined
const own = () => dispatcher ??= (async () => {
  const global = Symbol.for("undici.globalDispatcher.1")
  await fetch("data:,").catch(() => undefined) // Node loads the dispatcher at the first call
  const of = (globalThis as unknown as Record<symbol, { constructor: new (o: object) => object } | undefined>)[global]
  return of && "process" in globalThis ? {
    dispatcher: new of.constructor({ headersTimeout: 0, bodyTimeout: 0, httpProxy: "", httpsProxy: "" }),
  } : {}
})()
export const transient = (e: unknown) => !(e instanceof Refused) || e.status === 502 || e.status === 503
export const part = encodeURIComponent
const percent = (v: string | number | boolean | Uint8Array) =>
  v instanceof Uint8Array ? Array.from(v, (b) => "%" + b.toString(16).padStart(2, "0")).join("") : part(String(v))
export const bytes = (text: string): Uint8Array => Uint8Array.from(atob(text), (c) => c.charCodeAt(0))
export const base64 = (data: Uint8Array) => btoa(Array.from(data, (b) => String.fromCharCode(b)).join(""))
export const encoded = (value: string | Uint8Array) => (
  typeof value === "string" ? new TextEncoder().encode(value) : value
)

export const milliseconds = (s?: number) => (s === undefined ? undefined : Math.trunc(s * 1000))

/** A field of an answer. Without it the answer is broken, as a cut one is. */
export const must = (answer: Said, field: string): Said => {
  if (answer?.[field] === undefined) throw new Broken(`the answer of the peer is broken: it has no ${field}`)
  return answer[field]
}

export interface Connection {
  address?: string
  token?: string
  /** Seconds for one attempt of a call; default 10. */
  timeout?: number
  /** Seconds for which a call is repeated while the peer is unreachable; default 30. */
  patience?: number
}

/** Growing pauses between attempts. */
export class Pauses {
  next = 0.05
  async rest(signal?: AbortSignal, most = 2): Promise<void> {
    const pause = this.next
    this.next = Math.min(this.next * 2, 2)
    await sleep(Math.max(0, Math.min(pause * (0.8 + 0.4 * Math.random()), most)), signal)
  }
}

/**
 * The connection to one peer. Calls that only read, or that are applied once by their content, repeat themselves while
 * the peer is unreachable.
 */
export class Peer {
  readonly address: string
  readonly timeout: number
  private readonly token?: string
  private readonly patience: number
  private readonly idle: { client: string; sequence: number }[] = []

  constructor(o: Connection = {}) {
    this.address = (o.address ?? "http://127.0.0.1:8500").replace(/\/+$/, "")
    this.token = o.token
    this.timeout = o.timeout ?? 10
    this.patience = o.patience ?? 30
  }

  /** One request. Returns the decoded JSON. Throws Refused, Broken, or the error of fetch without an answer. */
  async call(method: string, path: string, c: Call = {}): Promise<Said> {
    const { url, headers } = this.question(path, c)
    const end = (c.repeat ?? method === "GET") ? this.until(c.timeout) : 0
    const pauses = new Pauses()
    for (let attempts = 1; ; attempts++) {
      try {
        return await this.once(url, c, { method, headers })
      } catch (e) {
        if (e instanceof Refused) e.attempts = attempts
        if (
          !transient(e) || (c.repeat === "cut" && e instanceof Refused) || c.signal?.aborted || seconds() >= end
        ) throw e
      }
      await pauses.rest(c.signal, end - seconds())
      c.signal?.throwIfAborted()
    }
  }

  private question(path: string, c: Call): { url: string; headers: Record<string, string> } {
    const words = Object.entries(c.query ?? {}).flatMap(([name, value]) =>
      (Array.isArray(value) ? value : [value]).filter((one) => one !== undefined).map(
        (one) => part(name) + "=" + percent(one)
      ))
    const headers: Record<string, string> = {}
    if (this.token) headers.authorization = "Bearer " + this.token
    if (c.body !== undefined) headers["content-type"] = "application/json"
    return { url: this.address + path + (words.length > 0 ? "?" + words.join("&") : ""), headers }
  }

  /** The end of the repetitions of a call: a long wait that is cut leaves the whole patience. */
  private until(timeout = this.timeout): number {
    return seconds() + this.patience + Math.max(0, timeout - this.timeout)
  }

  private async once(url: string, c: Call, init: RequestInit): Promise<Said> {
    const options = await own(), limit = limited(c.signal)
    limit.within(c.timeout ?? this.timeout)
    try {
      const body = c.body === undefined ? undefined : JSON.stringify(typeof c.body === "function" ? c.body() : c.body)
      const answer = await fetch(url, { ...init, body, signal: limit.signal, redirect: "manual", ...options })
      const text = await answer.text()
      if (answer.status === 204) return {}
      let said
      try { said = JSON.parse(text) } catch { said = undefined }
      const whole = typeof said === "object" && said !== null
      if (!answer.ok) throw new Refused(answer.status, whole && !Array.isArray(said) ? said : { message: text })
      if (!whole) throw new Broken("the answer of the peer is broken: it is no JSON object")
      if (answer.headers.get("x-blackhole-stale")) { // the peer has lost its group
        said.stale = true
        said.age = Number(answer.headers.get("x-blackhole-age"))
      }
      return said
    } finally {
      limit.over()
    }
  }

  /**
   * A change that the group applies once, though it is repeated: it knows the repetition by an identity and a number.
   */
  async command(path: string, body: () => object, c: Call = {}): Promise<Said> {
    const end = this.until(c.timeout)
    let identity = this.idle.pop()
    try {
      for (let n = 0; n < 8; n++) {
        identity ??= {
          client: must(await this.call("POST", "/v1/coordination/clients", { body: {}, repeat: true }), "client"),
          sequence: 0,
        }
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

  /** The events of one stream: kind, id, data. It ends when the peer ends it; silence of 40 s is a loss. */
  async *events(
    path: string, c: Call & { last?: string } = {},
  ): AsyncGenerator<{ kind: string; id: string; data: Said }, void> {
    const { url, headers } = this.question(path, c)
    if (c.last) headers["last-event-id"] = c.last
    const options = await own(), limit = limited(c.signal)
    limit.within(40)
    try {
      const answer = await fetch(
        url,
        { headers: { ...headers, accept: "text/event-stream" }, signal: limit.signal, redirect: "manual", ...options },
      )
      if (!answer.ok || !answer.body) {
        const text = await answer.text()
        let said
        try { said = JSON.parse(text) } catch { said = { message: text } }
        throw new Refused(answer.status, said)
      }
      const reader = answer.body.getReader(), decoder = new TextDecoder()
      let text = "", event = { kind: "message", id: "", data: "" }
      for (;;) {
        limit.within(40)
        const { done, value } = await reader.read()
        if (done) return
        const lines = (text + decoder.decode(value, { stream: true })).split("\n")
        text = lines.pop() ?? ""
        for (const line of lines) {
          const at = line.indexOf(":"), name = at < 0 ? line : line.slice(0, at)
          const what = at < 0 ? "" : line.slice(at + 1).replace(/^ /, "")
          if (name === "event") event.kind = what
          else if (name === "id") event.id = what
          else if (name === "data") event.data += what
          else if (line === "") {
            if (event.data !== "") {
              let data
              try { data = JSON.parse(event.data) } catch {
                throw new Broken("the answer of the peer is broken: an event is no JSON")
              }
              yield { ...event, data }
            }
            event = { kind: "message", id: event.id, data: "" }
          }
        }
      }
    } finally {
      limit.over()
    }
  }
}

/** A signal that ends with another one, or after a time. */
function limited(signal?: AbortSignal) {
  const limit = new AbortController()
  const abort = () => limit.abort(signal?.reason)
  let timer: ReturnType<typeof setTimeout> | undefined
  signal?.addEventListener("abort", abort)
  if (signal?.aborted) abort()
  return {
    signal: limit.signal,
    within(s: number) {
      clearTimeout(timer)
      timer = setTimeout(
        () => limit.abort(new DOMException("the peer does not answer in time", "TimeoutError")),
        Math.min(s * 1000, 2 ** 31 - 1),
      )
    },
    over() {
      clearTimeout(timer)
      signal?.removeEventListener("abort", abort)
      limit.abort() // of a stream that its reader left
    },
  }
}
