package protocol

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/platform/bounded"
	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/internal/platform/strictproto"
	"github.com/blackhole/blackhole/pkg/fault"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

const (
	lackingTTL = 10 * time.Minute // until a keeper is asked again with a field that it lacked: an operator may have upgraded it
	maxLacking = 1024             // keepers

	// olderNetworks is the number of networks whose keepers raise the condition: one stranger alone must not degrade
	// the health of a peer.
	olderNetworks = 2
)

// lackingFields remembers what keepers of older versions do not know. While it remembers keepers in olderNetworks
// networks, the condition OlderKeepers holds. It is safe for concurrent use.
type lackingFields struct {
	now      func() time.Time
	signals  Signals
	prefixOf func(peer.ID) (netip.Prefix, bool)

	mu    sync.Mutex // guards peers
	peers *lru.Cache[peer.ID, lackingPeer]
}

type lackingPeer struct {
	fields  []string // paths in a Request, with names
	network string   // public address prefix; the peer id behind a private or unknown address
	until   time.Time
}

func newLacking(now func() time.Time, signals Signals, prefixOf func(peer.ID) (netip.Prefix, bool)) *lackingFields {
	return &lackingFields{now: now, signals: signals, prefixOf: prefixOf, peers: bounded.Shared[peer.ID, lackingPeer](maxLacking)}
}

// note adds what a keeper does not know according to its refusal, and counts it. Other errors have no effect.
func (l *lackingFields) note(id peer.ID, err error) {
	names := Lacks(err)
	if len(names) == 0 {
		return
	}
	now, network := l.now(), string(id)
	if from, ok := l.prefixOf(id); ok && !from.Addr().IsPrivate() {
		network = from.String()
	}
	l.mu.Lock()
	known, _ := l.peers.Get(id)
	if now.After(known.until) {
		known.fields = nil
	}
	for _, name := range names {
		if !slices.Contains(known.fields, name) && len(known.fields) < strictproto.MaxPaths {
			known.fields = append(slices.Clone(known.fields), name)
		}
	}
	known.network, known.until = network, now.Add(lackingTTL)
	l.peers.Add(id, known)
	l.mu.Unlock()
	for _, name := range names {
		l.signals.Metrics.Lacking(name)
	}
	l.tell(now)
}

// tell raises or clears the condition.
func (l *lackingFields) tell(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock() // also orders the changes of the condition
	fields, networks := make(map[string]bool), make(map[string]bool)
	for _, id := range l.peers.Keys() {
		p, _ := l.peers.Peek(id)
		if now.After(p.until) {
			l.peers.Remove(id)
			continue
		}
		networks[p.network] = true
		for _, name := range p.fields {
			fields[FieldName(name)] = true
		}
	}
	if len(networks) < olderNetworks {
		l.signals.Conditions.Clear(condition.OlderKeepers)
		return
	}
	l.signals.Conditions.Raise(condition.OlderKeepers, fault.Problem{
		What:   fmt.Sprintf("%d keepers of an older version do not know %s", l.peers.Len(), strings.Join(slices.Sorted(maps.Keys(fields)), ", ")),
		Effect: "answers that depend on it may be incomplete",
		Remedy: "Upgrade these peers: the column AGENT of `blackholed peer ls` has their versions",
	})
}

// FiltersOf returns the fields of a query that a keeper does not know.
func (l *lackingFields) filtersOf(id peer.ID) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	p, ok := l.peers.Get(id)
	if !ok || l.now().After(p.until) {
		return nil
	}
	return filtersIn(p.fields)
}

// Lacks returns the paths of a request that a keeper does not know according to its refusal, and this peer
// does.
func Lacks(err error) []string {
	if fault.KindOf(err) != fault.Unsupported {
		return nil
	}
	return strictproto.Names(new(pb.Request), strictproto.PathsOf(err))
}

// filtersIn returns the fields of the query among some paths of a request. The path of a part of a field counts
// as the field.
func filtersIn(paths []string) []string {
	var fields []string
	for _, path := range paths {
		parts := strings.Split(path, ".")
		if len(parts) > 2 && parts[1] == "query" && !slices.Contains(fields, parts[2]) {
			fields = append(fields, parts[2])
		}
	}
	return fields
}

// FieldName returns the last part of a path.
func FieldName(path string) string { return path[strings.LastIndexByte(path, '.')+1:] }
