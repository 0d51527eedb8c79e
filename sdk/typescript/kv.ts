/** Keys of the group. */

import type { Client } from "./client.js"
import { Pauses, Refused, base64, bytes, encoded, must, transient, type Said } from "./http.js"

/** One version of a key. Compare revisions as BigInt. */
export interface KeyValue {
  /** With U+FFFD for what is no UTF-8: raw has the key as it is. */
  key: string
  raw: Uint8Array
  value: Uint8Array
  createRevision: string
  /** For ifRevision. */
  modRevision: string
  version: string
  /** "0": none, or one that is hidden: see leaseTag. */
  lease: string
  leaseTag?: string
}

/** One change of one key. Without kv it was deleted. */
export interface KeyEvent {
  revision: string
  key: string
  kv?: KeyValue
  prev?: KeyValue
}

/** The events of whole revisions; none: progress. A later watch may go on at next. */
export interface Batch {
  events: KeyEvent[]
  next: string
}

/** The group has no events of that time any more: list the keys, and watch from the next revision. */
export class Compacted extends Error {
  override readonly name = "Compacted"
  constructor(readonly revision: string, readonly current: string) {
    super(`revision ${revision} was compacted, the present one is ${current}`)
  }
}

type Text = string | Uint8Array

export class KV {
  constructor(private readonly client: Client) {}

  /** A key, undefined without it. */
  async get(
    key: Text, o: { revision?: string; signal?: AbortSignal } = {},
  ): Promise<KeyValue | undefined> { return (await this.read(key, o)).keys[0] }

  /** Yields all keys with a prefix, of one revision, page by page. */
  async *list(prefix: Text = "", o: { signal?: AbortSignal } = {}): AsyncGenerator<KeyValue, void> {
    for (let from: Uint8Array | undefined, revision: string | undefined; ; ) {
      const page = await this.read(prefix, { ...o, prefix: true, revision, from })
      yield* page.keys
      if (page.next.length === 0) return
      from = page.next
      revision = page.revision
    }
  }

  /** One page of keys. next is the first key of the rest. */
  async read(
    key: Text, o: { prefix?: boolean; revision?: string; from?: Uint8Array; signal?: AbortSignal } = {},
  ): Promise<{ keys: KeyValue[]; revision: string; next: Uint8Array }> {
    const { signal, ...query } = o
    const said = await this.client.call("GET", "/v1/coordination/keys", { query: { key, ...query }, signal })
    return { keys: must(said, "kvs").map(version), revision: said.revision, next: bytes(must(said, "next")) }
  }

  /**
   * Stores a value. With ifRevision only while that is the key's modRevision, "0" for an absent key; returns whether
   * it was stored.
   */
  put(key: Text, value: Text, o: { lease?: string; ifRevision?: string } = {}): Promise<boolean> {
    return this.change(
      key, { put: { key: base64(encoded(key)), value: base64(encoded(value)), lease: o.lease } }, o.ifRevision,
    )
  }

  /** Deletes a key. Returns as put. */
  delete(key: Text, o: { ifRevision?: string } = {}): Promise<boolean> {
    return this.change(key, { delete: { key: base64(encoded(key)) } }, o.ifRevision)
  }

  private async change(key: Text, step: object, ifRevision?: string): Promise<boolean> {
    const compare = ifRevision === undefined ? [] : [
      { target: "MOD_REVISION", operator: "EQUAL", key: base64(encoded(key)), number: ifRevision },
    ]
    return must(await this.client.command("/v1/coordination/txn", () => ({ compare, then: [step] })), "succeeded")
  }

  /**
   * Yields the changes of the keys with a prefix, or of one key, from a revision on (absent: from now on), until
   * signal, across lost connections. Throws Compacted where changes are gone.
   */
  async *watch(
    o: { prefix?: Text; key?: Text; revision?: string; prev?: boolean; signal?: AbortSignal } = {}
  ): AsyncGenerator<Batch, void> {
    let from = BigInt(o.revision ?? "0"), pauses = new Pauses()
    while (!o.signal?.aborted) {
      let events: KeyEvent[] = []
      try {
        const query = {
          key: o.key ?? o.prefix ?? "", prefix: o.key === undefined ? true : undefined, prev_kv: o.prev,
          start_revision: from > 0n ? String(from) : undefined,
        }
        for await (const { kind, data } of this.client.events("/v1/coordination/watch", { query, signal: o.signal })) {
          if (kind === "compacted") throw new Compacted(
            must(data, "compact_revision"), must(must(data, "header"), "revision"),
          )
          events.push(...(data.events ?? []).map(event))
          if (data.fragment) continue // the rest of the revision follows
          const next = BigInt(must(data, "next_revision")), whole = events.filter((e) => BigInt(e.revision) >= from)
          events = []
          if (next > from) from = next
          pauses = new Pauses()
          if (kind !== "created") yield { events: whole, next: String(from) }
        }
      } catch (e) {
        if (o.signal?.aborted) return
        if (e instanceof Compacted || (e instanceof Refused && !transient(e))) throw e
      }
      await pauses.rest(o.signal)
    }
  }
}

const version = (kv: Said): KeyValue => ({
  key: new TextDecoder().decode(bytes(must(kv, "key"))), raw: bytes(kv.key), value: bytes(must(kv, "value")),
  createRevision: String(kv.create_revision),
  modRevision: String(must(kv, "mod_revision")), version: String(kv.version), lease: String(kv.lease),
  leaseTag: kv.lease_tag,
})
const event = (e: Said): KeyEvent => {
  const now = version(must(e, "kv"))
  return {
    revision: now.modRevision, key: now.key, kv: e.type === "DELETE" ? undefined : now,
    prev: e.prev_kv ? version(e.prev_kv) : undefined,
  }
}
