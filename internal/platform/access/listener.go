package access

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/peer"
)

const (
	probePlaces = 64                   // connections beside the pool
	probeHead   = 2 * time.Second      // for the request of such a connection
	probeAnswer = 8 * time.Second      // and for its answer, on a busy machine
	arriving    = 5 * time.Millisecond // from the last bytes of a request to its handler
	looked      = 64                   // connections of a client that the search for one to close looks at
	few         = 4                    // calls that begin on a connection and cost nothing: the connection costs more
	unlucky     = 32                   // calls in a row without a place that a connection survives

	// silence ends a connection whose other end takes nothing of what is sent, where the system can tell.
	silence = 30 * time.Second
)

// Connections bounds the connections of callers by a pool. A client at its share loses its oldest connection without a
// complete request to a new one. A connection without a place is let in beside the pool, shortly and for probes of
// health alone. Safe for concurrent use.
type Connections struct {
	pool *Pool

	mu     sync.Mutex
	by     map[string][]*boundedConn // of each client, with a place; oldest first, except for busy ones that a search met
	probes []*boundedConn            // beside the pool, oldest first
}

// NewConnections returns connections with a number of places. It calls refused as NewPool does, also for a connection that
// was closed for another one.
func NewConnections(total int, refused func(Refusal)) *Connections {
	return &Connections{pool: NewPool("connections", total, refused), by: map[string][]*boundedConn{}}
}

// Used returns the number of occupied places.
func (c *Connections) Used() int { return c.pool.Used() }

// Listener returns l with connections that occupy a place until they close. Use ConnContext for HTTP, and Serving for each
// request.
func (c *Connections) Listener(l net.Listener) net.Listener {
	return &boundedListener{Listener: l, all: c}
}

type boundedListener struct {
	net.Listener
	all *Connections
}

// Accept implements net.Listener.
func (l *boundedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		limitSilence(c, silence)
		if one := l.all.admit(c); one != nil {
			return one, nil
		}
		_ = c.Close()
	}
}

// admit gives a connection a place, of the pool or for a probe. It returns nil without one.
func (c *Connections) admit(raw net.Conn) *boundedConn {
	one := &boundedConn{Conn: raw, all: c}
	one.open, one.close = context.WithCancel(context.Background())
	one.remote = &remote{Addr: raw.RemoteAddr(), conn: one, user: userOf(raw)}
	client := clientOf(callCredentials{remote: one.remote})
	one.remote.client = client
	free, own, ok := c.pool.take(client, 1, c.pool.kept)
	if !ok {
		err := c.pool.refuse("access.Accept", client, free, own)
		victim := c.idle(client)
		if victim == nil {
			return c.probe(one, client, err)
		}
		_ = victim.Conn.Close()
	}
	one.client = client
	c.mu.Lock()
	defer c.mu.Unlock()
	c.by[client] = append(c.by[client], one)
	return one
}

// idle takes the oldest connection without a complete request out of those of a client, for the next one to have its place. One that
// never had any comes first.
func (c *Connections) idle(client string) *boundedConn {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.by[client]
	head := all[:min(len(all), looked)]
	now, victim := time.Now(), -1
	for _, may := range []func(*boundedConn) bool{
		func(one *boundedConn) bool { return !one.served.Load() && one.quiet(now) },
		func(one *boundedConn) bool {
			return !one.served.Load() && one.serving.Load() == 0 && !waiting(one.Conn)
		},
		func(one *boundedConn) bool { return one.quiet(now) },
		func(one *boundedConn) bool { return one.serving.Load() == 0 && !waiting(one.Conn) },
	} {
		if victim < 0 {
			victim = slices.IndexFunc(head, may)
		}
	}
	if victim < 0 { // the next search begins behind these
		c.by[client] = append(slices.Clone(all[len(head):]), head...)
		return nil
	}
	one := all[victim]
	c.by[client] = slices.Delete(all, victim, victim+1)
	one.close() // its Close gives no place back
	return one
}

// probe lets a connection in beside the pool. When those places are in use, the oldest silent connection of the client with
// the most gives way.
func (c *Connections) probe(one *boundedConn, client string, refused error) *boundedConn {
	one.refused, one.client = refused, client
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.probes) >= probePlaces {
		held := map[string]int{}
		for _, other := range c.probes {
			held[other.client]++
		}
		var victim *boundedConn
		for _, other := range c.probes {
			if other.serving.Load() == 0 && (victim == nil || held[other.client] > held[victim.client]) {
				victim = other
			}
		}
		if victim == nil {
			return nil
		}
		c.forget(victim)
		victim.close()
		victim.late.Stop()
		_ = victim.Conn.Close()
	}
	c.probes = append(c.probes, one)
	one.late = time.AfterFunc(probeHead, func() {
		if one.serving.Load() == 0 || one.overdue.Swap(true) {
			_ = one.Close()
			return
		}
		c.mu.Lock() // one.late is set
		defer c.mu.Unlock()
		one.late.Reset(probeAnswer)
	})
	return one
}

// forget takes a connection out of the lists. c.mu must be held.
func (c *Connections) forget(one *boundedConn) {
	not := func(other *boundedConn) bool { return other == one }
	if one.refused != nil {
		c.probes = slices.DeleteFunc(c.probes, not)
	} else if c.by[one.client] = slices.DeleteFunc(c.by[one.client], not); len(c.by[one.client]) == 0 {
		delete(c.by, one.client)
	}
}

// boundedConn gives its place back when it closes.
type boundedConn struct {
	net.Conn
	all     *Connections
	client  string
	remote  *remote
	refused error       // why a connection for probes has no place; nil: it has one
	late    *time.Timer // of a connection for probes
	overdue atomic.Bool // its request came in time, its answer is not complete
	serving atomic.Int32
	served  atomic.Bool
	begun   atomic.Int32    // calls of Few
	refusal atomic.Int32    // calls without a place since the last one that had one
	read    atomic.Int64    // time of the last read in Unix nanoseconds
	open    context.Context // until it closes
	close   context.CancelFunc
}

// Read implements net.Conn.
func (c *boundedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.read.Store(time.Now().UnixNano())
	return n, err
}

// quiet reports whether no request is at work, and none may just have arrived.
func (c *boundedConn) quiet(now time.Time) bool {
	return c.serving.Load() == 0 && now.UnixNano()-c.read.Load() > int64(arriving) && !waiting(c.Conn)
}

// RemoteAddr implements net.Conn. Calls find their connection by it.
func (c *boundedConn) RemoteAddr() net.Addr { return c.remote }

// Close implements net.Conn.
func (c *boundedConn) Close() error {
	c.all.mu.Lock()
	if c.open.Err() == nil {
		c.close()
		c.all.forget(c)
		if c.refused == nil {
			c.all.pool.release(c.client, 1) // before another Close returns
		} else {
			c.late.Stop()
		}
	}
	c.all.mu.Unlock()
	return c.Conn.Close()
}

// remote is the remote address of a bounded connection.
type remote struct {
	net.Addr
	conn   *boundedConn
	client string    // the result of clientOf; empty until admit has set it
	user   *peerAddr // behind a loopback address, where it is known; nobody is authenticated by it
}

// Remote returns the address of the other end of the connection of a call, or nil. Those of two bounded connections differ.
func Remote(ctx context.Context) net.Addr {
	if p, ok := peer.FromContext(ctx); ok {
		return p.Addr
	}
	addr, _ := ctx.Value(connKey{}).(net.Addr)
	return addr
}

// Local reports whether the caller of ctx is on this machine: it came over the unix socket, or from a loopback address.
func Local(ctx context.Context) bool {
	addr := Plain(Remote(ctx))
	if addr == nil {
		return false
	}
	at, err := netip.ParseAddrPort(addr.String())
	return addr.Network() == "unix" || err == nil && at.Addr().Unmap().IsLoopback()
}

// connOf returns the bounded connection of a call, or nil.
func connOf(ctx context.Context) *boundedConn {
	if r, ok := Remote(ctx).(*remote); ok {
		return r.conn
	}
	return nil
}

// Serving says that a complete request has arrived on the connection of ctx, until done is called.
func Serving(ctx context.Context) (done func()) {
	c := connOf(ctx)
	if c == nil {
		return func() {}
	}
	c.serving.Add(1)
	return func() {
		if c.serving.Add(-1); c.refusal.Load() == 0 {
			c.served.Store(true)
		}
	}
}

// Few takes one of the few places that each bounded connection has for calls that begin, until release is called, once.
func Few(ctx context.Context) (release func(), ok bool) {
	c := connOf(ctx)
	if c == nil {
		return nil, false
	}
	release = func() { c.begun.Add(-1) }
	if c.begun.Add(1) > few {
		release()
		return nil, false
	}
	return release, true
}

// Placed says whether a call on the connection of ctx got a place. The connection closes at the first one without, when nothing was answered on
// it yet, and otherwise after some in a row: thousands more may follow.
func Placed(ctx context.Context, ok bool) {
	c := connOf(ctx)
	switch {
	case ok && c != nil:
		c.refusal.Store(0)
	case !ok && (c == nil || c.refusal.Add(1) > unlucky || !c.served.Load()):
		Cut(ctx)
	}
}

// Closed reports whether the connection of ctx is bounded and has closed. Requests that arrived before may follow.
func Closed(ctx context.Context) bool {
	c := connOf(ctx)
	return c != nil && c.open.Err() != nil
}

// OnlyProbes returns why the connection of ctx got no place, if it was let in for a probe of health alone.
func OnlyProbes(ctx context.Context) error {
	if c := connOf(ctx); c != nil {
		return c.refused
	}
	return nil
}

// Cut closes the connection of ctx, if it is bounded, or if its authentication can.
func Cut(ctx context.Context) {
	if c := connOf(ctx); c != nil {
		_ = c.Close()
		return
	}
	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(interface{ Cut() }); ok {
			info.Cut()
		}
	}
}

// OnClose calls f when the connection of ctx closes, if it is bounded, unless stop is called before.
func OnClose(ctx context.Context, f func()) (stop func() bool) {
	if c := connOf(ctx); c != nil {
		return context.AfterFunc(c.open, f)
	}
	return func() bool { return true }
}
