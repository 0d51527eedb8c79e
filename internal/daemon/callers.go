package daemon

import (
	"context"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/blackhole/blackhole/internal/daemon/recent"
	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/internal/platform/metrics"
	"github.com/blackhole/blackhole/pkg/fault"
)

const (
	fewestCallers = 64        // connections of callers on a system with few descriptors
	mostCallers   = 1 << 14   // and on one with many
	callerShare   = 256 << 10 // bytes of the memory limit for each: one of gRPC has buffers of 16 KiB, tables, and calls that begin

	refusalLines = time.Minute // between the lines of the log on one pool
	// exhausted is how long the condition of a full pool outlasts its last refusal.
	exhausted = time.Minute
)

// places tells the operator of callers that got no place of a pool, here or in the group: by a metric, by a line a minute for each pool, and
// by a condition while a pool is full.
type places struct {
	metrics    *metrics.Discovery
	conditions *condition.Set
	memory     *recent.Memory
	log        *slog.Logger
	over       *time.Timer // ends the condition
	told       sync.Map    // resource to *told
}

// told is when the operator is told again of a pool. Thousands may be refused at once, and must not wait for each other.
type told struct{ line, full atomic.Int64 }

// due reports whether it is time again, and not again for a while.
func due(next *atomic.Int64, every time.Duration) bool {
	now, at := time.Now().UnixNano(), next.Load()
	return now >= at && next.CompareAndSwap(at, now+int64(every))
}

// newPlaces returns places that work until close.
func newPlaces(m *metrics.Discovery, conditions *condition.Set, memory *recent.Memory, log *slog.Logger) *places {
	return &places{
		metrics: m, conditions: conditions, memory: memory, log: log,
		over: time.AfterFunc(exhausted, func() { conditions.Clear(condition.PoolExhausted) }),
	}
}

func (p *places) close() error {
	p.over.Stop()
	return nil
}

// refused hears of a caller without a place.
func (p *places) refused(r access.Refusal) {
	p.metrics.PlaceRefused(r.Resource, r.Reason())
	found, ok := p.told.Load(r.Resource)
	if !ok {
		found, _ = p.told.LoadOrStore(r.Resource, &told{})
	}
	of := found.(*told)
	if due(&of.line, refusalLines) {
		p.log.Warn("a caller got no place of a pool", "resource", r.Resource, "reason", r.Reason(), "caller", r.Client, "error", fault.Message(r.Err))
		if !r.Full {
			p.memory.ShareUsed(r.Resource, fault.Message(r.Err))
		}
	}
	if r.Full && due(&of.full, time.Second) {
		p.conditions.Raise(condition.PoolExhausted, fault.Problem{
			What: fault.Message(r.Err), Effect: "some callers are refused; the last one is " + r.Client,
			Remedy: "Give programs that share one address tokens of their own, or let each use one connection; blackhole_places_refused_total counts",
		})
		p.over.Reset(exhausted)
	}
}

// ofPeers hears of a peer without a place of a pool for peers.
func (p *places) ofPeers(r access.Refusal) {
	r.Resource = "peer_" + r.Resource
	p.refused(r)
}

// ofGroup hears of a command that found no room in a pool of the group.
func (p *places) ofGroup(owner string, err error) {
	pool, share := fault.PoolOf(err)
	p.refused(access.Refusal{Resource: "group_" + pool, Full: !share, Client: owner, Err: err})
}

// newCallers bounds the connections of callers of HTTP and gRPC, together and for each client, by a quarter of the descriptors, and by a
// limit of memory; 0: unknown. Without a bound, they could take the descriptors that Raft, the storage, other peers and health need. It
// tells refused of each refused connection.
func newCallers(descriptors uint64, memory int64, refused func(access.Refusal)) *access.Connections {
	most := uint64(mostCallers)
	if memory > 0 {
		most = min(most, uint64(memory/callerShare))
	}
	return access.NewConnections(int(max(min(descriptors/4, most), fewestCallers)), refused)
}

// Bounds of the bytes of answers that callers have not taken yet, and of those of requests. A page of 2 MiB is the largest answer that many
// ask for.
const (
	fewestBytes = 8 << 20
	mostBytes   = 64 << 20
	bytesShare  = 16 // of the memory limit
)

// Bounds of the calls of gRPC at a time.
const (
	fewestCalls = 2048
	mostCalls   = 1 << 15
	callShare   = 128 << 10 // bytes of memory for each
)

// bounds are those of calls of the callers of HTTP and gRPC together, or of peers.
type bounds struct{ answers, requests, calls *access.Pool }

// newBounds makes bounds for a limit of memory; 0: unknown. A quarter is kept for whom known reports; nil: for nobody.
func newBounds(memory int64, leaf bool, refused func(access.Refusal), known func(context.Context) bool) bounds {
	if memory <= 0 {
		memory = math.MaxInt64
	}
	if leaf {
		memory = 0
	}
	answers := access.NewPool("answer_bytes", int(min(max(memory/bytesShare, fewestBytes), mostBytes)), refused).Keep(known)
	calls := access.NewPool("calls", int(min(max(memory/callShare, fewestCalls), mostCalls)), refused).Keep(known)
	return bounds{answers, answers.Twin("request_bytes"), calls}
}
