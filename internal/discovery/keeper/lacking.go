package keeper

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/internal/platform/strictproto"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
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
	k *Keeper

	mu    sync.Mutex // guards peers
	peers *simplelru.LRU[peer.ID, lackingPeer]
}

type lackingPeer struct {
	fields  []string // paths in a Request, with names
	network string   // public address prefix; the peer id behind a private or unknown address
	until   time.Time
}

func newLacking(k *Keeper) *lackingFields {
	peers, err := simplelru.NewLRU[peer.ID, lackingPeer](maxLacking, nil)
	if err != nil {
		panic("keeper: " + err.Error()) // impossible: the size is a positive constant
	}
	return &lackingFields{k: k, peers: peers}
}

// note adds what a keeper does not know according to its refusal, and counts it. Other errors have no effect.
func (l *lackingFields) note(id peer.ID, err error) {
	names := lacks(err)
	if len(names) == 0 {
		return
	}
	now, network := l.k.Now(), string(id)
	if from, ok := l.k.asker.prefixOfPeer(id); ok && !from.Addr().IsPrivate() {
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
		l.k.Recorder.Lacking(name)
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
			fields[fieldName(name)] = true
		}
	}
	if len(networks) < olderNetworks {
		l.k.Signals.Conditions.Clear(condition.OlderKeepers)
		return
	}
	l.k.Signals.Conditions.Raise(condition.OlderKeepers, "%d keepers of an older version do not know %s: answers that depend on it may be incomplete until they are upgraded",
		l.peers.Len(), strings.Join(slices.Sorted(maps.Keys(fields)), ", "))
}

// filtersOf returns the fields of a query that a keeper does not know.
func (l *lackingFields) filtersOf(id peer.ID) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	p, ok := l.peers.Get(id)
	if !ok || l.k.Now().After(p.until) {
		return nil
	}
	return filtersIn(p.fields)
}

// lacks returns the paths of a request that a keeper does not know according to its refusal, and this peer
// does.
func lacks(err error) []string {
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

// fieldName returns the last part of a path.
func fieldName(path string) string { return path[strings.LastIndexByte(path, '.')+1:] }

// widen returns the plan to send to a keeper that does not know some fields of a query: without those that only
// filter, as far as the plan uses them. The caller filters the matches. Dropped is empty for the plan itself.
func widen(p *query.Plan, unknown []string) (wider *query.Plan, dropped []string) {
	for _, field := range unknown {
		if _, ok := query.Without(p, []string{field}); ok {
			dropped = append(dropped, field)
		}
	}
	if len(dropped) == 0 {
		return p, nil
	}
	wider, ok := query.Without(p, dropped)
	if !ok {
		return p, nil
	}
	return wider, dropped
}

// narrow turns an answer to a wider query into an answer to q. The keeper's bound covers more matches than
// those of q, so it may be too good, never too bad. If it withheld records that could be results of q, the answer
// is not full: another keeper has to answer.
func (a *answer) narrow(q cellQuery) {
	a.records = slices.DeleteFunc(a.records, func(r *records.Record) bool { return !q.matches(r) })
	a.beyond = slices.DeleteFunc(a.beyond, func(r *records.Record) bool { return !q.beyond(r) })
	a.total, a.atLeast = len(a.records), a.withheld
	if a.withheld && a.bound <= q.worst && a.bound < worstValue(q.plan, a.records) {
		a.full, a.withheld, a.bound = false, false, 0
	}
}
