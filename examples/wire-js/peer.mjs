// A peer in JavaScript: node peer.mjs NETWORK MULTIADDR. It stores a record at a keeper, finds others there, follows the
// live topic, and publishes a newer version of its record. It needs: npm ci
import { randomBytes } from 'node:crypto'
import { cells, field, fields, keyOf, open, peerText, publicOf, seal, sha256, topics } from './record.mjs'

Promise.withResolvers ??= () => { const d = {}; d.promise = new Promise((resolve, reject) => Object.assign(d, { resolve, reject })); return d } // Node 20
const [{ createLibp2p }, { tcp }, { noise }, { yamux }, { identify }, { gossipsub }, { lpStream }, { multiaddr }, { privateKeyFromRaw }] =
  await Promise.all(['libp2p', '@libp2p/tcp', '@libp2p/noise', '@libp2p/yamux', '@libp2p/identify', '@libp2p/gossipsub', '@libp2p/utils',
    '@multiformats/multiaddr', '@libp2p/crypto/keys'].map((name) => import(name)))

const [network, address] = process.argv.slice(2)
const seed = randomBytes(32), key = keyOf(seed), protocol = (part) => `/blackhole/${network}/${part}`
const u64 = (n) => { const b = Buffer.alloc(8); b.writeBigUInt64BE(BigInt(n)); return b }

// pubsub is GossipSub with the protocol and the message ids of section 7. The library has no option for the protocol.
const pubsub = (components) => {
  const msgIdFn = ({ topic, data }) => sha256(Buffer.concat([u64(topic.length), Buffer.from(topic), u64(data.length), data])).subarray(0, 20)
  const made = gossipsub({ globalSignaturePolicy: 'StrictNoSign', fallbackToFloodsub: false, msgIdFn })(components)
  made.protocols = [protocol('meshsub/1.2.0')]
  return made
}
const host = await createLibp2p({
  privateKey: privateKeyFromRaw(Buffer.concat([seed, publicOf(key)])),
  transports: [tcp()], connectionEncrypters: [noise()], streamMuxers: [yamux()], services: { identify: identify(), pubsub }
})

// ask sends one request to the keeper and returns the fields of the answer.
async function ask (operation, request) {
  const stream = await host.dialProtocol(multiaddr(address), protocol('keeper/1.0.0'))
  const frames = lpStream(stream)
  await frames.write(field(operation, request))
  const answer = fields(Buffer.from((await frames.read()).subarray()))
  await stream.close()
  if (answer.has(1)) throw new Error(`refused: ${fields(answer.get(1)[0]).get(3)}`)
  return fields(answer.get(operation)[0])
}

// version returns the envelope of a version of this peer's record.
function version (name, now) {
  const time = (ms) => field(1, BigInt(Math.floor(ms / 1000)))
  return seal(network, key, Buffer.concat([
    field(1, 'js-disk'), field(2, peerText(publicOf(key))), field(3, Buffer.concat([field(1, 'storage'), field(3, name)])),
    field(4, field(1, field(1, 10n ** 12n))), field(8, time(now)), field(9, time(now)), field(10, time(now + 24 * 3600e3)), field(12, BigInt(now))
  ]))
}

const live = protocol('live/1/storage/global')
host.services.pubsub.addEventListener('message', ({ detail }) => {
  console.log(`heard ${open(network, Buffer.from(detail.data), Date.now()).id}`)
})
host.services.pubsub.subscribe(live)

const first = version('First version', Date.now()), record = open(network, first, Date.now())
const stored = await ask(2, field(1, Buffer.concat([field(1, first), ...cells(record).map((c) => field(2, c))])))
const [result] = stored.get(1)
console.log(fields(result).has(1) ? `not stored: ${result}` : `stored sequence ${fields(result).get(2)[0]}`)

const query = Buffer.concat([field(1, field(1, 'storage')), field(2, '/blackhole/services/storage/_/global')])
for (const envelope of (await ask(3, query)).get(1) ?? []) {
  const r = open(network, envelope, Date.now())
  console.log(`found ${r.id} of ${r.provider === record.provider ? 'this peer' : r.provider}`)
}

while (host.services.pubsub.getSubscribers(live).length === 0) await new Promise((resolve) => setTimeout(resolve, 100))
const second = version('Second version', Date.now() + 1)
for (const topic of topics(network, open(network, second, Date.now()))) await host.services.pubsub.publish(topic, second)
console.log('published; Ctrl-C ends the peer')
process.on('SIGINT', () => host.stop().then(() => process.exit()))
