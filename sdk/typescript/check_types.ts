// Compiles where each type of the client is that of the OpenAPI document: the same fields, and each takes what the
// peer says.
import type {
  Answer, Grant, Instance, LockState, Offer, Outcome, Quote, Receipt, Record, Result, Stock,
} from "./blackholed.js"
import type { components } from "./openapi.js"

type Schemas = components["schemas"]
type Named<Said, Ours> = [keyof Said] extends [keyof Ours] ?
  ([keyof Ours] extends [keyof Said] ? true : keyof Ours) : keyof Said
type Same<Said, Ours> = [Said] extends [Ours] ? Named<Said, Ours> : Said
/** What granted() makes of digits, and adds. */
type Made = "state" | "ttl_ms" | "issued_ms" | "left_ms" | "sent_bytes" | "received_bytes" | "signed"

const same: [
  Same<Schemas["Instance"], Instance>, Same<Schemas["Offer"], Offer>, Same<Schemas["Record"], Record>,
  Same<Schemas["Receipt"], Receipt>,
  Same<Schemas["Answer"], Answer>, Same<Schemas["Answer"]["results"][number], Result>,
  Same<NonNullable<Schemas["BatchResult"]["results"]>[number], Outcome>,
  Same<Schemas["StockState"], Stock>, Same<Schemas["Quote"], Quote>, Same<Schemas["LockState"], LockState>,
  Same<Omit<Schemas["Grant"], Made>, Omit<Grant, Made>>,
  Same<Made, keyof Schemas["Grant"] | "signed">,
] = [true, true, true, true, true, true, true, true, true, true, true, true]
void same
