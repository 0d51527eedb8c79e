package etcdapi

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"math"
	"sync"
	"time"

	pb "github.com/blackhole/blackhole/internal/frontend/etcdapi/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

const (
	noWatch       = -1              // the id of answers that belong to no watch
	fragmentBytes = 1536 << 10      // of events in one answer of a watch with fragments
	looking       = 2 * time.Second // for the present revision: then a mark waits for those of the watches
)

// Watch implements etcdserverpb.WatchServer. A refused or failed watch ends alone.
func (s *Server) Watch(stream grpc.BidiStreamingServer[pb.WatchRequest, pb.WatchResponse]) error {
	ctx, cancel := s.untilClosing(stream.Context())
	m := &multiplex{s: s, out: stream, running: map[int64]*watch{}}
	defer m.wait()
	defer cancel()
	received := make(chan error, 1)
	go func() { received <- m.receive(ctx) }() // ends with the stream's call, which unblocks Recv
	select {
	case err := <-received:
		if !errors.Is(err, io.EOF) {
			return err
		}
		<-ctx.Done() // watches go on after the last request
		return s.ended(ctx)
	case <-ctx.Done():
		return s.ended(ctx)
	}
}

// multiplex holds the watches of one stream.
type multiplex struct {
	s          *Server
	goroutines sync.WaitGroup

	mu      sync.Mutex // guards what follows; a stream takes one answer at a time
	out     grpc.BidiStreamingServer[pb.WatchRequest, pb.WatchResponse]
	running map[int64]*watch
	next    int64              // id to try for a watch without one
	due     *pb.ResponseHeader // of a mark of progress that the client waits for; nil: it waits for none
	ended   bool               // the call returns: nothing begins and nothing is sent
}

// wait ends the stream. Its context has ended.
func (m *multiplex) wait() {
	m.mu.Lock()
	m.ended = true
	m.mu.Unlock()
	m.goroutines.Wait()
}

// answer sends an answer. The caller holds the mutex.
func (m *multiplex) answer(r *pb.WatchResponse) error {
	if m.ended {
		return context.Canceled
	}
	return m.out.Send(r)
}

// watch is one watch of a stream.
type watch struct {
	id     int64
	req    *pb.WatchCreateRequest
	span   coord.Span
	stop   context.CancelFunc
	header *pb.ResponseHeader

	// Guarded by the multiplex:
	synced      int64 // every event up to this revision was sent
	ahead, upTo int64 // there is no event after ahead up to upTo
}

// advance notes that every event up to a revision was sent.
func (w *watch) advance(to int64) {
	if w.synced = max(w.synced, to); w.synced >= w.ahead {
		w.synced = max(w.synced, w.upTo)
	}
}

// passed reports whether a watch may tell that it has passed a revision. One that begins in the future has nothing to tell: a client would resume it too
// early.
func (w *watch) passed(revision int64) bool {
	return w.header != nil && w.synced >= max(revision, w.req.GetStartRevision()-1)
}

// shownBy returns the revision up to which an answer has all events.
func shownBy(b *apiv1.WatchKeysResponse) int64 {
	return min(b.GetHeader().GetRevision(), b.GetNextRevision()-1)
}

func (m *multiplex) receive(ctx context.Context) error {
	for {
		req, err := m.out.Recv()
		if err != nil {
			return err
		}
		switch r := req.GetRequestUnion().(type) {
		case *pb.WatchRequest_CreateRequest:
			err = m.create(ctx, r.CreateRequest)
		case *pb.WatchRequest_CancelRequest:
			m.mu.Lock()
			if w := m.running[r.CancelRequest.GetWatchId()]; w != nil {
				w.stop() // the watch answers with its end
			}
			m.mu.Unlock()
		case *pb.WatchRequest_ProgressRequest:
			err = m.progress(ctx)
		}
		if err != nil {
			return err
		}
	}
}

// progress looks for the present revision, and for what the watches of the stream lack of it. The client gets a mark as soon as all of them have sent
// their events up to this revision: mostly there are none. As in etcd there is no answer while a watch begins, and none without watches.
func (m *multiplex) progress(ctx context.Context) error {
	lacking, ok := m.lacking()
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, looking)
	defer cancel()
	began := false
	_ = m.s.Service.Watch(ctx, lacking.Request(), func(b *apiv1.WatchKeysResponse) error { // without the group there is no mark
		m.mu.Lock()
		defer m.mu.Unlock()
		if !began {
			began, m.due = true, header(b.GetHeader())
			return nil
		}
		upTo := shownBy(b)
		for _, w := range m.running {
			w.ahead, w.upTo = 0, upTo
			for _, e := range b.GetEvents() {
				if w.span.Contains(string(e.GetKv().GetKey())) {
					w.ahead = e.GetKv().GetModRevision()
				}
			}
			w.advance(0)
		}
		return cmp.Or(m.mark(), io.EOF) // one answer is enough
	})
	return nil
}

// lacking selects what the watches of the stream may have to send; false without a watch, or while one begins.
func (m *multiplex) lacking() (all coord.Watch, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	all.Mark = true
	for _, w := range m.running {
		if w.header == nil {
			return all, false
		}
		from := coord.Revision(w.synced + 1)
		if !ok {
			all.Span, all.From, ok = w.span, from, true
		}
		all.From, all.Span.From, all.Span.To = min(all.From, from), min(all.Span.From, w.span.From), max(all.Span.To, w.span.To) // each has an end
	}
	return all, ok
}

// mark sends the mark that the client waits for, if all watches have come so far. The caller holds the mutex.
func (m *multiplex) mark() error {
	if m.due == nil {
		return nil
	}
	at := proto.CloneOf(m.due)
	at.Revision = math.MaxInt64
	for _, w := range m.running {
		if !w.passed(m.due.Revision) {
			return nil
		}
		at.Revision = min(at.Revision, w.synced)
	}
	if m.due = nil; len(m.running) == 0 {
		return nil
	}
	return m.answer(&pb.WatchResponse{Header: at, WatchId: noWatch})
}

// lately returns the header of a state that a watch has shown here, as etcd that of its own copy; without one that of the present state. A watch
// that does not begin must not cost the group a read.
func (s *Server) lately(ctx context.Context) *pb.ResponseHeader {
	if h := s.shown.Load(); h != nil {
		return h
	}
	now, err := s.present(ctx)
	if err != nil {
		return &pb.ResponseHeader{}
	}
	return now
}

// refuse answers a request for a watch that does not begin. The stream's next request waits: to ask costs a client less than to be refused.
func (m *multiplex) refuse(ctx context.Context, reason string) error {
	last := &pb.WatchResponse{Header: m.s.lately(ctx), WatchId: noWatch, Created: true, Canceled: true, CancelReason: reason}
	m.mu.Lock()
	err := m.answer(last)
	m.mu.Unlock()
	if err == nil {
		m.s.refusals.Wait(ctx)
	}
	return err
}

// create begins a watch.
func (m *multiplex) create(ctx context.Context, req *pb.WatchCreateRequest) error {
	key := req.GetKey()
	if len(key) == 0 {
		key = []byte{0} // the smallest one
	}
	if req.GetStartRevision() < 0 {
		return m.refuse(ctx, rpctypes.ErrCompacted.Error())
	}
	if end := req.GetRangeEnd(); len(end) > 0 && !bytes.Equal(end, []byte{0}) && bytes.Compare(key, end) >= 0 {
		return m.refuse(ctx, "mvcc: watcher range is empty")
	}
	release, err := m.s.watches.Take(ctx, "etcdapi.Watch")
	if err != nil {
		return m.refuse(ctx, toStatus(err).Error())
	}
	watching, stop := context.WithCancel(ctx)
	w := &watch{req: req, span: m.s.keys.span(key, req.GetRangeEnd()), stop: stop}
	reason := m.add(w, func() {
		defer release()
		defer stop()
		err := m.follow(watching, w)
		if w.header == nil && err != nil {
			m.s.refusals.Wait(watching) // it has a place until then
		}
		m.end(ctx, w, err)
	})
	if reason == "" {
		return nil
	}
	stop()
	release()
	return m.refuse(ctx, reason)
}

// add gives a watch its id and runs it, or says why not.
func (m *multiplex) add(w *watch, run func()) (reason string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if w.id = w.req.GetWatchId(); w.id == 0 {
		for w.id = m.next; m.running[w.id] != nil; w.id++ {
		}
		m.next = w.id + 1
	}
	switch {
	case m.running[w.id] != nil:
		return "mvcc: duplicate watch ID provided on the WatchStream"
	case len(m.running) >= maxOnStream:
		return rpctypes.ErrGRPCRequestTooManyRequests.Error()
	case m.ended:
		return rpctypes.ErrGRPCStopped.Error()
	}
	m.running[w.id] = w
	m.goroutines.Go(run)
	return ""
}

// follow sends the events of a watch until its end.
func (m *multiplex) follow(ctx context.Context, w *watch) error {
	start := w.req.GetStartRevision()
	err := m.s.readable(ctx, start)
	if err != nil {
		return err
	}
	selected := &coord.Watch{Span: w.span, From: coord.Revision(start), Prev: w.req.GetPrevKv(), Mark: w.req.GetProgressNotify()}
	return m.s.Service.Watch(ctx, selected.Request(), func(b *apiv1.WatchKeysResponse) error {
		m.mu.Lock()
		defer m.mu.Unlock()
		created := w.header == nil
		w.header = header(b.GetHeader())
		m.s.shown.Store(w.header)
		if w.advance(shownBy(b)); created {
			err = m.answer(&pb.WatchResponse{Header: w.header, WatchId: w.id, Created: true})
		} else {
			err = m.send(w, m.s.events(w, b.GetEvents()), len(b.GetEvents()) == 0)
		}
		return cmp.Or(err, m.mark())
	})
}

// send sends events, in fragments if the client takes them, or a mark of progress if it wants one. The caller holds the mutex.
func (m *multiplex) send(w *watch, events []*mvccpb.Event, mark bool) error {
	if len(events) == 0 {
		if !mark || !w.req.GetProgressNotify() || !w.passed(0) {
			return nil
		}
		at := proto.CloneOf(w.header) // a refusal on another stream may be sending w.header
		at.Revision = w.synced
		return m.answer(&pb.WatchResponse{Header: at, WatchId: w.id})
	}
	for len(events) > 0 {
		n, size := 1, proto.Size(events[0])
		for n < len(events) && (!w.req.GetFragment() || size+proto.Size(events[n]) <= fragmentBytes) {
			size += proto.Size(events[n])
			n++
		}
		if err := m.answer(&pb.WatchResponse{Header: w.header, WatchId: w.id, Events: events[:n], Fragment: n < len(events)}); err != nil {
			return err
		}
		events = events[n:]
	}
	return nil
}

// events returns those that a watch selects, as etcd has them.
func (s *Server) events(w *watch, all []*apiv1.KeyEvent) (events []*mvccpb.Event) {
	for _, e := range all {
		put := e.GetType() == apiv1.KeyEvent_PUT
		if !w.span.Contains(string(e.GetKv().GetKey())) || w.filtered(put) {
			continue
		}
		out := &mvccpb.Event{Type: mvccpb.Event_PUT, Kv: s.keys.kv(e.GetKv()), PrevKv: s.keys.kv(e.GetPrevKv())}
		if !put {
			out.Type = mvccpb.Event_DELETE
		}
		events = append(events, out)
	}
	return events
}

func (w *watch) filtered(put bool) bool {
	for _, f := range w.req.GetFilters() {
		if put && f == pb.WatchCreateRequest_NOPUT || !put && f == pb.WatchCreateRequest_NODELETE {
			return true
		}
	}
	return false
}

// end forgets a watch and tells the client why. The stream's own end needs no answer, and a client that takes none has gone.
func (m *multiplex) end(ctx context.Context, w *watch, err error) {
	last := &pb.WatchResponse{Header: w.header, WatchId: w.id, Canceled: true}
	compacted := new(coord.Compacted)
	switch {
	case ctx.Err() != nil:
		return
	case errors.As(err, &compacted):
		last.CompactRevision = int64(compacted.Revision) + 1 // from which a watch can begin
	case err != nil && fault.KindOf(err) != fault.Canceled:
		last.CancelReason = toStatus(err).Error()
	}
	if last.CompactRevision > 0 {
		last.CancelReason = rpctypes.ErrCompacted.Error()
	}
	if last.Header == nil { // it never began
		last.Header = m.s.lately(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.running, w.id)
	if w.header == nil {
		_ = m.answer(&pb.WatchResponse{Header: last.Header, WatchId: w.id, Created: true})
	}
	_ = m.answer(last)
	_ = m.mark()
}
