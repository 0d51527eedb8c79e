/** A peer, with its four doors. */

import { Peer, type Connection } from "./http.js"
import type { Kept } from "./kept.js"
import { KV } from "./kv.js"
import { Locks } from "./locks.js"
import { Offers } from "./offers.js"
import { Services } from "./services.js"

export interface Options extends Connection {
  /**
   * Is called when an instance or a session cannot be renewed, and without an error when it is renewed again; default
   * console.warn.
   */
  onTrouble?: (kept: Kept, error?: unknown) => void
}

/** One peer. */
export class Client extends Peer {
  readonly onTrouble?: Options["onTrouble"]
  private readonly cached = new Services(this)

  constructor(o: Options = {}) {
    super(o)
    this.onTrouble = o.onTrouble
  }

  /** Services for sale of all peers, and what is granted of them. */
  offers(): Offers { return new Offers(this) }

  /** Instances of applications. */
  services(): Services { return this.cached }

  /** Sessions, locks and elections. */
  locks(): Locks { return new Locks(this) }

  /** Keys of the group. */
  kv(): KV { return new KV(this) }
}
