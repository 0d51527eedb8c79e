package etcdapi

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	pb "github.com/blackhole/blackhole/internal/frontend/etcdapi/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

const (
	noWatch       = -1               // the id of answers that belong to no watch
	fragmentBytes = 1536 << 10       // of events in one answer of a watch with fragments
	watchBytes    = 1 << 10          // of a watch, beside its key and the end of its range
	waitBytes     = 16 << 10         // of a call that waits for the end of a key
	roomWithin    = 10 * time.Second // a watch without room waits so long, and then its stream ends
	markEvery     = 10 * time.Second // between two answers of a watch that wants marks
	looking       = 2 * time.Second  // for the present revision: then the next request of the stream is read
	wideAfter     = 8                // spans of the shared watch of a stream: the next one has all keys
)

// Watch implements etcdserverpb.WatchServer. A watch ends alone when the client ends it, when its revision is
// compacted, and when there can be no such watch. Without a majority it waits. Everything else ends the stream as
// Unavailable: then clients resume.
func (s *Server) Watch(stream grpc.BidiStreamingServer[pb.WatchRequest, pb.WatchResponse]) error {
	ctx, cancel := s.untilClosing(stream.Context())
	ctx, fail := context.WithCancelCause(ctx)
	m := &multiplex{
		s: s, ctx: ctx, fail: fail, turn: make(chan struct{}, 1), out: stream, running: map[int64]*watch{}, again: func() {},
	}
	defer m.wait()
	defer cancel()
	received := make(chan error, 1)
	go func() { received <- m.receive() }() // ends with the stream's call, which unblocks Recv
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

// multiplex holds the watches of one stream. Each begins alone. All that have caught up share one watch of the plane,
// so that another one costs the peer no goroutine.
type multiplex struct {
	s          *Server
	ctx        context.Context         // of the stream
	fail       context.CancelCauseFunc // ends the stream
	turn       chan struct{}           // has the watch that begins: clients tell answers without a known id by their order
	goroutines sync.WaitGroup

	mu      sync.Mutex // guards what follows; a stream takes one answer at a time
	out     grpc.BidiStreamingServer[pb.WatchRequest, pb.WatchResponse]
	running map[int64]*watch
	next    int64 // id to try for a watch without one
	ended   bool  // the call returns: nothing begins and nothing is sent

	following bool               // the shared watch runs, or is about to
	shared    coord.Watch        // as it runs
	again     context.CancelFunc // lets it select anew
	spans     int                // that it has had
	shown     int64              // every event up to this revision was sent; 0 before its first answer

	asked  bool               // the client wants a mark of the present revision
	due    *pb.ResponseHeader // the header of this mark; nil until its revision is known
	marked chan struct{}      // closed after it; nil: the client waits for none
}

// wait ends the stream. Its context has ended.
func (m *multiplex) wait() {
	m.fail(nil)
	m.mu.Lock()
	m.ended = true
	for _, w := range m.running {
		if w.shares {
			w.release()
		}
	}
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
	id      int64
	req     *pb.WatchCreateRequest
	span    coord.Span
	ctx     context.Context // ends with the stream, or at the client's wish
	stop    context.CancelFunc
	release func() // gives its room back

	// Guarded by the multiplex:
	begun  bool      // the client knows
	shares bool      // the watch has caught up: no goroutine is its own
	next   int64     // the first revision that it lacks, or where it begins
	told   time.Time // of its last answer
}

// shownBy returns the revision up to which an answer has all events.
func shownBy(b *apiv1.WatchKeysResponse) int64 {
	return min(b.GetHeader().GetRevision(), b.GetNextRevision()-1)
}

func (m *multiplex) receive() error {
	for {
		req, err := m.out.Recv()
		if err != nil {
			return err
		}
		switch r := req.GetRequestUnion().(type) {
		case *pb.WatchRequest_CreateRequest:
			err = m.create(r.CreateRequest)
		case *pb.WatchRequest_CancelRequest:
			m.cancel(r.CancelRequest.GetWatchId())
		case *pb.WatchRequest_ProgressRequest:
			m.progress()
		}
		if err != nil {
			return err
		}
	}
}

// cancel ends a watch at the client's wish.
func (m *multiplex) cancel(id int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	w := m.running[id]
	if w == nil {
		return
	}
	if w.stop(); w.shares { // otherwise its goroutine ends it
		m.end(w, nil)
	}
}

// progress lets the shared watch look for the present revision. The client gets a mark as soon as all watches of the
// stream have sent their events up to it: mostly there are none. As in etcd there is no answer while a watch begins,
// and none without watches.
func (m *multiplex) progress() {
	m.mu.Lock()
	none := len(m.running) == 0
	for _, w := range m.running {
		none = none || !w.shares
	}
	if !none {
		if m.asked = true; m.marked == nil {
			m.marked = make(chan struct{})
		}
		m.again()
	}
	marked := m.marked
	m.mu.Unlock()
	if none {
		return
	}
	late := time.NewTimer(looking)
	defer late.Stop()
	select {
	case <-marked:
	case <-late.C:
	case <-m.ctx.Done():
	}
}

// mark sends the mark that the client waits for, if all watches have come so far. The caller holds the mutex.
func (m *multiplex) mark() error {
	if m.due == nil || m.shown < m.due.Revision {
		return nil
	}
	for _, w := range m.running { // one that begins in the future has nothing to tell: a client would resume it too early
		if !w.shares || m.shown < w.next-1 {
			return nil
		}
	}
	at := proto.CloneOf(m.due)
	at.Revision = m.shown
	if m.unask(); len(m.running) == 0 {
		return nil
	}
	return m.answer(&pb.WatchResponse{Header: at, WatchId: noWatch})
}

// unask ends the wait for a mark. The caller holds the mutex.
func (m *multiplex) unask() {
	if m.marked != nil {
		close(m.marked)
	}
	m.asked, m.due, m.marked = false, nil, nil
}

// lately returns the header of a state that a watch has shown here, as etcd that of its own copy; without one that of
// the present state. A watch that does not begin must not cost the group a read.
func (s *Server) lately(ctx context.Context) *pb.ResponseHeader {
	if h := s.shown.Load(); h != nil {
		return h
	}
	now, err := s.readable(ctx, 0)
	if err != nil {
		return &pb.ResponseHeader{}
	}
	s.shown.Store(now)
	return now
}

// refuse answers a request for a watch that does not begin. The stream's next request waits: to ask costs a client
// less than to be refused.
func (m *multiplex) refuse(reason string) error {
	last := &pb.WatchResponse{WatchId: noWatch, Created: true, Canceled: true, CancelReason: reason}
	last.Header = m.s.lately(m.ctx)
	m.mu.Lock()
	err := m.answer(last)
	m.mu.Unlock()
	if err == nil {
		m.s.refusals.Wait(m.ctx)
	}
	return err
}

// create begins a watch, after the one before has begun.
func (m *multiplex) create(req *pb.WatchCreateRequest) error {
	select {
	case m.turn <- struct{}{}:
	case <-m.ctx.Done():
		return m.s.ended(m.ctx)
	}
	done := sync.OnceFunc(func() { <-m.turn })
	key := req.GetKey()
	if len(key) == 0 {
		key = []byte{0} // the smallest one
	}
	w := &watch{
		req: req, span: m.s.keys.span(key, req.GetRangeEnd()), next: req.GetStartRevision(),
		told: time.Now(), release: func() {},
	}
	reason := ""
	if end := req.GetRangeEnd(); len(end) > 0 && !bytes.Equal(end, []byte{0}) && bytes.Compare(key, end) >= 0 {
		reason = "mvcc: watcher range is empty"
	}
	if req.GetStartRevision() < 0 {
		reason = rpctypes.ErrCompacted.Error()
	}
	if reason == "" {
		reason = m.add(w, done)
	}
	if reason == "" {
		return nil
	}
	defer done()
	return m.refuse(reason)
}

// add gives a watch its id and runs it, or says why not. It calls done when the watch has begun or ended.
func (m *multiplex) add(w *watch, done func()) (reason string) {
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
	case m.ended:
		return rpctypes.ErrGRPCStopped.Error()
	}
	m.running[w.id] = w
	w.ctx, w.stop = context.WithCancel(m.ctx)
	m.goroutines.Go(func() {
		defer done()
		size := watchBytes + len(w.req.GetKey()) + len(w.req.GetRangeEnd())
		release, err := m.s.watches.TakeWithin(w.ctx, "etcdapi.Watch", size, roomWithin)
		if err == nil {
			w.release = release
			err = m.begin(w, done)
		}
		m.alone(w, err)
	})
	return ""
}

// begin sends the events of a watch until it shares the answers of the others, or ends.
func (m *multiplex) begin(w *watch, done func()) error {
	for {
		m.mu.Lock()
		selected := &coord.Watch{Span: w.span, From: coord.Revision(w.next), Prev: w.req.GetPrevKv(), Mark: true}
		m.mu.Unlock()
		if !w.begun {
			if err := m.s.watchable(w.ctx, selected.From); m.s.waits(w.ctx, err) {
				continue
			} else if err != nil {
				return err
			}
		}
		first := true
		err := m.s.Service.Watch(w.ctx, selected.Request(), func(b *apiv1.WatchKeysResponse) error {
			m.mu.Lock()
			defer m.mu.Unlock()
			caughtUp, err := m.catchUp(w, b, first)
			if first = false; err != nil {
				return err
			}
			if done(); caughtUp {
				m.join(w)
				return io.EOF
			}
			return nil
		})
		if !m.s.waits(w.ctx, err) {
			return err
		}
	}
}

// watchable refuses a watch from a revision that is compacted: when it begins, not while it goes on. Zero and revisions
// to come are fine.
func (s *Server) watchable(ctx context.Context, from coord.Revision) error {
	if from == 0 {
		return nil
	}
	_, err := s.readable(ctx, int64(from))
	if past := new(coord.Compacted); errors.As(err, &past) {
		// What can be read can be watched from, and the error names the revision before.
		return &coord.Compacted{Revision: past.Revision - 1, Current: past.Current}
	}
	if fault.KindOf(err) == fault.Invalid {
		return nil
	}
	return err
}

// catchUp sends an answer to a watch that is alone. The caller holds the mutex.
func (m *multiplex) catchUp(w *watch, b *apiv1.WatchKeysResponse, first bool) (caughtUp bool, err error) {
	at := header(b.GetHeader())
	m.s.shown.Store(at)
	switch {
	case !w.begun:
		w.begun = true
		err = m.answer(&pb.WatchResponse{Header: at, WatchId: w.id, Created: true})
	case !first:
		err = m.send(w, at, m.s.batch(b.GetEvents()).of(w))
	}
	w.next = max(w.next, b.GetNextRevision())
	return w.next > at.GetRevision() || !first && len(b.GetEvents()) == 0, err
}

// alone ends a watch with its goroutine, unless it shares the answers of the others.
func (m *multiplex) alone(w *watch, err error) {
	m.mu.Lock()
	shares, begun := w.shares, w.begun
	m.mu.Unlock()
	if shares {
		return
	}
	_ = m.s.lately(m.ctx) // for the answer
	if !begun && err != nil {
		m.s.refusals.Wait(w.ctx) // it has its room until then
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.end(w, err)
}

// join lets a watch share the answers of the others. The caller holds the mutex.
func (m *multiplex) join(w *watch) {
	if m.ended || w.ctx.Err() != nil {
		return
	}
	w.shares = true
	all := &m.shared
	lacks := w.next < int64(all.From) || w.next <= m.shown
	switch {
	case !m.following:
		m.following = true
		m.goroutines.Go(m.follow)
	case lacks, w.req.GetPrevKv() && !all.Prev, !all.Span.Covers(w.span):
		m.again()
	}
}

// choose selects what the watches that share lack; false without one. The caller holds the mutex.
func (m *multiplex) choose() bool {
	before, any := m.shared.Span, false
	m.shared = coord.Watch{Mark: m.asked}
	for _, w := range m.running {
		all := &m.shared
		switch from := coord.Revision(w.next); {
		case !w.shares:
			continue
		case !any:
			all.Span, all.From, any = w.span, from, true
		default:
			all.From = min(all.From, from)
			all.Span = coord.Span{From: min(all.Span.From, w.span.From), To: max(all.Span.To, w.span.To)}
		}
		all.Prev = all.Prev || w.req.GetPrevKv()
	}
	if m.shared.Span != before {
		m.spans++
	}
	if m.spans > wideAfter {
		m.shared.Span = coord.Under(string(m.s.keys))
	}
	return any
}

// follow sends the events of the watches that share, until there is none.
func (m *multiplex) follow() {
	for m.ctx.Err() == nil {
		turn, again := context.WithCancel(m.ctx)
		m.mu.Lock()
		any := m.choose()
		m.again, m.shown, m.following = again, 0, any
		if !any {
			m.unask()
		}
		request := m.shared.Request()
		m.mu.Unlock()
		if !any {
			again()
			return
		}
		first := true
		err := m.s.Service.Watch(turn, request, func(b *apiv1.WatchKeysResponse) error {
			m.mu.Lock()
			defer m.mu.Unlock()
			defer func() { first = false }()
			return m.share(b, first)
		})
		if turn.Err() == nil && !errors.Is(err, io.EOF) {
			m.failed(err)
		}
		again()
	}
}

// share sends an answer of the shared watch. It returns io.EOF when nobody shares it. The caller holds the mutex.
func (m *multiplex) share(b *apiv1.WatchKeysResponse, first bool) error {
	at, now, any := header(b.GetHeader()), time.Now(), false
	m.s.shown.Store(at)
	m.shown = shownBy(b)
	if first && m.asked {
		m.asked, m.due = false, at
	}
	batch := m.s.batch(b.GetEvents())
	for _, w := range m.running {
		if !w.shares {
			continue
		}
		any = true
		var err error
		if selected := batch.of(w); len(selected.events) > 0 {
			err = m.send(w, at, selected)
		} else if now.Sub(w.told) >= markEvery {
			err = m.tell(w, at, m.shown)
		}
		if err != nil {
			m.fail(err)
			return err
		}
		w.next = max(w.next, m.shown+1)
	}
	if !any {
		return io.EOF
	}
	return m.mark()
}

// tell sends a mark of progress to a watch that wants one and has passed its start. The caller holds the mutex.
func (m *multiplex) tell(w *watch, at *pb.ResponseHeader, shown int64) error {
	if !w.req.GetProgressNotify() || shown < w.next-1 {
		return nil
	}
	w.told = time.Now()
	mark := proto.CloneOf(at) // a refusal on another stream may be sending the other one
	mark.Revision = shown
	return m.answer(&pb.WatchResponse{Header: mark, WatchId: w.id})
}

// failed decides how the watches that share go on after an error.
func (m *multiplex) failed(err error) {
	compacted := new(coord.Compacted)
	switch kind := fault.KindOf(err); {
	case errors.As(err, &compacted):
		m.mu.Lock()
		defer m.mu.Unlock()
		before := len(m.running)
		for _, w := range m.running {
			if w.shares && w.next <= int64(compacted.Revision) {
				m.end(w, err)
			}
		}
		if len(m.running) == before { // of none of them: they would ask in vain for ever
			m.fail(err)
		}
	case kind == fault.Invalid || kind == fault.TooLarge: // which of them cannot go on, each learns alone
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, w := range m.running {
			if w.shares && !m.ended {
				w.shares = false
				m.goroutines.Go(func() { m.alone(w, m.begin(w, func() {})) })
			}
		}
	case !m.s.waits(m.ctx, err):
		m.fail(cmp.Or(err, io.ErrUnexpectedEOF))
	}
}

// send sends events, in fragments if the client takes them. The caller holds the mutex.
func (m *multiplex) send(w *watch, at *pb.ResponseHeader, selected *selection) error {
	for events := selected.events; len(events) > 0; {
		n, size := 1, len(events[0])
		for n < len(events) && (!w.req.GetFragment() || size+len(events[n]) <= fragmentBytes) {
			size += len(events[n])
			n++
		}
		part := &pb.WatchResponse{Header: at, WatchId: w.id, Fragment: n < len(events)}
		if n == len(selected.events) {
			part.ProtoReflect().SetUnknown(selected.whole())
		} else {
			part.ProtoReflect().SetUnknown(slices.Concat(events[:n]...))
		}
		if err := m.answer(part); err != nil {
			return err
		}
		events = events[n:]
	}
	w.told = time.Now()
	return nil
}

func (w *watch) filtered(put bool) bool {
	for _, f := range w.req.GetFilters() {
		if put && f == pb.WatchCreateRequest_NOPUT || !put && f == pb.WatchCreateRequest_NODELETE {
			return true
		}
	}
	return false
}

// end forgets a watch and tells the client why, or ends the stream. The caller holds the mutex.
func (m *multiplex) end(w *watch, err error) {
	if m.ended { // what shares has given its room back
		if !w.shares {
			w.release()
		}
		return
	}
	delete(m.running, w.id)
	w.release()
	stopped := w.ctx.Err() != nil
	w.stop()
	last := &pb.WatchResponse{Header: cmp.Or(m.s.shown.Load(), &pb.ResponseHeader{}), WatchId: w.id, Canceled: true}
	compacted := new(coord.Compacted)
	switch kind := fault.KindOf(err); {
	case m.ctx.Err() != nil:
		return
	case errors.As(err, &compacted):
		last.CompactRevision = int64(compacted.Revision) + 1 // from which a watch can begin
		last.CancelReason = rpctypes.ErrCompacted.Error()
	case err == nil || stopped:
	case kind == fault.Invalid || kind == fault.TooLarge:
		last.CancelReason = toStatus(err).Error()
	default:
		m.fail(err)
		return
	}
	if !w.begun {
		_ = m.answer(&pb.WatchResponse{Header: last.Header, WatchId: w.id, Created: true})
	}
	_ = m.answer(last) // a client that takes none has gone
	_ = m.mark()
}
