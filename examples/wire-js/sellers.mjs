// Finds sellers without this protocol: node sellers.mjs NETWORK MULTIADDR CELL. It asks the DHT for the providers of a cell's CID, by
// the standard call of js-libp2p, and prints their ids. CELL is a key as /blackhole/services/storage/_/u33. It needs: npm ci
Promise.withResolvers ??= () => { const d = {}; d.promise = new Promise((resolve, reject) => Object.assign(d, { resolve, reject })); return d } // Node 20
const [{ createLibp2p }, { tcp }, { noise }, { yamux }, { identify }, { ping }, { kadDHT, passthroughMapper }, { multiaddr }, { CID }, { sha256 }] =
  await Promise.all(['libp2p', '@libp2p/tcp', '@libp2p/noise', '@libp2p/yamux', '@libp2p/identify', '@libp2p/ping', '@libp2p/kad-dht',
    '@multiformats/multiaddr', 'multiformats/cid', 'multiformats/hashes/sha2'].map((name) => import(name)))

const [network, address, cell] = process.argv.slice(2)
const dht = kadDHT({ protocol: `/blackhole/${network}/kad/1.0.0`, clientMode: true, peerInfoMapper: passthroughMapper })
const host = await createLibp2p({
  transports: [tcp()], connectionEncrypters: [noise()], streamMuxers: [yamux()], services: { identify: identify(), ping: ping(), dht }
})
await host.dial(multiaddr(address))
const cid = CID.createV1(0x55, await sha256.digest(new TextEncoder().encode(cell)))
const seen = new Set()
for await (const { id } of host.contentRouting.findProviders(cid, { signal: AbortSignal.timeout(20000) })) {
  if (!seen.has(`${id}`)) console.log(`${id} sells in ${cell}`)
  seen.add(`${id}`)
}
console.log(`found ${seen.size}`)
await host.stop()
