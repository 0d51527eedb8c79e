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
	// dhtPrefix keeps our DHT apart from others: its protocol is /blackhole/kad/1.0.0.
	dhtPrefix = "/blackhole"
	// valueNamespace is the first segment of the DHT keys of records.
	valueNamespace = "blackhole"
	// maxRecordAge is how long a value lives after it was last put; providers put theirs
	// again every few hours.
	maxRecordAge = 48 * time.Hour
	// tableReplicas is Kademlia's k: a bucket's size and the length of a lookup's answer.
	tableReplicas = 20
)

// newDHT builds the DHT as a router and a store of point values. It keeps no provider
// records: they hold no signatures and cannot answer a query.
func newDHT(h host.Host, c *Config, t profileSettings, bootstrap func() []peer.AddrInfo) (*dht.IpfsDHT, error) {
	validators := record.NamespacedValidator{valueNamespace: c.Validator}
	maps.Copy(validators, c.Namespaces)
	opts := []dht.Option{
		dht.ProtocolPrefix(dhtPrefix),
		dht.Mode(mode(c, t)),
		// Validator, not NamespacedValidator: the latter leaves /pk and /ipns in, so that
		// strangers could store what this network never reads.
		dht.Validator(validators),
		dht.DisableProviders(),
		dht.ValueDatastore(namespace.Wrap(c.Datastore, ds.NewKey("/dht"))),
		dht.MaxRecordAge(maxRecordAge),
		dht.ValueGCInterval(time.Hour),
		dht.BucketSize(tableReplicas),
		dht.RoutingTableRefreshPeriod(t.refresh),
		dht.RoutingTableRefreshQueryTimeout(t.query),
		dht.BootstrapPeersFunc(bootstrap),
	}
	if t.open {
		opts = append(opts,
			dht.QueryFilter(dht.PublicQueryFilter),
			dht.RoutingTableFilter(dht.PublicRoutingTableFilter),
			dht.RoutingTablePeerDiversityFilter(dht.NewRTPeerDiversityFilter(h,
				amino.DefaultMaxPeersPerIPGroupPerCpl, amino.DefaultMaxPeersPerIPGroup)),
			dht.AddressFilter(publicOnly))
	}
	return dht.New(h, opts...)
}

// mode is the profile's, but a peer that nobody introduces founds its network: if it
// waited, as automatic mode does, for others to confirm that it can be reached, there
// would never be a server to wait for.
func mode(c *Config, t profileSettings) dht.ModeOpt {
	if t.mode == dht.ModeAuto && len(c.Bootstrap) == 0 {
		return dht.ModeAutoServer
	}
	return t.mode
}

// publicOnly keeps a stranger from making this peer dial its own private network.
func publicOnly(addrs []multiaddr.Multiaddr) []multiaddr.Multiaddr {
	return multiaddr.FilterAddrs(addrs, manet.IsPublicAddr)
}
