package ask

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/discovery/digest"
	"github.com/blackhole/blackhole/internal/discovery/index"
	"github.com/blackhole/blackhole/internal/discovery/place"
	"github.com/blackhole/blackhole/internal/discovery/route"
	"github.com/blackhole/blackhole/internal/discovery/wire"
	"github.com/blackhole/blackhole/internal/platform/rpc"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// WATCH: a keeper streams the changes of cells that may matter for a plan. Each message has
// a cookie. A later stream resumes after it without loss, or begins with a reset: then the
// watcher queries the keepers again.
const (
	watchBeat        = 15 * time.Second // interval of keepalives
	watchSilence     = 3 * watchBeat    // timeout of a silent stream
	maxServedWatches = 256              // streams served
	maxPeerWatches   = 16               // streams served for one peer
	maxOwnWatches    = 256              // streams followed
)

var (
	errSplit   = errors.New("split cell: its keepers receive only some changes")
	errWatches = errors.New("this peer serves too many watches: try another keeper")
)

// Watches serves the watches of other peers. It is safe for concurrent use.
type Watches struct {
	*wire.Env
	authority *route.Authority
	splits    *place.Splits
	epoch     uint64                                                   // of the cookies: differs from those of earlier processes
	snapshot  func() (seq uint64, known map[digest.ID]*records.Record) // of the index, at most a little behind it
	streams   wire.PeerLimit
}

// NewWatches returns a server of no watches. Snapshot returns the records of the index by id.
func NewWatches(authority *route.Authority, s *place.Splits, snapshot func() (uint64, map[digest.ID]*records.Record)) *Watches {
	return &Watches{
		Env: authority.Env, authority: authority, splits: s, epoch: uint64(authority.Now().UnixNano()), snapshot: snapshot,
		streams: wire.PeerLimit{Total: maxServedWatches, PerPeer: maxPeerWatches},
	}
}

// Served returns the number of watches of a peer under way.
func (s *Watches) Served(id peer.ID) int { return s.streams.Of(id) }

// watchServer serves the watch of another peer.
type watchServer struct {
	*Watches
	plan  *query.Plan
	cells []records.CellKey
	at    uint64 // the last change of the index that the watcher has
	send  func(*pb.Response) error
}

// Serve serves a watch until the end of the stream: the watcher ends it, the position is lost, or
// this peer no longer keeps the cells. A refusal ends the stream at once.
func (s *Watches) Serve(st *rpc.Stream, req *pb.WatchRequest) (err error) {
	send := func(resp *pb.Response) error {
		_ = st.SetWriteDeadline(time.Now().Add(wire.FrameTime))
		return st.WriteMessage(resp)
	}
	id := st.Remote()
	w, have, err := s.newWatchServer(req)
	if err == nil && !s.streams.Enter(id) {
		err = fault.As("", fault.LimitReached, errWatches)
	} else if err == nil {
		defer s.streams.Leave(id)
	}
	if err != nil {
		s.Signals.Metrics.Refused(fault.KindOf(err).String())
		return send(&pb.Response{Refusal: rpc.Refuse(err)})
	}
	w.send = send
	ctx, cancel := context.WithCancel(s.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer cancel()
		_ = st.SetReadDeadline(time.Time{})
		_ = st.WaitMessage() // the watcher sends nothing more: this is the end of the stream
	}()
	defer func() {
		cancel()
		_ = st.CloseRead()
		<-ended
	}()
	if err := w.begin(req.GetAfter(), have); err != nil {
		return err
	}
	return w.run(ctx)
}

// newWatchServer parses a request. Errors: see parseQuery; Forbidden naming "cells" for cells
// of other keepers, Unsupported for split cells.
func (s *Watches) newWatchServer(req *pb.WatchRequest) (*watchServer, []digest.Entry, error) {
	plan, cells, err := parseQuery(&pb.QueryRequest{Query: req.GetQuery(), Cells: req.GetCells()})
	if err != nil {
		return nil, nil, err
	}
	have, err := digest.Parse(req.GetHave())
	if err != nil || len(have) > wire.WatchHave {
		return nil, nil, fault.Invalidf("have", len(req.GetHave()), "must be up to %d entries", wire.WatchHave)
	}
	w := &watchServer{Watches: s, plan: plan, cells: cells}
	return w, have, w.refusal()
}

// refusal returns nil while this peer sees all changes of the cells.
func (w *watchServer) refusal() error {
	if slices.ContainsFunc(w.cells, func(c records.CellKey) bool { return !w.authority.Accepts(c) }) {
		return wire.NotKept()
	}
	if _, some := w.splits.Partial(w.cells); some {
		return &fault.Error{Kind: fault.Unsupported, Field: "cells", Err: errSplit}
	}
	return nil
}

// begin resumes after a cookie, or starts anew with a reset and the newer versions of the
// watcher's records.
func (w *watchServer) begin(after *pb.Cookie, have []digest.Entry) error {
	if after != nil && after.Epoch == w.epoch {
		if _, _, lost := w.Index.After(after.Seq, 0); !lost {
			w.at = after.Seq
			return w.sendRecords(nil, false)
		}
	}
	seq, known := w.snapshot()
	if _, _, lost := w.Index.After(seq, 0); lost {
		seq = w.Index.Seq() // the query after the reset brings the changes in between
	}
	w.at = seq
	var fresher []*records.Record
	for _, e := range have {
		if r, ok := known[e.ID]; ok && digest.VersionOf(r.Sequence(), r.Digest()).Newer(e.Version) {
			fresher = append(fresher, r)
		}
	}
	return w.sendRecords(fresher, true)
}

// run sends changes as they arrive, and a keepalive in quiet times.
func (w *watchServer) run(ctx context.Context) error {
	beat := time.NewTicker(watchBeat)
	defer beat.Stop()
	for {
		changes, wait, lost := w.Index.After(w.at, wire.WatchBatch)
		if lost {
			return nil // the watcher opens a new stream and gets a reset
		}
		if len(changes) > 0 {
			if err := w.sendChanges(changes); err != nil {
				return err
			}
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-wait:
		case <-beat.C:
			if w.refusal() != nil {
				return nil
			}
			if err := w.sendRecords(nil, false); err != nil {
				return err
			}
		}
	}
}

// sendChanges moves past some changes and sends the relevant records.
func (w *watchServer) sendChanges(changes []index.Change) error {
	var news []*records.Record
	for _, ch := range changes {
		if w.concerns(ch) {
			news = append(news, ch.New)
		}
	}
	w.at = changes[len(changes)-1].Seq
	if len(news) == 0 {
		return nil
	}
	return w.sendRecords(news, false)
}

// concerns reports whether a change may alter the matches of the plan. The watcher notices the
// expiry of a record itself, and it may understand a record that this peer does not.
func (w *watchServer) concerns(ch index.Change) bool {
	if ch.New == nil || !w.inside(ch.New) && (ch.Old == nil || !w.inside(ch.Old)) {
		return false
	}
	return ch.Concerns(w.plan) || ch.Old == nil && ch.New.Withdrawn()
}

// inside reports whether a record lies in a watched cell.
func (w *watchServer) inside(r *records.Record) bool { return slices.ContainsFunc(w.cells, r.In) }

// sendRecords sends records in as many messages as necessary. Only the last message has the
// cookie: if the stream breaks in between, the watcher gets all records again.
func (w *watchServer) sendRecords(news []*records.Record, reset bool) error {
	m := &pb.WatchResponse{Reset_: reset}
	size := 0
	for _, r := range news {
		if size > 0 && size+len(r.Envelope()) > wire.PulledBytes {
			if err := w.send(&pb.Response{Op: &pb.Response_Watch{Watch: m}}); err != nil {
				return err
			}
			m, size = &pb.WatchResponse{}, 0
		}
		size += len(r.Envelope())
		if w.inside(r) {
			m.Envelopes = append(m.Envelopes, r.Envelope())
		} else {
			m.Left = append(m.Left, r.Envelope())
		}
	}
	m.Cookie = &pb.Cookie{Epoch: w.epoch, Seq: w.at}
	return w.send(&pb.Response{Op: &pb.Response_Watch{Watch: m}})
}
