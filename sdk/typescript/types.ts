/** What the peer answers. A test compares these types with the OpenAPI document of the peer. */

type Some = { [field: string]: unknown }

export interface Instance {
  id: string
  host?: string
  port?: number
  /** UP, DOWN, UNHEALTHY, STARTING, OUT_OF_SERVICE or UNKNOWN */
  health: string
  /** Texts; weight is a number. */
  metadata: Some
  interfaces?: { [name: string]: string }
  tags?: string[]
  dependencies?: string[]
  environment?: string
  region?: string
  owner?: string
  description?: string
}

/** A service for sale. */
export interface Offer {
  id?: string
  metadata: {
    type: string
    subtype?: string
    name?: string
    description?: string
    version?: string
    endpoints?: string[]
    protocols?: string[]
    attributes?: { [name: string]: string }
    domain?: string
    access?: string
    stock?: { unit: string; total: number; max_ttl?: number; max_per_consumer?: number } | null
  }
  /** By type: storage, compute, cdn, bandwidth. */
  capabilities?: { storage?: Some | null; compute?: Some | null; cdn?: Some | null; bandwidth?: Some | null } | null
  location?: {
    latitude?: number; longitude?: number; country?: string; region?: string; city?: string; isp?: string
    precision?: number
  } | null
  pricing?: {
    currency?: string; base_price?: number; price_unit?: string; tier_pricing?: { [tier: string]: number }
    minimum_commitment?: number
  } | null
  health?: {
    status?: string; uptime_percent?: number; response_time_ms?: number; error_rate?: number; last_check?: string
  } | null
}

/** A signed and announced offer. */
export interface Record extends Offer {
  id: string
  provider_id: string
  created_at?: string
  updated_at?: string
  expires_at?: string
  sequence: number
  withdrawn?: boolean
  critical?: string[]
  paused?: { stopped?: boolean; since: string; until?: string }
  signature?: string
  key?: string
  content_id?: string
}

export interface Receipt {
  id: string
  key: string
  sequence: number
  expires_at: string
  stored: { on: number; of: number; this_peer_only?: boolean }
  warnings?: string[]
}

/** A receipt of a batch, or an error. */
export interface Outcome extends Partial<Receipt> {
  error?: { error: string; message: string; field?: string }
}

export interface Result {
  record: Record
  distance_km?: number
  score: number
  peer?: Some
  endpoint?: Some
  domain?: Some
  doubts?: string[]
  explain?: string[]
}

export interface Answer {
  results: Result[]
  total: number
  total_at_least?: boolean
  next?: string
  source: string
  complete: boolean
  incomplete_reason?: string
  age_ms: number
  took_ms: number
  notes?: string[]
  beyond?: Some
  excluded?: { provider: string; id?: string; reason: string; since?: string }[]
  excluded_total?: number
  cells?: Some
  price_groups?: Some[]
}

/** A change of the matches of a query. kind: added, updated, withdrawn, expired, removed, reset or progress. */
export interface OfferEvent {
  kind: string
  cursor: string
  record?: Record
  complete?: boolean
  reason?: string
  beyond?: Some
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
  sequence: string
  request_id: string
  ttl_ms: number
  issued_ms: number
  left_ms?: number
  price?: number
  currency: string
  price_unit: string
  /** By the holder. */
  sent_bytes: number
  received_bytes: number
  handover: string
  /** The grant as its provider signed it, in base64, for others who want a proof. */
  signed?: string
}

/** What is free of an own offer. */
export interface Stock {
  id: string
  unit: string
  free: number
  total: number
  serve: string
}

export interface Grants {
  held: Grant[]
  given: Grant[]
  stocks: Stock[]
}

/** What a provider says of its offer now. It promises nothing: a grant does. */
export interface Quote {
  key: string
  sequence: string
  free: number
  total: number
  most: number
  price?: number
  currency: string
  price_unit: string
  refusal?: Some
}

export interface LockClaim {
  key: string
  holder_id: string
  lease_id: string
  fencing_token: string
  mod_revision: string
  version: string
  metadata: string
  mode: string
  permits: number
  count: number
  age_ms: string
  application: string
}

export interface LockState {
  name: string
  holding: LockClaim[]
  waiting: LockClaim[]
  left_out: number
}
