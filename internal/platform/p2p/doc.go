// Package p2p builds and runs this peer's libp2p node: host, DHT and GossipSub. One of three profiles
// selects its settings.
//
// The caller supplies the DHT validators, the PubSub options and the protocols. From package records, p2p
// uses only Measured.
//
// New builds the datastore views, the host, the DHT, PubSub and the prober. The host listens last, so remote
// peers never identify a half-built host. Close stops the parts in reverse order and waits for their
// goroutines.
package p2p
