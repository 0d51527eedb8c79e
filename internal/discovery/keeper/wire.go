package keeper

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/multiformats/go-varint"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/discovery/cell"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// memory is the part of a stream's scope that accounts for what its messages occupy.
type memory interface {
	ReserveMemory(size int, priority uint8) error
	ReleaseMemory(size int)
}

// frames reads and writes varint-delimited messages on one stream: the format of
// go-msgio/pbio, but with memory reserved before a stranger's length is believed, and
// without a buffer that stays as large as the largest message was.
type frames struct {
	r   *bufio.Reader
	w   io.Writer
	mem memory
}

func newFrames(rw io.ReadWriter, mem memory) *frames {
	return &frames{r: bufio.NewReader(rw), w: rw, mem: mem}
}

// wait blocks until the first byte of a message has come.
func (f *frames) wait() error {
	_, err := f.r.Peek(1)
	return err
}

// read takes one message. It returns TooLarge for one above limit, LimitReached for one
// that breaks a bound, Unauthentic for one that does not decode, and the stream's errors
// as they are.
func (f *frames) read(m proto.Message, limit int, bounds []opBound) error {
	size, err := varint.ReadUvarint(f.r)
	switch {
	case errors.Is(err, varint.ErrOverflow), errors.Is(err, varint.ErrNotMinimal):
		return malformed(err)
	case err != nil:
		return err
	case size > uint64(limit):
		return fault.New("", fault.TooLarge, "a message of %d bytes is above the bound of %d", size, limit)
	}
	if err := f.mem.ReserveMemory(int(size), network.ReservationPriorityMedium); err != nil {
		return fault.As("", fault.LimitReached, err)
	}
	defer f.mem.ReleaseMemory(int(size))
	buf := make([]byte, size)
	if _, err := io.ReadFull(f.r, buf); err != nil {
		return err
	}
	return decode(buf, m, bounds)
}

func decode(b []byte, m proto.Message, bounds []opBound) error {
	if err := checkBounds(b, bounds); err != nil {
		return err
	}
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(b, m); err != nil {
		return malformed(err)
	}
	return nil
}

// write sends one message.
func (f *frames) write(m proto.Message) error {
	size := proto.Size(m)
	whole := size + varint.UvarintSize(uint64(size))
	if err := f.mem.ReserveMemory(whole, network.ReservationPriorityMedium); err != nil {
		return fault.As("", fault.LimitReached, err)
	}
	defer f.mem.ReleaseMemory(whole)
	buf := protowire.AppendVarint(make([]byte, 0, whole), uint64(size))
	buf, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(buf, m)
	if err != nil {
		return fault.As("", fault.Internal, err)
	}
	_, err = f.w.Write(buf)
	return err
}

func malformed(err error) error { return fault.As("", fault.Unauthentic, err) }

// opBound limits one operation of a message before it is decoded.
type opBound struct {
	op    protowire.Number // its field in the message
	bytes int              // most it may occupy; 0 is no bound of its own
	lists []listBound
}

// listBound limits a repeated field of an operation, in all, and what is repeated in it.
type listBound struct {
	field protowire.Number
	name  string
	most  int
	lists []listBound
}

// splitBounds and summaryBounds limit what is repeated in messages of these kinds.
func splitBounds() []listBound {
	return []listBound{{3, "splits.children", maxParts, summaryBounds()}}
}

func summaryBounds() []listBound {
	return []listBound{{3, "summaries.prices", maxParts * cell.MaxPrices, nil}}
}

func requestBounds() []opBound {
	return []opBound{
		{op: 2, lists: []listBound{{1, "store.items", MaxItems, nil}}},
		{op: 3, bytes: maxQueryRequest, lists: []listBound{{2, "query.cells", MaxQueryCells, nil}}},
		{op: 4, bytes: maxQueryRequest, lists: []listBound{{1, "summary.cells", MaxQueryCells, nil}}},
		{op: 5, bytes: maxSyncRequest, lists: []listBound{{3, "sync.cells", maxSyncCells, nil}}},
		{op: 6, bytes: maxQueryRequest},
		{op: 7, bytes: maxWatchRequest, lists: []listBound{{2, "watch.cells", MaxQueryCells, nil}}},
	}
}

func responseBounds() []opBound {
	return []opBound{
		{op: 2, lists: []listBound{{1, "store.results", MaxItems, nil}, {2, "store.splits", MaxQueryCells, splitBounds()}}},
		{op: 3, lists: []listBound{
			{1, "query.envelopes", query.MaxLimit, nil}, {5, "query.not_kept", MaxQueryCells, nil},
			{6, "query.splits", MaxQueryCells, splitBounds()},
		}},
		{op: 4, lists: []listBound{
			{1, "summary.summaries", MaxQueryCells, summaryBounds()}, {2, "summary.not_kept", MaxQueryCells, nil},
		}},
		{op: 5, lists: []listBound{{3, "sync.cells", maxCellsListed, nil}}},
		{op: 6, lists: []listBound{{1, "pull.envelopes", maxPull, nil}}},
		{op: 7, lists: []listBound{{3, "watch.envelopes", max(watchBatch, watchHave), nil}}},
	}
}

// checkBounds counts what a message repeats before it is decoded: two bytes on the wire
// are an item of a hundred in memory, so a megabyte could otherwise take fifty.
func checkBounds(b []byte, bounds []opBound) error {
	counts := make(map[string]int)
	return fields(b, func(n protowire.Number, op []byte) error {
		i := slices.IndexFunc(bounds, func(b opBound) bool { return b.op == n })
		if i < 0 {
			return nil
		}
		if most := bounds[i].bytes; most > 0 && len(op) > most {
			return fault.New("", fault.TooLarge, "an operation of %d bytes is above the bound of %d", len(op), most)
		}
		return checkLists(op, bounds[i].lists, counts)
	})
}

func checkLists(b []byte, lists []listBound, counts map[string]int) error {
	return fields(b, func(n protowire.Number, item []byte) error {
		for _, l := range lists {
			if l.field != n {
				continue
			}
			if counts[l.name]++; counts[l.name] > l.most {
				return &fault.Error{Kind: fault.LimitReached, Field: l.name, Err: fmt.Errorf("more than %d", l.most)}
			}
			if l.lists != nil {
				return checkLists(item, l.lists, counts)
			}
		}
		return nil
	})
}

// fields walks the length-delimited fields of a message; others are skipped.
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

// refusalOf is the form of an error that crosses the wire; nil for nil.
func refusalOf(err error) *pb.Refusal {
	if err == nil {
		return nil
	}
	return &pb.Refusal{
		Kind:    uint32(fault.KindOf(err)),
		Field:   clip(fault.FieldOf(err)),
		Message: clip(fault.Message(err)),
	}
}

// faultOf is the error that a refusal stands for; nil for nil. A kind that this version
// does not know keeps its number.
func faultOf(op string, r *pb.Refusal) error {
	if r == nil {
		return nil
	}
	kind := fault.Internal
	if r.Kind <= math.MaxUint8 {
		kind = fault.Kind(r.Kind)
	}
	message := clip(r.Message)
	if message == "" {
		message = kind.String()
	}
	return &fault.Error{Op: op, Kind: kind, Field: clip(r.Field), Err: errors.New(message)}
}

// clip makes a string fit for a message and for a log.
func clip(s string) string {
	if len(s) > maxRefusalText {
		s = s[:maxRefusalText]
	}
	return strings.ToValidUTF8(s, "?")
}
