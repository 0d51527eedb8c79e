// Package routing is the DHT as keepers use it: the closest peers to a key, values, and answers about providers.
package routing

import (
	"context"
	"maps"
	"slices"
	"time"

	ds "github.com/ipfs/go-datastore"
	"github.com/ipfs/go-datastore/namespace"
	dht "github.com/libp2p/go-libp2p-kad-dht"
	"github.com/libp2p/go-libp2p-kad-dht/amino"
	kb "github.com/libp2p/go-libp2p-kbucket"
	record "github.com/libp2p/go-libp2p-record"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"

	"github.com/blackhole/blackhole/internal/platform/p2p/address"
	"github.com/blackhole/blackhole/internal/platform/p2p/dial"
	"github.com/blackhole/blackhole/internal/platform/pause"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/network"
)

const (
	// maxRecordAge is the lifetime of a value after its last put. Publishers repeat the put every few hours.
	maxRecordAge = 48 * time.Hour
	// Replicas is Kademlia's k: the size of a bucket and of a lookup's answer.
	Replicas = 20
	// freezeEvery is the time after which an entry of the routing table stays until its peer fails. While a peer
	// joins, kad-dht lets newcomers replace entries, and in full buckets the same few peers replace each other
	// for minutes. Keepers would take each of them for lost and returned.
	freezeEvery = 10 * time.Second
)

// Config are the settings of the DHT of one host.
type Config struct {
	Host           host.Host // without routing
	Network        network.Name
	Mode           dht.ModeOpt
	Open           bool          // peers are strangers on the Internet: filters of addresses and diversity apply
	Refresh, Query time.Duration // between two refreshes of the routing table; timeout of one lookup of a refresh
	Values         ds.Batching
	Namespaces     map[string]record.Validator // of values; all others are refused
	Providers      Providers
	// Bootstrap returns the entry points for an empty table.
	Bootstrap func() []peer.AddrInfo
	// HasBootstrap: bootstrap peers are configured. HasKnown: there are peers of an earlier run.
	HasBootstrap, HasKnown bool
}

// dhtProtocol returns the protocol of a network's DHT. A host handles it in server mode only.
func dhtProtocol(n network.Name) protocol.ID { return protocol.ID(n.Protocol("kad", "1.0.0")) }

// NewDHT builds the DHT as a router, as a store of the values in c.Namespaces, and as a view of c.Providers. It stores no provider
// records, which have no signatures. The caller closes it after the Routing and before the host.
func NewDHT(c Config) (*dht.IpfsDHT, error) {
	var h host.Host = dial.QuickHost{Host: c.Host}
	validators := make(record.NamespacedValidator)
	maps.Copy(validators, c.Namespaces)
	opts := []dht.Option{
		dht.ProtocolPrefix(protocol.ID(c.Network.Prefix())), // the rest is that of dhtProtocol
		dht.Mode(c.Mode),
		// Validator instead of NamespacedValidator, which would also accept /pk and /ipns: strangers could store
		// values that this network never reads.
		dht.Validator(validators),
		dht.ValueDatastore(namespace.Wrap(c.Values, ds.NewKey("/dht"))),
		dht.MaxRecordAge(maxRecordAge),
		dht.ValueGCInterval(time.Hour),
		dht.BucketSize(Replicas),
		dht.RoutingTableRefreshPeriod(c.Refresh),
		dht.RoutingTableRefreshQueryTimeout(c.Query),
		dht.BootstrapPeersFunc(c.Bootstrap),
	}
	opts = append(opts, c.Providers.Options()...)
	if c.Open {
		opts = append(opts,
			dht.QueryFilter(publicQuery),
			dht.RoutingTableFilter(publicTable(h)),
			dht.RoutingTablePeerDiversityFilter(dht.NewRTPeerDiversityFilter(h,
				amino.DefaultMaxPeersPerIPGroupPerCpl, amino.DefaultMaxPeersPerIPGroup)),
			dht.AddressFilter(address.Public))
		h = publicHost{h}
	}
	return dht.New(h, opts...)
}

// Serves returns an error for the DHT of another network, as far as that shows: a server handles its network's protocol.
func Serves(h host.Host, d *dht.IpfsDHT, n network.Name) error {
	if d.Mode() != dht.ModeServer || slices.Contains(h.Mux().Protocols(), dhtProtocol(n)) {
		return nil
	}
	return fault.Invalidf("dht", string(n), "does not speak %s: make it with the protocol prefix of the network", dhtProtocol(n))
}

// freeze keeps newcomers from replacing entries of a routing table, until ctx ends.
func freeze(ctx context.Context, table *kb.RoutingTable) {
	for pause.For(ctx, freezeEvery) {
		table.MarkAllPeersIrreplaceable()
	}
}
