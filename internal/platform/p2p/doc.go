// Package p2p builds and runs this peer's libp2p node: host, DHT and GossipSub. One of three profiles
// selects its settings.
//
// The caller supplies the DHT validators, the PubSub options and the protocols.
//
// New builds the parts in the subfolders around the host. None of them knows the Node. The host listens last, so remote
// peers never identify a half-built host. Close stops the parts in reverse order and waits for their
// goroutines.
package p2p
