package keeper

import (
	"time"

	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/records"
)

// Bounds of the protocol: both sides know them, and a peer that breaks one is refused.
const (
	// MaxItems bounds the items of one STORE message.
	MaxItems = 1000
	// MaxItemCells bounds the cells of one item: a record lives in at most that many,
	// those of its subtype and of any, at each length and Global.
	MaxItemCells = 2 * (geo.DeepLen - geo.MinLen + 2)
	// MaxQueryCells bounds the cells of one QUERY message.
	MaxQueryCells = 64
	// MaxRequest bounds a request on the wire, in bytes.
	MaxRequest = 1 << 20
	// MaxAnswer bounds the envelopes of one QUERY answer, in bytes together.
	MaxAnswer = 2 << 20

	maxQueryRequest = 64 << 10          // a QUERY has nothing large in it
	maxResponse     = MaxAnswer + 1<<20 // envelopes, their framing, and what else an answer says
	maxEnvelope     = records.MaxSize
)

// Placement.
const (
	// Replicas is how many peers keep a cell: those closest to its key, this peer included.
	Replicas = 10
	// Network is the size up to which every peer of a network keeps every cell. It is also
	// how many peers a lookup gives (k of Kademlia).
	Network = 20

	retainWithin = Replicas + 2 // a peer holds on to a cell while it is among this many closest
	acceptWithin = 2 * Replicas // a peer accepts a cell while it is among this many closest: responsibility moves with churn

	maxCachedCells = 4096             // keepers of so many cells
	keeperSetTTL   = 10 * time.Minute // parentepers the keepers of a cell
	wholeTTL       = 10 * time.Second // keepersrent everybody, which every join changes
	uncertainTTL   = 5 * time.Second  // keepersrent what a lookup did not settle
	failedTTL      = 5 * time.Second  // parentepers an answer with a peer in it that failed
	ownershipTTL   = 10 * time.Second // parentepers whether this peer keeps a cell
)

// Divided cells.
const (
	maxChildren       = 4096             // children told of in one message
	maxSplits         = 4096             // cells divided
	maxSuspected      = 256              // cells that may be divided by others
	surplusShare      = 20               // a cell full of few origins loses this part of its capacity more
	prefixesOfRecords = 1 << 17          // records whose publishers' addresses are known
	maxNearFull       = 128              // censuses of nearly full cells
	nearFullTTL       = 10 * time.Second // parentepers a census
	maintainEvery     = 30 * time.Second // between two looks at the divided cells
	refreshEvery      = 2 * time.Minute  // between two questions to a child's keepers
	refreshBatch      = 128              // children whose keepers are asked in one look
	maxHandOvers      = 4                // cells handed over at once
	handOverKeepers   = 3                // keepers that hand over the same record
	maxHints          = 8192             // keepersrent keepers on divided cells
	hintTTL           = 10 * time.Minute // less than cell.Grace
	maxSearchedCells  = 256              // cells that one query asks about
	searchWidth       = 16               // ... at once, below those of its cover
)

// Asking.
const (
	coverCells   = 9 // cells that a disc is covered with
	askedAtOnce  = 2 // keepers of a group asked at once, and full answers that make it complete
	lookups      = 16
	refreshes    = 4 // lookups that nobody waits for
	deliveries   = 16
	storeTimeout = time.Minute      // a Store of any size, when its caller does not say
	valueTimeout = 10 * time.Second // a value put into the DHT or got from it
	callsPerPeer = 16               // streams open to one peer at once

	idlePerPeer = 4                // client streams kept for the next request to a peer
	idleStreams = 256              // client streams kept in all
	idleFor     = 30 * time.Second // less than a server waits, so that a kept stream is usually alive

	hedgeAfter = 150 * time.Millisecond // the wait for a keeper of unknown speed
	hedgeMin   = 25 * time.Millisecond
	hedgeMax   = time.Second

	maxPeerStats = 1024             // track records of keepers
	distrustFor  = 5 * time.Minute  // after an answer that no honest keeper gives
	avoidFor     = 15 * time.Second // after a failure
	staleMax     = 10 * time.Minute // a record that lapsed so long ago is no difference of clocks
	avoidedShare = 5                // a peer that is avoided has this part of the usual time to take records
)

// Serving.
const (
	streamIdle   = time.Minute      // a served stream may wait so long for its next request
	frameTime    = 10 * time.Second // a message may take so long to arrive, or to leave
	serveMax     = 10 * time.Second // work on one request, whatever the asker allows
	serveDefault = 5 * time.Second  // ... when the asker does not say

	prefixesRemembered = 4096 // address prefixes with a quota
)

// Limits are the bounds that an operator may move. A zero field is its default.
type Limits struct {
	Streams        int // listener at once, of all peers; 512
	StreamsPerPeer int // listener at once, of one peer; 32
	Working        int // requests worked on at once; the others wait; 32

	// Records taken from one address prefix (/24 of IPv4, /48 of IPv6; loopback is exempt).
	StoreRate  float64 // a second; 100
	StoreBurst int     // at once; 5000

	Sync time.Duration // between two comparisons with the other keepers of the same cells; 30 s, negative: never

	Lookup  time.Duration // finding the keepers of a cell; 1.5 s, then the peers found so far are taken
	Ask     time.Duration // one keeper's answer to a query; 2 s
	Query   time.Duration // a whole query; 5 s
	Deliver time.Duration // one STORE message; 5 s
}

// withDefaults fills the fields that are zero.
func (l Limits) withDefaults() Limits {
	orDefault(&l.Streams, 512)
	orDefault(&l.StreamsPerPeer, 32)
	orDefault(&l.Working, 32)
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
