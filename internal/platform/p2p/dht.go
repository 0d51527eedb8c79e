package p2p

import (
	"maps"
	"time"

	ds "github.com/ipfs/go-datastore"
	"github.com/ipfs/go-datastore/namespace"
	dht "github.com/libp2p/go-libp2p-kad-dht"
	"github.com/libp2p/go-libp2p-kad-dht/amino"
	record "github.com/libp2p/go-libp2p-record"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"

	"github.com/blackhole/blackhole/pkg/network"
)

const (
	// maxRecordAge is the lifetime of a value after its last put. Publishers repeat the put every few hours.
	maxRecordAge = 48 * time.Hour
	// tableReplicas is Kademlia's k: the size of a bucket and of a lookup's answer.
	tableReplicas = 20
)

// dhtProtocol returns the protocol of a network's DHT. A host handles it in server mode only.
func dhtProtocol(n network.Name) protocol.ID { return protocol.ID(n.Protocol("kad", "1.0.0")) }

// newDHT builds the DHT as a router, and as a store of the values in c.Namespaces. It has no provider records:
// they have no signatures and cannot answer a query.
func newDHT(h host.Host, c *Config, settings profileSettings, bootstrap func() []peer.AddrInfo) (*dht.IpfsDHT, error) {
	validators := make(record.NamespacedValidator)
	maps.Copy(validators, c.Namespaces)
	opts := []dht.Option{
		dht.ProtocolPrefix(protocol.ID(c.Network.Prefix())), // the rest is that of dhtProtocol
		dht.Mode(mode(c, settings)),
		// Validator instead of NamespacedValidator, which would also accept /pk and /ipns: strangers could store
		// values that this network never reads.
		dht.Validator(validators),
		dht.DisableProviders(),
		dht.ValueDatastore(namespace.Wrap(c.Datastore, ds.NewKey("/dht"))),
		dht.MaxRecordAge(maxRecordAge),
		dht.ValueGCInterval(time.Hour),
		dht.BucketSize(tableReplicas),
		dht.RoutingTableRefreshPeriod(settings.refresh),
		dht.RoutingTableRefreshQueryTimeout(settings.query),
		dht.BootstrapPeersFunc(bootstrap),
	}
	if settings.open {
		opts = append(opts,
			dht.QueryFilter(publicQuery),
			dht.RoutingTableFilter(publicTable(h)),
			dht.RoutingTablePeerDiversityFilter(dht.NewRTPeerDiversityFilter(h,
				amino.DefaultMaxPeersPerIPGroupPerCpl, amino.DefaultMaxPeersPerIPGroup)),
			dht.AddressFilter(publicOnly))
		h = publicHost{h}
	}
	return dht.New(h, opts...)
}

// mode is the profile's mode, except for a peer without bootstrap peers, which starts a new network. In
// automatic mode that peer would wait for confirmations of its reachability, and the network would never get
// its first server.
func mode(c *Config, settings profileSettings) dht.ModeOpt {
	if settings.mode == dht.ModeAuto && len(c.Bootstrap) == 0 {
		return dht.ModeAutoServer
	}
	return settings.mode
}
