/** Instances of applications. */

import type { Client } from "./client.js"
import { Pauses, Refused, must, part, seconds, transient, type Said, type Values } from "./http.js"
import { Kept } from "./kept.js"
import type { Instance } from "./types.js"

/**
 * Instances of a service. stale says that they may be outdated, for age seconds, and reason why. revision is that of
 * the directory.
 */
export type Instances = Instance[] & {
  readonly stale: boolean; readonly reason: string; readonly age: number; readonly revision: number,
}

/** A registration: see InstanceRegistration in /openapi.json. */
export interface Registration {
  host: string
  port: number
  id?: string
  namespace?: string
  [field: string]: unknown
}

/** The instances that applications registered, at all peers of the group. */
export class Services {
  private readonly known = new Map<string, { at: number; list: Instances }>()

  constructor(private readonly client: Client) {}

  /** Registers an instance, and keeps it until close(). */
  async register(service: string, spec: Registration, o: { signal?: AbortSignal } = {}): Promise<Registered> {
    const r = new Registered(this.client, service, { ...spec })
    await r.register(true, o.signal)
    r.start()
    return r
  }

  /** The names of the services that have instances, ascending. */
  async list(namespace?: string): Promise<string[]> {
    const names = new Set<string>()
    for (let offset = 0; ; offset += 1000) {
      const page = await this.client.call("GET", "/v1/services", { query: { namespace, limit: 1000, offset } })
      for (const record of page) names.add(record.name)
      if (page.length < 1000) return [...names].sort()
    }
  }

  /**
   * The instances that are UP; filters are those of the API: zone, version, tags, health. While the peer does not
   * answer, the last list, which says that it is stale; without one it throws.
   */
  async discover(service: string, filters: Values = {}, o: { signal?: AbortSignal } = {}): Promise<Instances> {
    const question = JSON.stringify([service, Object.entries(filters).sort()])
    const known = this.known.get(question)
    try {
      const list = listed(await this.client.call("GET", `/v1/services/${part(service)}/instances`, {
        query: filters, repeat: !known, timeout: known ? Math.min(this.client.timeout, 2) : undefined, signal: o.signal,
      }))
      if (list.stale && known && !known.list.stale) return kept(list, known.list)
      this.known.delete(question)
      this.known.set(question, { at: seconds(), list })
      for (const oldest of this.known.keys()) if (this.known.size > 256) this.known.delete(oldest)
      return list
    } catch (e) {
      if (!known || !transient(e) || o.signal?.aborted) throw e
      return outdated(known.list, `the peer does not answer: ${e}`, seconds() - known.at)
    }
  }

  /**
   * Yields the instances now and after each change, until signal. When the peer is lost, it yields the last ones,
   * which say that they are stale, and goes on when the peer is back; before the first answer it throws.
   */
  async *follow(
    service: string, o: { wait?: number; filters?: Values; signal?: AbortSignal } = {},
  ): AsyncGenerator<Instances, void> {
    const wait = o.wait ?? 30
    // the last list of a peer in contact with its group
    let index: number | undefined, list: Instances | undefined, sure: Instances | undefined
    for (let at = 0, pauses = new Pauses(); !o.signal?.aborted; ) {
      const query = { ...o.filters, index, wait: index === undefined ? undefined : `${wait}s` }
      let answer: Said, fresh: Instances
      try {
        answer = await this.client.call("GET", `/v1/services/${part(service)}/watch`, {
          query, timeout: wait + this.client.timeout, repeat: index === undefined, signal: o.signal,
        })
        fresh = kept(listed(answer), sure)
      } catch (e) {
        if (o.signal?.aborted) return
        if (!list || !transient(e)) throw e
        if (!list.stale) yield list = outdated(list, `the peer does not answer: ${e}`, seconds() - at)
        await pauses.rest(o.signal)
        continue
      }
      at = seconds()
      pauses = new Pauses()
      if (!fresh.stale) sure = fresh
      if (answer.index !== index || list?.stale !== fresh.stale) {
        index = answer.index
        yield list = fresh
      }
    }
  }
}

const listOf = (list: Instance[], stale: boolean, reason: string, age: number, revision: number) =>
  Object.defineProperties(
    [...list],
    { stale: { value: stale }, reason: { value: reason }, age: { value: age }, revision: { value: revision } },
  ) as Instances
const listed = (answer: Said) =>
  listOf(
    must(answer, "instances"), answer.stale ?? false, answer.stale ? "the peer has no contact to its group" : "",
    answer.age ?? 0, answer.index ?? 0,
  )
const outdated = (list: Instances, reason: string, since: number) => listOf(
  list, true, reason, list.age + since, list.revision
)
/** From here on a peer without its group numbers changes by itself. */
const own = 2 ** 52
/** The instances that a peer without its group says, with those that it forgot by a restart. */
const kept = (fresh: Instances, sure?: Instances) => {
  if (!sure || !fresh.stale || (sure.revision <= fresh.revision && fresh.revision < own)) return fresh
  const here = new Set(fresh.map((i) => i.id))
  return listOf([...fresh, ...sure.filter((i) => !here.has(i.id))], true, fresh.reason, fresh.age, fresh.revision)
}
export const gone = (e: unknown) => e instanceof Refused && (e.status === 404 || e.status === 410)

/** A registration that heartbeats keep. It registers again after the peer forgot it. */
export class Registered extends Kept {
  private lease = ""
  constructor(client: Client, private readonly service: string, private readonly spec: Registration) { super(client) }

  get id(): string { return this.spec.id ?? "" }
  override toString(): string { return `instance ${this.id} of ${this.service}` }

  async register(repeat: boolean, signal?: AbortSignal): Promise<void> {
    const answer = await this.client.call(
      "POST", `/v1/services/${part(this.service)}/instances`, { body: this.spec, repeat, signal },
    )
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
    await this.client.call(
      "DELETE", path, { query: { namespace: this.spec.namespace }, repeat: true },
    ).catch((e) => { if (!gone(e)) throw e })
  }
}
