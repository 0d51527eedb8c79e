package directory

import (
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/blackhole/blackhole/internal/platform/trace"
	"github.com/blackhole/blackhole/pkg/instance"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// maxTraced bounds the registrations that are traced at a time. The commits of further ones are in no trace.
const maxTraced = 64

// Traced makes the next commit of a registration part of the trace of its call, until done. Call it before the
// registry has the change. The id of k may be empty: it is generated later.
func (d *Directory) Traced(ctx context.Context, k instance.Key) (done func()) {
	if !d.Tracer.On() || !trace.Recorded(ctx) {
		return func() {}
	}
	return d.loop.traced.add(ctx, k)
}

// callers are the traced calls whose registrations wait for a commit. The zero value has none.
type callers struct {
	mu   sync.Mutex
	list []*traced
}

// traced is one call. An entry belongs to it if its key equals key, or with a generated id begins with it.
type traced struct {
	ctx       context.Context
	key       string
	generated bool
}

func (c *callers) add(ctx context.Context, k instance.Key) (done func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.list) >= maxTraced {
		return func() {}
	}
	one := &traced{ctx: ctx, key: directoryKey(k), generated: k.ID == ""}
	c.list = append(c.list, one)
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.list = slices.DeleteFunc(c.list, func(t *traced) bool { return t == one })
	}
}

// begin begins the span of a batch, which carries the registrations of several calls at once: it is part of the trace of
// the first one, and links to the others.
func (c *callers) begin(ctx context.Context, t *trace.Tracer, b *apiv1.PublishInstancesRequest) (context.Context, trace.Span) {
	if !t.On() {
		return ctx, trace.Span{}
	}
	c.mu.Lock()
	var calls []context.Context
	for _, one := range c.list {
		if slices.ContainsFunc(b.GetPuts(), func(e *apiv1.DirectoryEntry) bool { return one.has(string(e.GetKey())) }) {
			calls = append(calls, one.ctx)
		}
	}
	c.mu.Unlock()
	if len(calls) == 0 {
		return ctx, trace.Span{}
	}
	ctx, span := t.Part(trace.Carry(ctx, calls[0]), "directory.publish")
	for _, other := range calls[1:] {
		span.Link(other)
	}
	span.Number("blackhole.instances", len(b.GetPuts()))
	return ctx, span
}

func (t *traced) has(key string) bool {
	return key == t.key || t.generated && strings.HasPrefix(key, t.key)
}
