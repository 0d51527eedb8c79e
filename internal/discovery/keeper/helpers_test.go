package keeper

import (
	"context"
	"crypto/sha256"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/discovery/keep"
	"github.com/blackhole/blackhole/internal/discovery/protocol"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// Times and numbers of the rooms that these tests rely on. A test that fails after the change of one needs a new look.
const (
	ackTTL           = 5 * time.Minute
	avoidedShare     = 5
	coverCells       = 9
	failedTTL        = 5 * time.Second
	hedgeAfter       = 150 * time.Millisecond
	hedgeMax         = time.Second
	idleFor          = 30 * time.Second
	keeperSetTTL     = 10 * time.Minute
	lookups          = 16
	maxQueryRequest  = 96 << 10
	maxSearchedCells = 1024
	streamIdle       = time.Minute
	syncGap          = 5 * time.Second
	syncSoon         = time.Second
	uncertainTTL     = 5 * time.Second
	viewTTL          = 2 * time.Second
	wholeTTL         = 10 * time.Second
)

// distanceOf is Kademlia's metric, without the code under test.
func distanceOf(key string, id peer.ID) (d [sha256.Size]byte) {
	at, own := sha256.Sum256([]byte(key)), sha256.Sum256([]byte(id))
	for i := range d {
		d[i] = at[i] ^ own[i]
	}
	return d
}

// askingOrder returns the order in which a keeper asks others.
func (k *Keeper) askingOrder(set *keep.Set) []peer.ID { return k.client.Rank(set.Nearest(k.Self)) }

// cellQuery is a query to the keepers of some cells.
type cellQuery struct {
	plan  *queries.Plan
	cells []records.CellKey
}

// ownAnswer is an answer of a keeper from its own index.
type ownAnswer struct {
	full  bool // the peer has authority for all the cells
	total int
	doubt string
}

func (k *Keeper) answerHere(q cellQuery) ownAnswer {
	resp, err := k.Asker.ServeQuery(context.Background(), &pb.QueryRequest{Query: queries.Proto(q.plan.Query()), Cells: protocol.CellNames(q.cells)})
	if err != nil {
		return ownAnswer{doubt: err.Error()}
	}
	return ownAnswer{full: len(resp.NotKept) == 0, total: int(resp.Total), doubt: resp.Doubt}
}
