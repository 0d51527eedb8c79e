/** Services for sale of all peers, and what is granted of them. */

import type { Client } from "./client.js"
import {
  Broken, Pauses, Refused, milliseconds, must, part, transient, type Call, type Said, type Values,
} from "./http.js"
import type { Answer, Grant, Grants, Offer, OfferEvent, Outcome, Quote, Receipt, Record } from "./types.js"

/** A question: the fields of Query in /openapi.json. near is a city, or a place. */
export interface Query {
  type?: string
  types?: string[]
  near?: string | { latitude: number; longitude: number }
  radius_km?: number
  [field: string]: unknown
}

export class Offers {
  constructor(private readonly client: Client) {}

  /** Offers a service in the whole network, until withdraw. */
  register(offer: Offer): Promise<Receipt> { return this.client.call("POST", "/v1/discovery/records", { body: offer }) }

  /** The outcome of each, in order. */
  async registerBatch(offers: Offer[]): Promise<Outcome[]> {
    return must(await this.client.call("POST", "/v1/discovery/records:batch", { body: { records: offers } }), "results")
  }

  /** Replaces the content of an offer of the peer. */
  update(offer: Offer): Promise<Receipt> {
    return this.client.call("PUT", "/v1/discovery/record", { query: { id: offer.id }, body: offer, repeat: true })
  }

  withdraw(id: string): Promise<Receipt> {
    return this.client.call("DELETE", "/v1/discovery/record", { query: { id } })
  }

  /** Leaves an offer out of all answers, for a time or until resume. */
  pause(id: string, seconds?: number): Promise<Receipt> {
    return this.client.call(
      "POST", `/v1/discovery/records/${part(id)}/pause`,
      { body: seconds === undefined ? {} : { for_seconds: seconds } },
    )
  }

  resume(id: string): Promise<Receipt> { return this.client.call("POST", `/v1/discovery/records/${part(id)}/resume`) }

  /** An offer of the peer. */
  get(id: string): Promise<Record> { return this.client.call("GET", "/v1/discovery/record", { query: { id } }) }

  /** The offers of the peer. */
  async list(): Promise<Record[]> { return must(await this.client.call("GET", "/v1/discovery/records"), "records") }

  /** The offer with a key, from the network. */
  resolve(key: string): Promise<Record> { return this.client.call("GET", "/v1/discovery/resolve", { query: { key } }) }

  /** Finds offers: query({type: "compute", near: "berlin", radius_km: 100, max_price: 2, require_gpu: true}). */
  query(q: Query, o: { signal?: AbortSignal } = {}): Promise<Answer> {
    const { near, radius_km, ...body } = q
    const place = typeof near === "string" ? { city: near } : near
    return this.client.call(
      "POST", "/v1/discovery/query",
      { body: place ? { ...body, near: { ...place, radius_km } } : body, repeat: true, signal: o.signal },
    )
  }

  /**
   * Yields the matches of a query, and then each change, until signal, across lost connections. after is the cursor of
   * the last event seen; where is a list of texts here.
   */
  async *watch(q: Query, o: { after?: string; signal?: AbortSignal } = {}): AsyncGenerator<OfferEvent, void> {
    const near = typeof q.near === "object" ? `${q.near.latitude},${q.near.longitude}` : q.near
    let last = o.after, pauses = new Pauses()
    while (!o.signal?.aborted) {
      try {
        for await (
          const { kind, id, data } of this.client.events(
            "/v1/discovery/watch", { query: { ...q, near } as Values, last, signal: o.signal },
          )
        ) {
          last = id || last
          pauses = new Pauses()
          yield { kind, cursor: id, ...data }
        }
      } catch (e) {
        if (o.signal?.aborted) return
        if (e instanceof Refused && !transient(e)) throw e
      }
      await pauses.rest(o.signal)
    }
  }

  /**
   * Asks providers what is free of their offers, and at which price, for two seconds at most. refusal says why there
   * is no quote.
   */
  async quote(...keys: string[]): Promise<Quote[]> {
    return must(await this.client.call("POST", "/v1/trade/quotes", { body: { keys }, repeat: true }), "quotes")
  }

  /**
   * Names the local TCP address that holders of grants of an own offer reach through the peer; empty: none any more.
   */
  async serve(id: string, address: string): Promise<void> {
    await this.client.call("PUT", `/v1/trade/served/${part(id)}`, { body: { address }, repeat: true })
  }

  /**
   * Takes units of the offer with a key, for ttl seconds (absent: as long as it allows), or throws Refused: its
   * message has what is free, your share, the price. hold: for a minute, until extend or a connection confirms it. One
   * requestId has one effect.
   */
  async reserve(
    key: string,
    o: { units?: number; ttl?: number; maxPrice?: number; sequence?: string; hold?: boolean; requestId?: string } = {},
  ): Promise<Grant> {
    const body = {
      key, units: o.units, ttl_ms: milliseconds(o.ttl), max_price: o.maxPrice, sequence: o.sequence, hold: o.hold,
      request_id: o.requestId ?? crypto.randomUUID(),
    }
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
    return granted(await this.client.call("POST", `/v1/trade/given/${token}/revoke`, { body: { reason } }))
  }

  /** The grants that the peer holds and gave, and the stocks of its offers. */
  async grants(): Promise<Grants> {
    const all = await this.client.call("GET", "/v1/trade/grants")
    const list = (side: string): Grant[] => must(all, side).map((grant: object) => granted({ grant }))
    return { ...all, held: list("held"), given: list("given") }
  }

  /** The peer asks the other one for 20 s. */
  private trade(method: string, path: string, c: Call) {
    return this.client.call(
      method, "/v1/trade/grants" + path, { ...c, timeout: Math.max(this.client.timeout, 30), repeat: "cut" },
    )
  }
}

/** A grant with numbers in place of their digits, but for what compares as BigInt. */
const granted = (answer: Said): Grant => {
  const grant = { ...must(answer, "grant") }
  for (
    const name of ["ttl_ms", "issued_ms", "left_ms", "sent_bytes", "received_bytes"]
  ) if (grant[name] !== undefined) grant[name] = Number(grant[name])
  const state: unknown = must(grant, "state")
  if (typeof state !== "string") throw new Broken("the answer of the peer is broken: state is no text")
  grant.state = state.replace("STATE_", "").toLowerCase()
  return answer.signed ? { ...grant, signed: answer.signed } : grant
}
