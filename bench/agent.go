package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/net/ipv4"
	"golang.org/x/sync/errgroup"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/app"
	"github.com/blackhole/blackhole/testnet/network"
	"github.com/blackhole/blackhole/testnet/process"
)

const (
	connections  = 16     // clients that work together
	services     = 100    // of the instances that are present
	newcomers    = 2000   // most registrations of a run
	beating      = 1000   // instances with heartbeats
	maxInstances = 10_000 // limit of a peer
)

// lone is a peer that local applications ask.
type lone struct {
	*network.Network
	*session
	peer *network.Peer
}

func (s *session) lone(ctx context.Context) (*lone, error) {
	n, err := s.network(ctx, 1, "AGENT_REGISTRATIONS_PER_MINUTE=0")
	if err != nil {
		return nil, err
	}
	return &lone{n, s, n.Peers[0]}, nil
}

// registration is the i-th instance of a service; many share an address.
func registration(i int) app.Registration {
	return app.Registration{
		ID: fmt.Sprint("i", i), Host: fmt.Sprintf("10.%d.%d.%d", i>>16&255, i>>8&255, i&255), Port: 8080,
		Metadata: map[string]string{"v": "1"}, UnhealthyAfter: "1h", RemoveAfter: "1h",
	}
}

// fill registers n instances, spread over services, and returns the leases.
func (l *lone) fill(ctx context.Context, n int, service func(i int) string) ([]string, error) {
	leases := make([]string, n)
	crew, ctx := errgroup.WithContext(ctx)
	crew.SetLimit(connections)
	for i := range n {
		crew.Go(func() error {
			got, err := l.peer.API.Register(ctx, service(i), registration(i), false)
			leases[i] = got.Lease
			return err
		})
	}
	return leases, crew.Wait()
}

// repeat measures clients, each with a connection of its own, that send the requests which next gives them; nil is the end.
func (l *lone) repeat(ctx context.Context, clients int, next func(client, n int) []byte) (sample, error) {
	workers := make([]worker, clients)
	for i := range workers {
		c, err := net.Dial("tcp", l.peer.HTTP)
		if err != nil {
			return sample{}, fault.As("bench.repeat", fault.Unavailable, err)
		}
		defer c.Close()
		in, n := bufio.NewReaderSize(c, 256<<10), 0
		workers[i] = func(context.Context) (int, error) {
			question := next(i, n)
			if question == nil {
				return 0, errEnough
			}
			n++
			return 1, exchange(c, in, question)
		}
	}
	out := closed(ctx, l.duration, workers)
	if out.Errors > 0 {
		return out, fault.New("bench.repeat", fault.Unavailable, "%d failed, the first: %s", out.Errors, out.FirstError)
	}
	return out, ctx.Err()
}

// always compares one task: clients that repeat requests without an end.
func (l *lone) always(ctx context.Context, label string, clients int, next func(client, n int) []byte) error {
	return l.compare(ctx, task{label, clients, []*process.Process{l.peer.Process}, func(ctx context.Context, _ int) (sample, error) {
		return l.repeat(ctx, clients, next)
	}})
}

func request(method, path string, body []byte) []byte {
	return fmt.Appendf(nil, "%s %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", method, path, len(body), body)
}

// exchange sends a request and reads the whole answer without parsing the body: the client of net/http would take more processor
// time than the server.
func exchange(c io.Writer, in *bufio.Reader, question []byte) error {
	if _, err := c.Write(question); err != nil {
		return err
	}
	answer, err := http.ReadResponse(in, nil)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, answer.Body)
	if err == nil && answer.StatusCode/100 != 2 {
		err = fmt.Errorf("%.60q: %s", question, answer.Status)
	}
	return err
}

// find queries the healthy instances of services of three sizes.
func (s *session) find(ctx context.Context) error {
	l, err := s.lone(ctx)
	if err != nil {
		return err
	}
	defer l.Stop()
	s.table("GET the healthy instances of a service")
	for _, n := range []int{10, 100, 1000} {
		service := fmt.Sprint("web", n)
		if _, err := l.fill(ctx, n, func(int) string { return service }); err != nil {
			return err
		}
		list, err := l.peer.API.Instances(ctx, service, false)
		if err != nil || len(list.Instances) != n {
			return fault.New("bench.find", fault.Internal, "%d of %d instances: %w", len(list.Instances), n, err)
		}
		get := request("GET", "/v1/services/"+service+"/instances", nil)
		for _, clients := range []int{1, connections} {
			if err := l.always(ctx, fmt.Sprintf("%d instances", n), clients, func(int, int) []byte { return get }); err != nil {
				return err
			}
		}
	}
	return nil
}

// register registers new instances one after the other, beside existing ones.
func (s *session) register(ctx context.Context) error {
	l, err := s.lone(ctx)
	if err != nil {
		return err
	}
	defer l.Stop()
	if _, err := l.fill(ctx, s.instances-newcomers, func(i int) string { return fmt.Sprint("crowd", i%services) }); err != nil {
		return err
	}
	s.table(fmt.Sprintf("Registrations of applications, one by one, with %d to %d instances present", s.instances-newcomers, s.instances))
	for _, clients := range []int{1, connections} {
		run := func(ctx context.Context, _ int) (sample, error) { return l.enroll(ctx, clients) }
		if err := s.compare(ctx, task{"register", clients, []*process.Process{l.peer.Process}, run}); err != nil {
			return err
		}
	}
	return nil
}

// enroll lets clients register, each in its own service, up to the limit of one peer or the end of the time, and deregisters all.
func (l *lone) enroll(ctx context.Context, clients int) (sample, error) {
	counts := make([]int, clients)
	out, err := l.repeat(ctx, clients, func(client, n int) []byte {
		if n == newcomers/clients {
			return nil
		}
		counts[client]++
		body, _ := json.Marshal(registration(n)) // it holds strings and numbers
		return request("POST", fmt.Sprintf("/v1/services/load%d/instances", client), body)
	})
	if err != nil {
		return out, err
	}
	for i, n := range counts {
		for k := range n {
			if err := l.peer.API.Deregister(ctx, fmt.Sprint("load", i), registration(k).ID); err != nil {
				return out, err
			}
		}
	}
	return out, ctx.Err()
}

// heartbeats sends heartbeats over HTTP, each for the next instance.
func (s *session) heartbeats(ctx context.Context) error {
	l, err := s.lone(ctx)
	if err != nil {
		return err
	}
	defer l.Stop()
	leases, err := l.fill(ctx, beating, func(int) string { return "beating" })
	if err != nil {
		return err
	}
	s.table(fmt.Sprintf("Heartbeats over HTTP, of %d instances", beating))
	for _, clients := range []int{1, connections} {
		at := func(client, n int) int { return (client + n*clients) % beating }
		err := errors.Join(
			l.always(ctx, "by lease", clients, func(client, n int) []byte { return request("PUT", "/v1/leases/"+leases[at(client, n)]+"/renew", nil) }),
			l.always(ctx, "by name", clients, func(client, n int) []byte {
				return request("PUT", "/v1/services/beating/"+registration(at(client, n)).ID+"/heartbeat", nil)
			}))
		if err != nil {
			return err
		}
	}
	return nil
}

const (
	edns     = 4096 // as in dnsperf
	sockets  = 16
	inFlight = 6                      // questions of a socket
	patience = 200 * time.Millisecond // for an answer
)

// dns asks for the addresses of ten instances over UDP, as fast as answers come.
func (s *session) dns(ctx context.Context) error {
	l, err := s.lone(ctx)
	if err != nil {
		return err
	}
	defer l.Stop()
	if _, err := l.fill(ctx, 10, func(int) string { return "payment" }); err != nil {
		return err
	}
	s.table("DNS over UDP, a service of 10 instances")
	for _, qtype := range []uint16{dns.TypeA, dns.TypeSRV} {
		m := new(dns.Msg)
		m.SetQuestion("payment.service.blackhole.", qtype)
		m.SetEdns0(edns, false)
		question, err := m.Pack()
		if err != nil {
			return fault.As("bench.dns", fault.Internal, err)
		}
		run := func(ctx context.Context, _ int) (sample, error) { return l.ask(ctx, question) }
		if err := s.compare(ctx, task{dns.TypeToString[qtype], sockets, []*process.Process{l.peer.Process}, run}); err != nil {
			return err
		}
	}
	return nil
}

// ask keeps some questions in flight on each socket: an answer triggers the next question. An operation is a batch of them.
func (l *lone) ask(ctx context.Context, question []byte) (sample, error) {
	workers := make([]worker, sockets)
	for i := range workers {
		c, err := net.Dial("udp", l.peer.DNS)
		if err != nil {
			return sample{}, fault.As("bench.ask", fault.Unavailable, err)
		}
		defer c.Close()
		flow, id := ipv4.NewPacketConn(c.(*net.UDPConn)), byte(0)
		in, out := make([]ipv4.Message, inFlight), make([]ipv4.Message, inFlight)
		for k := range inFlight {
			in[k].Buffers, out[k].Buffers = [][]byte{make([]byte, edns)}, [][]byte{bytes.Clone(question)}
		}
		workers[i] = func(context.Context) (int, error) {
			if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
				return 0, err
			}
			id++ // late answers have another one
			for k := range out {
				out[k].Buffers[0][1] = id
			}
			for sent := 0; sent < inFlight; {
				n, err := flow.WriteBatch(out[sent:], 0)
				if err != nil {
					return 0, err
				}
				sent += n
			}
			for got := 0; got < inFlight; {
				n, err := flow.ReadBatch(in, 0)
				if err != nil {
					return got, err
				}
				for _, m := range in[:n] {
					if b := m.Buffers[0]; b[1] == id {
						got++
						if b[3]&15 != dns.RcodeSuccess || b[7] == 0 { // RCODE and ANCOUNT
							return got, errors.New("no answer in an answer")
						}
					}
				}
			}
			return inFlight, nil
		}
	}
	return closed(ctx, l.duration, workers), ctx.Err()
}
