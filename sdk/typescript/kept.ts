/** What is renewed. */

import type { Client } from "./client.js"
import { sleep, transient } from "./http.js"

/**
 * Something that is renewed until close(). renew returns the seconds until the next time. cause is the error of the
 * last renewal.
 */
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
