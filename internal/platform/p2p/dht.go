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
	"github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"
)

const (
	// dhtPrefix separates this DHT from others: its protocol is /blackhole/kad/1.0.0.
	dhtPrefix = "/blackhole"
	// valueNamespace is the first segment of the DHT keys of records.
	valueNamespace = "blackhole"
	// maxRecordAge is the lifetime of a value after its last put. Providers repeat the put every few hours.
	maxRecordAge = 48 * time.Hour
	// tableReplicas is Kademlia's k: the size of a bucket and of a lookup's answer.
	tableReplicas = 20
)

// newDHT builds the DHT as a router and a store of point values, without provider records: they have no
// signatures and cannot answer a query.
func newDHT(h host.Host, c *Config, settings profileSettings, bootstrap func() []peer.AddrInfo) (*dht.IpfsDHT, error) {
	validators := record.NamespacedValidator{valueNamespace: c.Validator}
	maps.Copy(validators, c.Namespaces)
	opts := []dht.Option{
		dht.ProtocolPrefix(dhtPrefix),
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
			dht.QueryFilter(dht.PublicQueryFilter),
			dht.RoutingTableFilter(dht.PublicRoutingTableFilter),
			dht.RoutingTablePeerDiversityFilter(dht.NewRTPeerDiversityFilter(h,
				amino.DefaultMaxPeersPerIPGroupPerCpl, amino.DefaultMaxPeersPerIPGroup)),
			dht.AddressFilter(publicOnly))
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

// publicOnly removes private addresses: strangers must not direct this peer's dials into its own network.
func publicOnly(addrs []multiaddr.Multiaddr) []multiaddr.Multiaddr {
	return multiaddr.FilterAddrs(addrs, manet.IsPublicAddr)
}
