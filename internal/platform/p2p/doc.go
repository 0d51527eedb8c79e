// Package p2p builds this peer's libp2p node: host, DHT and GossipSub, after one of
// three profiles, and keeps it joined to its network.
//
// It knows nothing of records but their Measured type: pkg/keeper and pkg/gossip bring
// the validator, the PubSub options and the protocols that they need.
//
// Who starts what: New builds in the order datastore views, host without listeners, DHT,
// PubSub, prober, and only then listens and joins, so that no peer ever identifies a
// half-built host. Close goes the other way round and waits for every goroutine.
package p2p
