// Records of docs/wire.md, sections 1 and 3 to 5, with nothing but Node. It verifies envelopes, makes them, and names the
// cells of a record.
import { createHash, createPrivateKey, createPublicKey, sign, verify } from 'node:crypto'

const codecOf = (network, version) => `/blackhole/${network}/service-record/${version}`
const keyHead = Buffer.from('08011220', 'hex') // libp2p PublicKey message: Ed25519, 32 bytes
const maxSize = 4096, maxTTL = 48 * 3600e3, skew = 2 * 60e3

export const sha256 = (b) => createHash('sha256').update(b).digest()

// WireError has the blame of the table in section 3: "forged" and "too large" are the sender's fault, the others nobody's.
export class WireError extends Error {
  constructor (kind, message) { super(`${kind}: ${message}`); this.kind = kind }
}
const refuse = (kind, message) => { throw new WireError(kind, message) }

export function uvarint (n) {
  const out = []
  for (n = BigInt(n); n > 127n; n >>= 7n) out.push(Number(n & 127n) | 128)
  return Buffer.from([...out, Number(n)])
}

function readUvarint (b, at) {
  let n = 0n
  for (let shift = 0n; shift < 70n; shift += 7n) {
    if (at >= b.length) refuse('invalid', 'a varint ends early')
    const byte = b[at++]
    n |= BigInt(byte & 127) << shift
    if (byte < 128) return [n, at]
  }
  refuse('invalid', 'a varint of more than ten bytes')
}

const sized = (b) => Buffer.concat([uvarint(b.length), b])

// field encodes one field: a Buffer or text, or a varint. An empty text encodes to nothing.
export function field (number, value) {
  if (value === '') return Buffer.alloc(0)
  const tag = (type) => uvarint(number << 3 | type)
  if (typeof value === 'string' || Buffer.isBuffer(value)) return Buffer.concat([tag(2), sized(Buffer.from(value))])
  return Buffer.concat([tag(0), uvarint(value)])
}

// fields decodes a message into a Map from numbers to lists of values. Unknown fields do no harm.
export function fields (b) {
  const all = new Map()
  const open = [] // groups, which only unknown fields use
  for (let at = 0; at < b.length;) {
    let tag, value, size
    ;[tag, at] = readUvarint(b, at)
    switch (Number(tag & 7n)) {
      case 0: [value, at] = readUvarint(b, at); break
      case 1: value = b.subarray(at, at += 8); break
      case 2: [size, at] = readUvarint(b, at); value = b.subarray(at, at += Number(size)); break
      case 3: open.push(tag >> 3n); continue
      case 4: if (open.pop() !== tag >> 3n) refuse('invalid', 'a group ends twice'); continue
      case 5: value = b.subarray(at, at += 4); break
      default: refuse('invalid', 'an unknown type of field')
    }
    if (at > b.length) refuse('invalid', 'a field ends early')
    const number = Number(tag >> 3n)
    if (open.length === 0) all.set(number, [...(all.get(number) ?? []), value])
  }
  if (open.length > 0) refuse('invalid', 'a group without its end')
  return all
}

const base58 = '123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz'

// peerText returns the text of the peer id of a public key of 32 bytes.
export function peerText (key) {
  const id = Buffer.concat([Buffer.from([0, 0x24]), keyHead, key])
  let text = ''
  for (let n = BigInt('0x' + id.toString('hex')); n > 0n; n /= 58n) text = base58[Number(n % 58n)] + text
  return '1' + text // for the leading zero byte
}

// keyOf returns the private key of a seed of 32 bytes.
export const keyOf = (seed) => createPrivateKey({ key: Buffer.concat([Buffer.from('302e020100300506032b657004220420', 'hex'), seed]), format: 'der', type: 'pkcs8' })
export const publicOf = (key) => createPublicKey(key).export({ format: 'der', type: 'spki' }).subarray(-32)
const publicKey = (raw) => createPublicKey({ key: Buffer.concat([Buffer.from('302a300506032b6570032100', 'hex'), raw]), format: 'der', type: 'spki' })

const signedBytes = (network, codec, payload) =>
  Buffer.concat([sized(Buffer.from(`blackhole:${network}:service-record`)), sized(codec), sized(payload)])

// seal returns the envelope of a payload in a network.
export function seal (network, key, payload) {
  const codec = Buffer.from(codecOf(network, 1))
  return Buffer.concat([
    field(1, Buffer.concat([keyHead, publicOf(key)])), field(2, codec), field(3, payload), field(5, sign(null, signedBytes(network, codec, payload), key))
  ])
}

// open verifies an envelope of a network at a time in milliseconds, in the order of section 3, and returns the core of the record.
export function open (network, envelope, now) {
  if (envelope.length > maxSize) refuse('too large', `${envelope.length} bytes`)
  const [key, codec, payload, signature] = parts(envelope)
  if (key.length !== 36 || !key.subarray(0, 4).equals(keyHead)) refuse('unsupported', 'the key is not Ed25519')
  const raw = key.subarray(4)
  const named = codec.toString().match(/^\/blackhole\/([a-z0-9]|[a-z0-9][a-z0-9-]{0,30}[a-z0-9])\/service-record\/([1-9][0-9]{0,8})$/)
  if (!verify(null, signedBytes(named?.[1] ?? network, codec, payload), publicKey(raw), signature)) refuse('forged', 'the signature is wrong')
  if (!named) refuse('invalid', `codec ${codec}`)
  if (named[1] !== network) refuse('of another network', `${named[1]}, not ${network}`)
  if (named[2] !== '1') refuse('unsupported', `codec ${codec}`)
  const record = coreOf(payload)
  if (record.provider !== peerText(raw)) refuse('forged', 'provider_id is not the signer')
  checkCore(record)
  if (now >= record.expires) refuse('untimely', 'expired')
  if (record.updated > now + skew) refuse('untimely', 'from the future')
  return record
}

// parts splits an envelope. It accepts the canonical form only: encoding the parts again gives the same bytes.
export function parts (envelope) {
  let values
  try {
    const all = fields(envelope)
    values = [1, 2, 3, 5].map((n) => all.get(n)?.[0])
    const again = Buffer.concat([1, 2, 3, 5].map((n, i) => Buffer.concat([uvarint(n << 3 | 2), sized(values[i])])))
    if (again.equals(envelope)) return values
  } catch {}
  refuse('forged', 'not a canonical envelope')
}

// coreOf decodes the part of a record that never changes its meaning, and the name as an example of the rest.
function coreOf (payload) {
  const text = (m, n) => m.get(n)?.at(-1).toString() ?? ''
  const inner = (m, n) => fields(Buffer.concat(m.get(n) ?? [])) // repeated submessages merge
  const double = (m, n) => m.get(n)?.at(-1).readDoubleLE()
  const uint = (m, n) => m.get(n)?.at(-1) ?? 0n
  const time = (m) => { // in milliseconds; NaN, which no comparison accepts, outside the years 1 to 9999
    const seconds = Number(BigInt.asIntN(64, uint(m, 1))), nanoseconds = Number(uint(m, 2))
    return seconds < -62135596800 || seconds > 253402300799 || nanoseconds > 999999999 ? NaN : seconds * 1000 + Math.floor(nanoseconds / 1e6)
  }
  const all = fields(payload)
  const metadata = inner(all, 3), location = inner(all, 5)
  const at = (n) => all.has(n) ? time(inner(all, n)) : undefined
  return {
    id: text(all, 1), provider: text(all, 2), type: text(metadata, 1), subtype: text(metadata, 2),
    latitude: double(location, 1), longitude: double(location, 2), precision: Number(uint(location, 7)),
    created: at(8), updated: at(9), expires: at(10), sequence: uint(all, 12), withdrawn: uint(all, 13) !== 0n,
    critical: (all.get(14) ?? []).map(String), signed: all.has(11), digest: sha256(payload), name: text(metadata, 3)
  }
}

// checkCore checks the rules of the core; a full implementation checks the whole table of section 3.
function checkCore (r) {
  const valid = /^[A-Za-z0-9._-]{1,64}$/.test(r.id) && r.id !== '.' && r.id !== '..' && /^[a-z0-9-]{1,32}$/.test(r.type) &&
    /^[a-z0-9-]{0,32}$/.test(r.subtype) && (r.latitude === undefined) === (r.longitude === undefined) &&
    (r.latitude === undefined || (Math.abs(r.latitude) <= 90 && Math.abs(r.longitude) <= 180)) &&
    (r.precision === 0 || (r.latitude !== undefined && r.precision >= 4 && r.precision <= 12)) &&
    r.created <= r.updated && r.updated < r.expires && r.expires - r.updated <= maxTTL && r.sequence > 0n && !r.signed &&
    r.critical.length <= 8 && r.critical.every((f) => /^[a-z0-9.-]{1,32}$/.test(f))
  if (!valid) refuse('invalid', 'the core breaks a rule')
}

// newer reports whether a replaces b, of the same provider and id.
export const newer = (a, b) => a.sequence !== b.sequence ? a.sequence > b.sequence : Buffer.compare(a.digest, b.digest) > 0

// geohash halves the longitude first. A place on an edge belongs to the part north and east of it.
export function geohash (latitude, longitude, length) {
  const lat = [-90, 90], lon = [-180, 180], bits = []
  if (longitude >= 180) longitude -= 360
  for (let i = 0; i < 5 * length; i++) {
    const [range, x] = i % 2 === 0 ? [lon, longitude] : [lat, latitude]
    const middle = (range[0] + range[1]) / 2
    bits.push(x >= middle ? 1 : 0)
    range[x >= middle ? 0 : 1] = middle
  }
  return Array.from({ length }, (_, i) => '0123456789bcdefghjkmnpqrstuvwxyz'[parseInt(bits.slice(5 * i, 5 * i + 5).join(''), 2)]).join('')
}

const cellOf = (r, length) => r.latitude === undefined ? 'global' : geohash(r.latitude, r.longitude, length)

export const keyOfRecord = (r) => `/blackhole/services/${r.type}/${r.subtype || '_'}/${cellOf(r, r.precision || 6)}/${r.provider}/${r.id}`

// cells returns the keys of the cells of a record.
export function cells (r) {
  const places = r.latitude === undefined ? ['global'] : ['global', ...[1, 2, 3, 4, 5, 6].map((n) => cellOf(r, n))]
  const subtypes = r.subtype ? ['_', r.subtype] : ['_']
  return [...subtypes.flatMap((s) => places.map((p) => `/blackhole/services/${r.type}/${s}/${p}`)), `/blackhole/providers/${r.provider}`]
}

// cid returns the CIDv1 (raw, sha2-256) of a digest: base32 without padding.
export function cid (digest) {
  const bits = [...Buffer.concat([Buffer.from('01551220', 'hex'), digest])].map((b) => b.toString(2).padStart(8, '0')).join('')
  return 'b' + bits.match(/.{1,5}/g).map((c) => 'abcdefghijklmnopqrstuvwxyz234567'[parseInt(c.padEnd(5, '0'), 2)]).join('')
}

// topics returns the live topics of a record in a network.
export const topics = (network, r) => [...new Set([cellOf(r, 2), 'global'])].map((c) => `/blackhole/${network}/live/1/${r.type}/${c}`)
