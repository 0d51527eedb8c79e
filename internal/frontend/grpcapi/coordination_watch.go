package grpcapi

import (
	"context"
	"fmt"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/pkg/fault"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// Bounds of one stream.
const (
	maxOnOne = 256     // watches
	maxKey   = 8 << 10 // bytes of a watched key; the group's limit is far below
)

// Watch implements api.LockServiceServer. After its last request a client may close its side: the stream
// ends with the last watch. A refused or failed watch ends alone, with a canceled answer; a malformed
// request ends the stream.
func (c *coordination) Watch(stream grpc.BidiStreamingServer[api.WatchKeysRequest, api.WatchKeysResponse]) error {
	if _, err := c.Owner(stream.Context()); err != nil {
		return err
	}
	ctx, cancel := untilClosing(stream.Context(), c.closing)
	m := &multiplex{c: c, out: stream, running: make(map[int64]context.CancelFunc), ended: make(chan ending)}
	defer m.goroutines.Wait()
	defer cancel()
	in := receive(ctx, inboxRoom, stream.Recv, watchable)
	for requests := in.C; requests != nil || len(m.running) > 0; {
		var err error
		select {
		case req, ok := <-requests:
			if ok {
				err = m.request(ctx, req)
			} else {
				requests, err = nil, in.err
			}
		case end := <-m.ended:
			err = m.end(ctx, end)
		case <-ctx.Done():
			err = ctx.Err()
		}
		if err != nil {
			return orClosing(c.closing, "grpcapi.Watch", err)
		}
	}
	return nil
}

// multiplex holds the watches of one stream. Only the call's goroutine knows the running ones.
type multiplex struct {
	c          *coordination
	running    map[int64]context.CancelFunc
	ended      chan ending
	goroutines sync.WaitGroup

	mu  sync.Mutex // a stream takes one answer at a time
	out grpc.BidiStreamingServer[api.WatchKeysRequest, api.WatchKeysResponse]
}

// ending is the end of a watch.
type ending struct {
	id     int64
	err    error       // nil: the client wanted it
	unsent error       // the stream takes no more
	header *api.Header // of the last answer
}

func watchable(req *api.WatchKeysRequest) error {
	const op = "grpcapi.Watch"
	switch n := len(req.GetKey()); {
	case n > maxKey:
		return fault.Wrap(op, &fault.Error{Kind: fault.TooLarge, Field: "key", Err: fmt.Errorf("has %d bytes, at most %d", n, maxKey)})
	case n == 0 && !req.GetPrefix() && !req.GetCancel():
		return fault.Wrap(op, fault.Invalidf("key", nil, "is missing"))
	}
	return nil
}

// request begins or ends a watch.
func (m *multiplex) request(ctx context.Context, req *api.WatchKeysRequest) error {
	id := req.GetWatchId()
	stop, runs := m.running[id]
	switch {
	case req.GetCancel() && runs:
		stop() // the watch answers with its end
		return nil
	case req.GetCancel(): // it ended meanwhile
		return nil
	case runs:
		return fault.Wrap("grpcapi.Watch", fault.Invalidf("watch_id", id, "is in use on this stream"))
	}
	if len(m.running) >= maxOnOne {
		return m.refuse(ctx, ending{id: id, err: fault.New("grpcapi.Watch", fault.LimitReached, "%d watches are open on this stream already", maxOnOne)})
	}
	release, err := m.c.watches.Take(ctx, "grpcapi.Watch")
	if err != nil {
		return m.refuse(ctx, ending{id: id, err: err})
	}
	watching, stop := context.WithCancel(ctx)
	m.running[id] = stop
	m.goroutines.Go(func() {
		defer release()
		end := m.watch(watching, req)
		if end.header == nil && end.err != nil {
			m.c.refusals.Wait(watching) // it has a place until then
		}
		select {
		case m.ended <- end:
		case <-ctx.Done():
		}
	})
	return nil
}

// watch follows one watch to its end.
func (m *multiplex) watch(ctx context.Context, req *api.WatchKeysRequest) ending {
	end, created := ending{id: req.GetWatchId()}, true
	err := m.c.Service.Watch(ctx, req, func(b *api.WatchKeysResponse) error {
		end.header = b.GetHeader()
		m.c.shown.Store(end.header)
		events := b.GetEvents()
		for more := true; more && end.unsent == nil; {
			n := fitting(events)
			more = n < len(events)
			end.unsent = m.send(&api.WatchKeysResponse{
				Header: end.header, WatchId: end.id, Created: created, Events: events[:n], NextRevision: b.GetNextRevision(), Fragment: more,
			})
			created, events = false, events[n:]
		}
		return end.unsent
	})
	if ctx.Err() == nil {
		end.err = err
	}
	return end
}

// end forgets a watch and tells the client why.
func (m *multiplex) end(ctx context.Context, e ending) error {
	if stop := m.running[e.id]; stop != nil {
		stop()
		delete(m.running, e.id)
	}
	if e.unsent != nil {
		return e.unsent
	}
	last := &api.WatchKeysResponse{WatchId: e.id, Canceled: true, Header: e.header}
	if e.header == nil { // it never began
		last.Header = m.c.lately(ctx)
	}
	if e.err != nil {
		last.Reason, last.Error = e.err.Error(), toError(e.err)
	}
	if gone := fromCompacted(e.err); gone != nil {
		last.Header = proto.CloneOf(last.Header) // others may be sending it
		last.CompactRevision, last.Header.Revision = gone.GetCompactRevision(), gone.GetHeader().GetRevision()
	}
	return m.send(last)
}

// refuse answers a request for a watch that does not begin. The stream's next request waits for its turn.
func (m *multiplex) refuse(ctx context.Context, e ending) error {
	err := m.end(ctx, e)
	if err == nil {
		m.c.refusals.Wait(ctx)
	}
	return err
}

// lately returns a header for a watch that did not begin: of what a watch has shown here, without one of the present state. It must not cost the group
// a read.
func (c *coordination) lately(ctx context.Context) *api.Header {
	if h := c.shown.Load(); h != nil {
		return h
	}
	r, _ := coord.Range(ctx, c.Service, &api.RangeRequest{Key: []byte{0}, Limit: 1, Local: true}) // as far as known
	if r == nil {
		return &api.Header{}
	}
	return r.GetHeader()
}

func (m *multiplex) send(resp *api.WatchKeysResponse) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.out.Send(resp)
}
