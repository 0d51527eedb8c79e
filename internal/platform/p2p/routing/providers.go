package routing

import (
	"context"
	"encoding/base32"
	"math"
	"strings"

	"github.com/hashicorp/golang-lru/simplelru"
	ds "github.com/ipfs/go-datastore"
	"github.com/ipfs/go-datastore/query"
	dht "github.com/libp2p/go-libp2p-kad-dht"
	dhtpb "github.com/libp2p/go-libp2p-kad-dht/pb"
	"github.com/libp2p/go-libp2p-kad-dht/records"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
)

// Providers finds the providers of a key of the DHT, a multihash. It bounds its answer. Nil: nobody.
type Providers func(multihash []byte) []peer.ID

// Options let a DHT answer GET_PROVIDERS from p. kad-dht takes no provider store, but the datastore below its own one, of which this is
// a view: nothing that strangers say of themselves is stored, so ADD_PROVIDER is refused.
func (p Providers) Options() []dht.Option {
	if p == nil {
		return []dht.Option{dht.DisableProviders()}
	}
	return []dht.Option{
		dht.ProviderDatastore(providerView{ds.NewNullDatastore(), p}),
		dht.ProviderManagerOpts(records.Cache(forgetful{}), records.CleanupInterval(0), records.ProvideValidity(math.MaxInt64)),
		dht.OnRequestHook(func(_ context.Context, _ network.Stream, m *dhtpb.Message) {
			if m.GetType() == dhtpb.Message_ADD_PROVIDER {
				m.ProviderPeers = nil // of whom the handler finds none valid
			}
		}),
	}
}

// providerView is a datastore of provider records. It stores nothing.
type providerView struct {
	*ds.NullDatastore
	find Providers
}

// Query implements ds.Datastore: kad-dht asks for the providers of one key by its prefix.
func (v providerView) Query(_ context.Context, q query.Query) (query.Results, error) {
	var found []query.Entry
	since := []byte{0} // 1970 as a varint: the offer's own expiry counts
	text := base32.StdEncoding.WithPadding(base32.NoPadding)
	key, err := text.DecodeString(strings.TrimPrefix(q.Prefix, records.ProvidersKeyPrefix))
	if err == nil && len(key) > 0 {
		for _, id := range v.find(key) {
			found = append(found, query.Entry{Key: q.Prefix + "/" + text.EncodeToString([]byte(id)), Value: since})
		}
	}
	return query.ResultsWithEntries(q, found), nil
}

// forgetful is the cache before the datastore. It keeps nothing, so that a withdrawn offer is gone at once.
type forgetful struct{ simplelru.LRUCache }

// Get implements simplelru.LRUCache. kad-dht calls nothing but Get and Add.
func (forgetful) Get(any) (any, bool) { return nil, false }

// Add implements simplelru.LRUCache.
func (forgetful) Add(_, _ any) bool { return false }
