package join

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	ds "github.com/ipfs/go-datastore"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/multiformats/go-multiaddr"

	"github.com/blackhole/blackhole/internal/platform/pause"
	"github.com/blackhole/blackhole/internal/platform/store"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/network"
)

const (
	maxKnown      = 64      // peers
	maxKnownAddrs = 8       // addresses of one peer
	maxKnownBytes = 1 << 20 // length of the stored list
	saveEvery     = time.Minute
)

// Known stores peers of the routing table across restarts, because kad-dht does not. Without them, a peer
// that restarts while all bootstrap peers are down is lost. The list is soft state: a damaged list counts as
// empty. Each network has its own.
type Known struct {
	store ds.Datastore
	key   ds.Key
	log   *slog.Logger

	mu    sync.Mutex
	list  []peer.AddrInfo // newest first; guarded by mu
	saved []byte          // the stored bytes; guarded by mu
}

// knownFormat is the version of a list: JSON after the first line.
func knownFormat() store.Format[[]byte] { return store.Format[[]byte]{Name: "list of known peers"} }

// OpenKnown reads the list. Error: Unsupported for a list of a later version.
func OpenKnown(ctx context.Context, datastore ds.Datastore, n network.Name, log *slog.Logger) (*Known, error) {
	k := &Known{store: datastore, key: ds.NewKey("/p2p/known/" + n.String()), log: log}
	data, err := datastore.Get(ctx, k.key)
	if errors.Is(err, ds.ErrNotFound) {
		return k, nil
	}
	if err == nil {
		k.saved = data
		data, _, err = knownFormat().Unseal("key "+k.key.String()+" of the datastore", data)
	}
	if fault.KindOf(err) == fault.Unsupported {
		return nil, err
	}
	if err == nil {
		k.list, err = decodeKnown(data)
	}
	if err != nil {
		log.Warn("the stored list of known peers is unreadable; only bootstrap peers lead into the network", "err", err)
	}
	return k, nil
}

// decodeKnown reads a stored list and enforces its bounds.
func decodeKnown(data []byte) ([]peer.AddrInfo, error) {
	if len(data) > maxKnownBytes {
		return nil, fault.New("join.decodeKnown", fault.TooLarge, "list of %d bytes exceeds %d bytes", len(data), maxKnownBytes)
	}
	var list []peer.AddrInfo
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, fault.As("join.decodeKnown", fault.Invalid, err)
	}
	return mergeKnown(list, nil), nil
}

// mergeKnown joins both lists within the bounds, newer entries first, without duplicates.
func mergeKnown(newer, older []peer.AddrInfo) []peer.AddrInfo {
	seen := make(map[peer.ID]bool, maxKnown)
	merged := make([]peer.AddrInfo, 0, maxKnown)
	for _, p := range slices.Concat(newer, older) {
		if len(merged) == maxKnown {
			break
		}
		if p.ID == "" || len(p.Addrs) == 0 || seen[p.ID] {
			continue
		}
		seen[p.ID] = true
		addrs := slices.Clone(p.Addrs[:min(len(p.Addrs), maxKnownAddrs)])
		merged = append(merged, peer.AddrInfo{ID: p.ID, Addrs: addrs})
	}
	return merged
}

// Peers returns a copy of the list.
func (k *Known) Peers() []peer.AddrInfo {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.list)
}

// save merges the present peers into the list and stores changes. An empty present changes nothing, so that a
// peer without contact keeps its list.
func (k *Known) save(ctx context.Context, present []peer.AddrInfo) error {
	present = slices.Clone(present)
	for i, p := range present {
		addrs := slices.Clone(p.Addrs)
		slices.SortFunc(addrs, func(a, b multiaddr.Multiaddr) int { return bytes.Compare(a.Bytes(), b.Bytes()) })
		present[i].Addrs = addrs
	}
	slices.SortFunc(present, func(a, b peer.AddrInfo) int { return cmp.Compare(a.ID, b.ID) })

	k.mu.Lock()
	defer k.mu.Unlock()
	list := mergeKnown(present, k.list)
	data, err := json.Marshal(list)
	if err != nil {
		return fault.Wrap("join.saveKnown", err)
	}
	if data = knownFormat().Seal(data); bytes.Equal(data, k.saved) {
		return nil
	}
	if err := k.store.Put(ctx, k.key, data); err != nil {
		return fault.Wrap("join.saveKnown", err)
	}
	k.list, k.saved = list, data
	return nil
}

// Run saves the present peers and the values of the DHT every minute and at the end of ctx.
func (k *Known) Run(ctx context.Context, present func() []peer.AddrInfo) {
	for alive := true; alive; {
		alive = pause.For(ctx, saveEvery)
		// Without ctx: the last save follows its end.
		own := context.WithoutCancel(ctx)
		if err := errors.Join(k.save(own, present()), k.store.Sync(own, ds.NewKey("/"))); err != nil {
			k.log.Warn("saving the list of known peers failed; after a restart, only bootstrap peers lead into the network", "err", err)
		}
	}
}
