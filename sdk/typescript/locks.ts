/** Sessions, locks and elections. */

import type { Client } from "./client.js"
import { Refused, base64, encoded, milliseconds, must, seconds } from "./http.js"
import { Kept } from "./kept.js"
import { Compacted } from "./kv.js"
import { gone } from "./services.js"
import type { LockState } from "./types.js"

/** The lease ended: others may hold its locks from now on. */
export class Lost extends Error {
  override readonly name = "Lost"
}

/** Others held the lock until the end of the wait. */
export class NotAcquired extends Error {
  override readonly name = "NotAcquired"
}

/** The leader of an election as others see it. value is its last proclamation, undefined without a leader. */
export interface Leader {
  value?: Uint8Array
  revision: string
}

const leaderKey = (name: string) => name + "/leader"

/** Sessions, and what others hold. */
export class Locks {
  constructor(private readonly client: Client) {}

  /** A lease of ttl seconds that is kept alive until close(): the owner of locks and keys. */
  async session(ttl = 15, o: { application?: string; signal?: AbortSignal } = {}): Promise<Session> {
    const sent = seconds()
    const body = () => ({ ttl_ms: milliseconds(ttl), application: o.application })
    const granted = await this.client.command("/v1/coordination/leases", body, { signal: o.signal })
    const s = new Session(this.client, must(granted, "id"), Number(granted.ttl_ms) / 1000, sent)
    s.start()
    return s
  }

  /** Yields the locks that clients hold or wait for. */
  async *list(prefix = ""): AsyncGenerator<LockState, void> {
    for (let after = ""; ; ) {
      const page: LockState[] = must(
        await this.client.call("GET", "/v1/coordination/locks", { query: { prefix, after } }), "locks",
      )
      if (page.length === 0) return
      yield* page
      after = page[page.length - 1].name
    }
  }

  /** The leader of an election; undefined without a proclamation. */
  async leader(name: string): Promise<Leader | undefined> {
    const now = await this.client.kv().get(leaderKey(name))
    return now && { value: now.value, revision: now.modRevision }
  }

  /**
   * Yields the present leader and then every change, until signal. After a long loss of the peer, only the last of
   * what was missed.
   */
  async *observe(name: string, o: { signal?: AbortSignal } = {}): AsyncGenerator<Leader, void> {
    const kv = this.client.kv(), key = leaderKey(name)
    while (!o.signal?.aborted) {
      const page = await kv.read(key, { signal: o.signal })
      yield page.keys.length > 0 ? {
        value: page.keys[0].value, revision: page.keys[0].modRevision,
      } : { revision: page.revision }
      try {
        for await (const batch of kv.watch({ key, revision: String(BigInt(page.revision) + 1n), signal: o.signal })) {
          for (const e of batch.events) yield { value: e.kv?.value, revision: e.revision }
        }
      } catch (e) {
        if (!(e instanceof Compacted)) throw e
      }
    }
  }
}

/**
 * A lease. lost() says whether it may have ended: its time counts from before each renewal was sent, less a margin of
 * 5 %.
 */
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

  override toString(): string { return `lease ${this.lease}` }

  lost(): boolean { return seconds() >= this.deadline }

  check(): void { if (this.lost()) throw new Lost("the lease is lost: others may hold its locks") }

  /**
   * Takes a lock within wait seconds (absent: without a limit, 0: at once), or throws NotAcquired. The queue is fair.
   * also: further names in the same moment, all or none; who names several by one call never waits in a circle. The
   * session must hold none yet. signal ends the wait with its reason.
   */
  async lock(
    name: string,
    o: {
      wait?: number; shared?: boolean; permits?: number; metadata?: string | Uint8Array; also?: string[]
      signal?: AbortSignal
    } = {},
  ): Promise<Held> {
    this.check()
    const mode = o.permits !== undefined ? "SHARE_MODE_PERMIT" : o.shared ? "SHARE_MODE_SHARED" : undefined
    const end = o.wait === undefined ? undefined : seconds() + o.wait
    const answer = await this.client.command("/v1/coordination/lock", () => ({
      lease_id: this.lease, timeout_ms: end === undefined ? -1 : Math.max(0, Math.trunc((end - seconds()) * 1000)),
      mode, permits: o.permits,
      metadata: base64(encoded(o.metadata ?? "")), others: o.also,
    }), { query: { name }, timeout: o.wait === undefined ? 86400 : o.wait + this.client.timeout, signal: o.signal })
    if (!must(answer, "acquired")) throw new NotAcquired(
      `others hold the lock ${[name, ...(o.also ?? [])].join(", or ")}`
    )
    this.check()
    return new Held(this.client, this, name, answer.fencing_token, o.also)
  }

  /** Waits until the session leads, and proclaims a value. Errors: as lock(). */
  async campaign(
    name: string, value: string | Uint8Array, o: { wait?: number; signal?: AbortSignal } = {},
  ): Promise<Leadership> {
    const lead = new Leadership(this.client, this, await this.lock(name, { ...o, metadata: value }))
    try {
      await lead.proclaim(value)
    } catch (e) {
      await lead.held.unlock()
      throw e
    }
    return lead
  }

  async close(): Promise<void> {
    if (!(await this.stop())) return
    this.deadline = -Infinity
    await this.client.call(
      "DELETE", `/v1/coordination/leases/${this.lease}`, { repeat: true },
    ).catch((e) => { if (!gone(e)) throw e })
  }
}

/**
 * A held lock, with those of also. token rises from holder to holder; compare it as BigInt(token). check() before each
 * step that must not run twice.
 */
export class Held {
  constructor(
    private readonly client: Client, private readonly session: Session, readonly name: string, readonly token: string,
    readonly also: string[] = [],
  ) {}

  check(): void { this.session.check() }

  async unlock(): Promise<void> {
    // by an earlier attempt
    const over = (e: unknown) => gone(e) || (e instanceof Refused && e.status === 409 && e.attempts > 1)
    for (const name of [this.name, ...this.also]) {
      const query = { name, lease_id: this.session.lease, fencing_token: this.token }
      await this.client.call(
        "DELETE", "/v1/coordination/lock", { query, repeat: true },
      ).catch((e) => { if (!over(e)) throw e })
    }
  }
}

/** A won election: a held lock, and the key NAME/leader with the proclamation. It ends with the session. */
export class Leadership {
  readonly token: string
  constructor(
    private readonly client: Client, private readonly session: Session, readonly held: Held,
  ) { this.token = held.token }

  check(): void { this.session.check() }

  /** Replaces the proclamation. Throws Lost if another one leads by now. */
  proclaim(value: string | Uint8Array): Promise<void> {
    return this.write({ put: { key: this.key, value: base64(encoded(value)), lease: this.session.lease } })
  }

  /** Ends the leadership at once. */
  async resign(): Promise<void> {
    await this.write({ delete: { key: this.key } }).catch((e) => { if (!(e instanceof Lost)) throw e })
    await this.held.unlock()
  }

  private get key(): string { return base64(encoded(leaderKey(this.held.name))) }

  private async write(step: object): Promise<void> {
    const leads = { target: "HOLDS", operator: "EQUAL", lock: this.held.name, fencing_token: this.token }
    if (
      !must(await this.client.command("/v1/coordination/txn", () => ({ compare: [leads], then: [step] })), "succeeded")
    ) {
      throw new Lost("another one leads by now")
    }
  }
}
