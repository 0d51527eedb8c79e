package dnsapi

import (
	"context"
	"net"
	"net/netip"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/blackhole/blackhole/internal/platform/special"
	"github.com/blackhole/blackhole/pkg/fault"
)

// bindTries bounds the attempts to find a port free for both UDP and TCP.
const bindTries = 16

// Server is the DNS front end.
type Server struct {
	config   Config
	zones    []*zone
	rule     *addressRule
	existing *existingNames
	limiter  *limiter
	conns    *connections

	closing context.Context // done when Close begins
	close   context.CancelFunc
	running sync.WaitGroup // readers of sockets and connections

	mu      sync.Mutex // guards the fields below
	bound   []binding
	counted []*counts
	closed  bool
	refused atomic.Uint64
}

// binding holds the sockets of one served address.
type binding struct {
	listener *net.TCPListener
	sockets  []*net.UDPConn
}

// New makes a server without an address. Errors: Invalid, field "domains".
func New(c Config) (*Server, error) {
	c.setDefaults()
	zones, err := newZones(c.Domains)
	if err != nil {
		return nil, fault.Wrap("dnsapi.New", err)
	}
	s := &Server{
		config: c, zones: zones,
		rule:     &addressRule{self: c.Self, special: special.New(), allow: c.Allow},
		existing: &existingNames{catalog: c.Catalog, zones: newRecent[zoneSet](maxNamespaces)}, limiter: newLimiter(c.Rate, c.Now),
		conns: &connections{maxPerClient: maxConnsPerClient, open: make(map[net.Conn]netip.Addr), client: make(map[netip.Addr]int)},
	}
	s.closing, s.close = context.WithCancel(context.Background())
	return s, nil
}

// Listen binds an address, an IP address with a port, for UDP and TCP. Port 0 means any free port.
// Call it before Serve, once per address. Errors: Invalid, with the field "dns"; Unavailable for a
// port in use or after Close.
func (s *Server) Listen(address string) error {
	const op = "dnsapi.Listen"
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return &fault.Error{Op: op, Kind: fault.Invalid, Field: "dns", Value: address, Err: err}
	}
	b, err := bind(s.closing, at)
	for range bindTries {
		if err == nil || at.Port() != 0 || s.closing.Err() != nil {
			break
		}
		b, err = bind(s.closing, at)
	}
	if err != nil {
		return fault.As(op, fault.Unavailable, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		b.close()
		return fault.New(op, fault.Unavailable, "the DNS server is closed: make a new one")
	}
	s.bound = append(s.bound, b)
	return nil
}

// bind opens a port for TCP, which no other process can share, and then for UDP.
func bind(ctx context.Context, at netip.AddrPort) (binding, error) {
	family := "6"
	if at.Addr().Unmap().Is4() {
		family = "4"
	}
	listen := net.ListenConfig{}
	l, err := listen.Listen(ctx, "tcp"+family, at.String())
	if err != nil {
		return binding{}, err
	}
	b := binding{listener: l.(*net.TCPListener)}
	port := b.listener.Addr().(*net.TCPAddr).Port
	shared := net.ListenConfig{Control: share}
	address := net.JoinHostPort(at.Addr().String(), strconv.Itoa(port))
	for len(b.sockets) < min(runtime.GOMAXPROCS(0), maxSockets) && (shares || len(b.sockets) == 0) {
		c, err := shared.ListenPacket(ctx, "udp"+family, address)
		if err != nil {
			b.close()
			return binding{}, err
		}
		b.sockets = append(b.sockets, c.(*net.UDPConn))
	}
	return b, nil
}

func (b binding) close() {
	_ = b.listener.Close()
	for _, c := range b.sockets {
		_ = c.Close()
	}
}

// Addr returns the first served address, or the zero value before Listen.
func (s *Server) Addr() netip.AddrPort {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.bound) == 0 {
		return netip.AddrPort{}
	}
	return s.bound[0].listener.Addr().(*net.TCPAddr).AddrPort()
}

// Serve answers at all addresses until Close. Call it once.
func (s *Server) Serve() error {
	s.start()
	<-s.closing.Done()
	s.running.Wait()
	return nil
}

func (s *Server) start() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	shared := &shared{responder: newResponder(s)}
	for _, b := range s.bound {
		s.running.Go(func() { s.accept(b.listener, shared) })
		for _, c := range b.sockets {
			r := newResponder(s)
			s.running.Go(func() { s.serveUDP(c, r) })
		}
	}
}

// Close stops serving and waits for the end of all goroutines.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	bound := s.bound
	s.mu.Unlock()
	s.close()
	for _, b := range bound {
		b.close()
	}
	s.conns.close()
	s.running.Wait()
}

// Stats returns the counts so far.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	total := Stats{Answers: make(map[int]uint64), Refused: s.refused.Load()}
	for _, c := range s.counted {
		c.addTo(&total)
	}
	return total
}
