package grpcapi

import (
	"context"
	"errors"
	"io"
)

// inboxRoom is the number of received requests that may wait in a stream.
const inboxRoom = 256

// inbox holds the received requests of a stream.
type inbox[T any] struct {
	C   chan *T // closed at the end
	err error   // after the close of C; nil if the client has finished
}

// receive fills an inbox with checked requests until a check fails or the stream ends. At most room
// requests wait in it. The goroutine ends with its call, because only the end of the call unblocks Recv.
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
	next  *T           // without room in the last batch
}

// batch waits for a request and returns it with the requests that already wait, up to the limit. An
// empty batch means the end of the stream.
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
				return batch, nil // the next call reports the end
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

// untilClosing returns a context that also ends when the server closes.
func untilClosing(ctx, closing context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(closing, cancel)
	return ctx, func() { stop(); cancel() }
}
