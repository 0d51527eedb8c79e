package flood

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/internal/operator"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// Service is the service of the other user: its token has the right to it, and to names below it.
const Service = "mallory"

const (
	callers      = 16   // concurrent calls of the other user
	watchesTried = 1024 // that it opens and keeps
	valueSize    = 1024
)

// callAPI calls the API of the victim by several connections: registrations, keys and watches.
func callAPI(ctx context.Context, h *hostile) {
	var work sync.WaitGroup
	for i := range callers {
		work.Go(func() {
			c, err := operator.New(h.order.API, client.WithToken(h.order.Token))
			if err != nil {
				h.tally.send(1, "client: "+short(err))
				return
			}
			defer c.Close()
			h.tally.host()
			h.call(ctx, c, i)
		})
	}
	work.Wait()
}

// call calls until the end.
func (h *hostile) call(ctx context.Context, c *operator.Client, caller int) {
	var watches sync.WaitGroup
	defer watches.Wait()
	watching := 0
	for i := 0; h.pace.turn(ctx, 1); i++ {
		var err error
		switch name := fmt.Sprintf("%s/%d-%d", Service, caller, i); i % 3 {
		case 0:
			_, err = once(ctx, func(ctx context.Context) (instances.Registered, error) {
				return c.Agent().Register(ctx, instance.Registration{
					Key:  instance.Key{Service: Service, ID: fmt.Sprintf("m-%d-%d", caller, i)},
					Spec: instance.Spec{Host: "192.0.2.1", Port: 9},
				})
			})
		case 1:
			_, err = once(ctx, func(ctx context.Context) (ops.Result, error) {
				put := &ops.Txn{Then: []ops.Step{{Put: &ops.Put{Key: name, Value: random(valueSize)}}}}
				r, _, err := ops.Of(c.Coordination()).Do(ctx, ops.Command{Op: put})
				return r, err
			})
		default:
			if watching >= watchesTried/callers {
				continue
			}
			watching++
			watches.Go(func() { h.watch(ctx, c) })
			continue
		}
		h.count(ctx, err)
	}
}

func once[T any](ctx context.Context, f func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	return f(ctx)
}

// watch keeps a watch open. One that the victim refuses or ends counts as refused.
func (h *hostile) watch(ctx context.Context, c *operator.Client) {
	q := instance.Query{Name: instance.Name{Service: Service}}
	began := time.Now()
	err := c.Agent().Watch(ctx, q, 0, func(instance.Batch) error { return nil })
	if time.Since(began) > time.Second {
		err = nil // it was accepted
	}
	h.count(context.WithoutCancel(ctx), err)
}

func (h *hostile) count(ctx context.Context, err error) {
	switch {
	case err == nil:
		h.tally.send(1, "")
	case ctx.Err() == nil:
		h.tally.send(1, fault.KindOf(err).String())
	}
}
