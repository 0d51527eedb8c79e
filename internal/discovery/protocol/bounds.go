package protocol

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/fault"
)

// opBounds limit the operations of a message before it is decoded.
type opBounds []opBound

// opBound limits one operation of a message.
type opBound struct {
	op    protowire.Number // field number of the operation
	bytes int              // maximum length; zero means no separate limit
	lists []listBound
}

// listBound limits the total number of a repeated field in an operation.
type listBound struct {
	field protowire.Number
	name  string
	most  int
}

func requestBounds() opBounds {
	return opBounds{
		{op: 2, lists: []listBound{{1, "store.items", MaxItems}}},
		{op: 3, bytes: maxQueryRequest, lists: []listBound{{2, "query.cells", MaxQueryCells}}},
		{op: 5, bytes: maxSyncRequest, lists: []listBound{{3, "sync.cells", SyncCells}}},
		{op: 6, bytes: maxQueryRequest},
		{op: 9, bytes: maxQueryRequest},
		{op: 10, bytes: maxFindingsRequest, lists: []listBound{{1, "findings.providers", MaxFindings}, {3, "findings.records", MaxFindings}}},
		{op: 11, lists: []listBound{{2, "forward.items", MaxItems}}},
	}
}

func responseBounds() opBounds {
	return opBounds{
		{op: 2, lists: []listBound{{1, "store.results", MaxItems}, {4, "store.full", MaxQueryCells}}},
		{op: 3, lists: []listBound{
			{1, "query.envelopes", queries.MaxLimit}, {5, "query.not_kept", MaxQueryCells},
			{9, "query.beyond", MaxBeyond}, {14, "query.full", MaxQueryCells},
		}},
		{op: 5, lists: []listBound{{3, "sync.cells", CellsListed}}},
		{op: 6, lists: []listBound{{1, "pull.envelopes", PullRecords}}},
		{op: 10, lists: []listBound{{1, "findings.statements", MaxTold}}},
		{op: 11, lists: []listBound{{1, "forward.results", MaxItems}, {2, "forward.full", MaxQueryCells}}},
	}
}

// check counts the repeated fields of a message before decoding: two bytes on the wire can
// become a hundred in memory, so one megabyte could otherwise take fifty.
func (bounds opBounds) check(b []byte) error {
	counts := make(map[string]int)
	return fields(b, func(n protowire.Number, op []byte) error {
		i := slices.IndexFunc(bounds, func(b opBound) bool { return b.op == n })
		if i < 0 {
			return nil
		}
		if most := bounds[i].bytes; most > 0 && len(op) > most {
			return fault.New("", fault.TooLarge, "an operation of %d bytes exceeds the maximum of %d", len(op), most)
		}
		return checkLists(op, bounds[i].lists, counts)
	})
}

func checkLists(b []byte, lists []listBound, counts map[string]int) error {
	return fields(b, func(n protowire.Number, _ []byte) error {
		for _, l := range lists {
			if l.field != n {
				continue
			}
			if counts[l.name]++; counts[l.name] > l.most {
				return &fault.Error{Kind: fault.LimitReached, Field: l.name, Err: fmt.Errorf("more than %d", l.most)}
			}
		}
		return nil
	})
}

// fields calls visit for each length-delimited field of a message.
func fields(b []byte, visit func(protowire.Number, []byte) error) error {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return malformed(protowire.ParseError(n))
		}
		b = b[n:]
		if kind == protowire.BytesType {
			v, n := protowire.ConsumeBytes(b)
			if n < 0 {
				return malformed(protowire.ParseError(n))
			}
			if err := visit(number, v); err != nil {
				return err
			}
		}
		if n = protowire.ConsumeFieldValue(number, kind, b); n < 0 {
			return malformed(protowire.ParseError(n))
		}
		b = b[n:]
	}
	return nil
}

func malformed(err error) error { return fault.As("", fault.Unauthentic, err) }
