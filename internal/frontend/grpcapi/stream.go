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

// untilClosing returns a context that also ends when the server closes.
func untilClosing(ctx, closing context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(closing, cancel)
	return ctx, func() { stop(); cancel() }
}
