// Checks the test vectors of records, the valid and the refused:
//   node verify.mjs ../../pkg/records/testdata/vectors.json ../../pkg/records/testdata/refused.json
import { readFileSync } from 'node:fs'
import assert from 'node:assert/strict'
import { cells, cid, keyOf, keyOfRecord, newer, open, parts, peerText, publicOf, seal, sha256, WireError } from './record.mjs'

const kindOf = (f) => { try { f(); return 'valid' } catch (e) { if (e instanceof WireError) return e.kind; throw e } }

const opened = JSON.parse(readFileSync(process.argv[2])).map((v) => {
  const envelope = Buffer.from(v.envelope, 'hex'), from = Date.parse(v.not_before), until = Date.parse(v.not_after)
  const key = keyOf(Buffer.from(v.seed, 'hex'))
  const r = open(v.network, envelope, from)
  assert.equal(r.provider, peerText(publicOf(key)))
  const { id, type, subtype, latitude, longitude, withdrawn, expires } = r
  assert.deepEqual({ id, type, subtype, latitude, longitude, withdrawn, expires, sequence: Number(r.sequence) }, {
    id: v.view.id, type: v.view.metadata.type, subtype: v.view.metadata.subtype ?? '', latitude: v.view.location?.latitude,
    longitude: v.view.location?.longitude, withdrawn: v.view.withdrawn ?? false, expires: Date.parse(v.view.expires_at), sequence: v.view.sequence
  })
  assert.deepEqual([r.provider, r.digest.toString('hex'), keyOfRecord(r), cid(r.digest)], [v.view.provider_id, v.digest, v.view.key, v.view.content_id])
  assert.deepEqual(cells(r).map((c) => `${c} ${cid(sha256(c))}`), v.cells)
  assert.equal(envelope.subarray(-64).toString('base64'), v.view.signature)

  // Sealing the payload again gives the same bytes: Ed25519 is deterministic.
  assert.equal(seal(v.network, key, parts(envelope)[2]).toString('hex'), v.envelope)

  const changed = (at) => { const b = Buffer.from(envelope); b[at] ^= 1; return b }
  assert.equal(kindOf(() => open(v.network, envelope, from - 1)), 'untimely')
  assert.equal(kindOf(() => open('another', envelope, from)), 'of another network')
  assert.equal(kindOf(() => open(v.network, envelope, until)), 'untimely')
  for (let at = 0; at < envelope.length; at++) {
    const kind = kindOf(() => open(v.network, changed(at), from))
    assert.equal(kind, at > 1 && at < 6 ? 'unsupported' : 'forged', `byte ${at}`)
  }
  assert.equal(kindOf(() => open(v.network, Buffer.concat([envelope, Buffer.from([0x30, 1])]), from)), 'forged')
  assert.equal(kindOf(() => open(v.network, Buffer.alloc(4097), from)), 'too large')
  return r
})

for (const gone of opened.filter((r) => r.withdrawn)) {
  const first = opened.find((r) => r.id === gone.id && r.provider === gone.provider && !r.withdrawn)
  assert.ok(newer(gone, first) && !newer(first, gone), 'the tombstone replaces the record')
}

const refused = JSON.parse(readFileSync(process.argv[3])).filter((v) => v.core)
for (const v of refused) {
  const kind = kindOf(() => open(v.network, Buffer.from(v.envelope, 'hex'), Date.parse(v.now)))
  assert.equal(kind, v.result, v.name)
  assert.equal(kind === 'forged' || kind === 'too large', v.blame, v.name)
}
console.log(`${opened.length} vectors verified, ${refused.length} of refusals`)
