package keeper

import (
	"runtime"
	"time"

	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/records"
)

// Bounds of the protocol, equal on both sides. A message above a bound is refused.
const (
	// MaxItems bounds the items of one STORE message.
	MaxItems = 1000
	// MaxItemCells bounds the cells of one item. A record belongs to at most that many: its
	// subtype and any subtype, at each length and Global, and its provider's cell.
	MaxItemCells = 2*(geo.DeepLen-geo.MinLen+2) + 1
	// MaxQueryCells bounds the cells of one QUERY message.
	MaxQueryCells = 64
	// MaxRequest bounds a request on the wire, in bytes.
	MaxRequest = 1 << 20
	// MaxAnswer bounds the total size of the envelopes in one QUERY answer, in bytes.
	MaxAnswer = 2 << 20

	maxBeyond       = 64                // records that a keeper cannot judge, in one QUERY answer
	maxDoubt        = 200               // bytes of a keeper's reason for its lack of authority
	maxQueryRequest = 96 << 10          // bytes of a QUERY: it has no large fields
	maxResponse     = MaxAnswer + 1<<20 // bytes of a response: the envelopes and everything else
	maxEnvelope     = records.MaxSize
)

// Placement of cells.
const (
	// Replicas is the number of keepers of a cell: the peers closest to its key.
	Replicas = 10
	// Network is the maximum size of a small network, where every peer keeps every cell. It is
	// also the number of peers that a lookup returns (k of Kademlia).
	Network = 20

	retainWithin = Replicas + 2 // a peer holds a cell while it is among this many closest
	acceptWithin = 2 * Replicas // a peer accepts records of a cell while it is among this many closest, because of churn

	maxCachedCells = 4096             // cells with cached keepers
	keeperSetTTL   = 10 * time.Minute // lifetime of the keepers of a cell
	wholeTTL       = 10 * time.Second // lifetime of the peers of a small network: every join changes them
	uncertainTTL   = 5 * time.Second  // lifetime of an incomplete lookup
	failedTTL      = 5 * time.Second  // lifetime of a keeper set with a failed peer
	ownershipTTL   = 10 * time.Second // lifetime of the answer whether this peer keeps a cell
)

// Split cells.
const (
	maxChildren       = 4096             // children in one message
	maxSplits         = 4096             // split cells of this peer
	maxSuspected      = 256              // cells to check for a split at other keepers
	surplusShare      = 20               // a cell with few providers shrinks by 1/surplusShare below its capacity
	maxRecordPrefixes = 1 << 17          // records with a known sender address
	maxNearFull       = 128              // nearly full cells with provider counters
	nearFullTTL       = 10 * time.Second // lifetime of a provider counter
	maintainEvery     = 30 * time.Second // interval of split maintenance
	refreshEvery      = 2 * time.Minute  // interval of summary requests to the keepers of a child
	summaryTTL        = 10 * time.Second // lifetime of the summary of a whole cell after a change of the index; far less than cell.Grace
	refreshBatch      = 128              // children to refresh in one round of maintenance
	maxHandOvers      = 4                // concurrent hand-overs
	handOverKeepers   = 3                // keepers that hand over the same record
	maxHints          = 8192             // split hints of other keepers
	hintTTL           = 10 * time.Minute // lifetime of a split hint; less than cell.Grace
	maxSearchedCells  = 256              // cells of one query
	searchWidth       = 16               // child cells of one query at a time
)

// Requests to other keepers.
const (
	coverCells     = 9 // cells that cover the disc of a query
	askedAtOnce    = 2 // keepers of a group to ask at once, and full answers of a complete group
	lookups        = 16
	manyCells      = 4 * lookups                                  // a call with more cells starts their lookups gradually
	refreshes      = 4                                            // lookups in the background
	deliveries     = (2*(geo.MaxLen-geo.MinLen+2) + 1) * Replicas // at a time: all keepers of one record
	inFlight       = 500                                          // records of one Store under way to keepers, each keeper's counted
	storeTimeout   = time.Minute                                  // of a Store without a deadline
	resolveTimeout = 10 * time.Second                             // of a Resolve without a deadline
	callsPerPeer   = 16                                           // concurrent requests to one peer

	maxAcks = 1 << 14         // acknowledgements of own records: 100 records at 130 keepers, with room
	ackTTL  = 5 * time.Minute // lifetime of an acknowledgement; less than hintTTL, which it must not outlive

	idlePerPeer = 4                // idle streams to one peer
	idleStreams = 256              // idle streams in total
	idleFor     = 30 * time.Second // lifetime of an idle stream; less than streamIdle, so that the server has not closed it

	hedgeAfter = 150 * time.Millisecond // hedge delay of a peer without observations
	hedgeMin   = 25 * time.Millisecond
	hedgeMax   = time.Second

	maxPeerStats = 1024             // peers with stats
	distrustFor  = 5 * time.Minute  // a peer is asked last after a protocol violation
	avoidFor     = 15 * time.Second // a peer is asked last after a failure
	avoidedShare = 5                // an avoided peer gets 1/avoidedShare of the usual time for a delivery
)

// Service of requests.
const (
	streamIdle   = time.Minute      // maximum wait for the next request of a stream
	frameTime    = 10 * time.Second // maximum time to receive or to send a message
	serveMax     = 10 * time.Second // maximum work on one request
	serveDefault = 5 * time.Second  // maximum work on a request without a timeout

	maxPrefixes = 4096 // address prefixes with a quota

	bulkRate = 8 << 20 // bytes a second of the answers to comparisons; a joining peer asks many keepers at once
)

// Limits are the bounds that an operator may change. A zero field has its default.
type Limits struct {
	Streams        int // streams served at a time; 512
	StreamsPerPeer int // streams served at a time for one peer; 32
	Working        int // requests processed at a time, further ones wait; half of the processors, at least 2

	// Records accepted from one address prefix (/24 of IPv4, /48 of IPv6).
	StoreRate  float64 // records per second; 100
	StoreBurst int     // records at once; 5000

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
	if l.Sync == 0 {
		l.Sync = syncEvery
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
