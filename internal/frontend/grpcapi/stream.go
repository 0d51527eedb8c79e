package grpcapi

import (
	"context"
	"errors"
	"io"
)

// inboxRoom is how many requests of a stream are received before they are looked at.
const inboxRoom = 256

// inbox is the requests of a stream.
type inbox[T any] struct {
	C   chan *T // closed at the end
	err error   // of the end, once C is closed; nil when the client has said all
}

// receive fills an inbox with requests that pass check, until one does not or the stream ends. Room is
// how many may wait there. The goroutine ends with the call that it belongs to: only then does Recv return.
func receive[T any](ctx context.Context, room int, recv func() (*T, error), check func(*T) error) *inbox[T] {
	in := &inbox[T]{C: make(chan *T, room)}
	go func() {
		defer close(in.C)
		for {
			req, err := recv()
			if err != nil {
				if !errors.Is(err, io.EOF) {
					in.err = err
				}
				return
			}
			if in.err = check(req); in.err != nil {
				return
			}
			select {
			case in.C <- req:
			case <-ctx.Done():
				in.err = ctx.Err()
				return
			}
		}
	}()
	return in
}

// queue cuts the requests of a stream into batches.
type queue[T any] struct {
	in    *inbox[T]
	size  func(*T) int // of a request, at most limit
	limit int          // of a batch
	next  *T           // had no room in the last batch
}

// batch waits for a request and takes those that wait behind it, as many as there is room for.
// None are left when it is empty.
func (q *queue[T]) batch(ctx context.Context) ([]*T, error) {
	first := q.next
	if q.next = nil; first == nil {
		select {
		case req, ok := <-q.in.C:
			if !ok {
				return nil, q.in.err
			}
			first = req
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	batch, size := []*T{first}, q.size(first)
	for {
		select {
		case req, ok := <-q.in.C:
			if !ok {
				return batch, nil // the end is found next time
			}
			if size += q.size(req); size > q.limit {
				q.next = req
				return batch, nil
			}
			batch = append(batch, req)
		default:
			return batch, nil
		}
	}
}

// untilClosing gives a context that also ends when the server closes.
func untilClosing(ctx, closing context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(closing, cancel)
	return ctx, func() { stop(); cancel() }
}
