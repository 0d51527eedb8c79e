package protocol

import (
	"runtime"
	"time"

	"github.com/blackhole/blackhole/pkg/geo"
)

// Bounds of the protocol, equal on both sides. A message above a bound is refused.
const (
	// MaxItems bounds the items of one STORE message.
	MaxItems = 1000
	// MaxItemCells bounds the cells of one item. A record belongs to at most that many: its
	// subtype and any subtype, at each length and Global, and its provider's cell.
	MaxItemCells = 2*(1+geo.DeepLen) + 1
	// MaxQueryCells bounds the cells of one QUERY message.
	MaxQueryCells = 64
	// MaxRequest bounds a request on the wire, in bytes.
	MaxRequest = 1 << 20
	// MaxAnswer bounds the total size of the envelopes in one QUERY answer, in bytes.
	MaxAnswer = 2 << 20

	MaxBeyond       = 64                // records that a keeper cannot judge, in one QUERY answer
	maxQueryRequest = 96 << 10          // bytes of a QUERY: it has no large fields
	maxResponse     = MaxAnswer + 1<<20 // bytes of a response: the envelopes and everything else

	maxFindingsRequest = 8 << 10 // bytes

	SyncCells      = 64         // cells of one SYNC
	CellsListed    = 4096       // cells of one response
	EntriesListed  = 32768      // entries of one response
	maxSyncRequest = 512 * 1024 // bytes: 64 cells with their sums
	PullRecords    = 512        // records of one PULL
	PulledBytes    = 1 << 20    // bytes of the envelopes of one PULL
)

// Requests to other keepers and their service.
const (
	callsPerPeer = 16               // concurrent requests to one peer
	idlePerPeer  = 4                // idle streams to one peer
	idleStreams  = 256              // idle streams in total
	idleFor      = 30 * time.Second // lifetime of an idle stream; less than streamIdle, so that the server has not closed it
	streamIdle   = time.Minute      // maximum wait for the next request of a stream
	FrameTime    = 10 * time.Second // maximum time to receive or to send a message
	ServeMax     = 10 * time.Second // maximum work on one request

	AskedAtOnce = 2 // keepers of a group to ask at once, and full answers of a complete group

	hedgeAfter = 150 * time.Millisecond // hedge delay of a peer without observations
	hedgeMin   = 25 * time.Millisecond
	hedgeMax   = time.Second

	maxPeerStats = 1024             // peers with stats
	distrustFor  = 5 * time.Minute  // a peer is asked last after a protocol violation
	avoidFor     = 15 * time.Second // a peer is asked last after a failure
	avoidDoubled = 2                // times that avoidFor doubles, while there is no answer
	lackDoubled  = 5                // times that avoidFor doubles, while answers are outdated

	SyncEvery = 30 * time.Second // default interval of comparisons
)

// Limits are the bounds that an operator may change. A zero field has its default.
type Limits struct {
	Streams        int // streams served at a time; 512
	StreamsPerPeer int // streams served at a time for one peer; 32
	Working        int // requests processed at a time, further ones wait; half of the processors, at least 2

	// Records accepted from one address prefix (/24 of IPv4, /48 of IPv6).
	StoreRate  float64 // records per second; 100
	StoreBurst int     // records at once; 5000

	// Cell is the number of records of a cell; 20,000. It bounds memory: with fewer, questions ask more cells.
	Cell int

	// Loopback exempts the peers on loopback from the quota of their address, for networks of one machine. Elsewhere
	// loopback is an address prefix like any other.
	Loopback bool

	Sync time.Duration // interval of comparisons with other keepers; 30 s, negative disables them

	Lookup  time.Duration // lookup of the keepers of a cell; 1.5 s, then the peers found so far count
	Ask     time.Duration // answer of one keeper to a query; 2 s
	Query   time.Duration // whole query; 5 s
	Deliver time.Duration // one STORE message; 5 s
}

// withDefaults returns the limits with defaults for zero fields.
func (l Limits) withDefaults() Limits {
	orDefault(&l.Streams, 512)
	orDefault(&l.StreamsPerPeer, 32)
	orDefault(&l.Working, max(2, runtime.GOMAXPROCS(0)/2))
	orDefault(&l.StoreRate, 100)
	orDefault(&l.StoreBurst, 5000)
	orDefault(&l.Cell, 20_000)
	if l.Sync == 0 {
		l.Sync = SyncEvery
	}
	orDefault(&l.Lookup, 1500*time.Millisecond)
	orDefault(&l.Ask, 2*time.Second)
	orDefault(&l.Query, 5*time.Second)
	orDefault(&l.Deliver, 5*time.Second)
	return l
}

func orDefault[T int | float64 | time.Duration](v *T, d T) {
	if *v <= 0 {
		*v = d
	}
}
