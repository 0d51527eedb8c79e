package main

import (
	"encoding/binary"
	"errors"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/net/ipv4"
)

const (
	service  = "payment.service.blackhole."
	edns     = 4096                   // as in dnsperf
	patience = 200 * time.Millisecond // for an answer
	samples  = 2000                   // questions one at a time
)

// total is the count of a load.
type total struct {
	answers, lost uint64
	took          time.Duration
}

func packed(qtype uint16) ([]byte, error) {
	m := new(dns.Msg)
	m.SetQuestion(service, qtype)
	m.SetEdns0(edns, false)
	return m.Pack()
}

// alone asks one question after the other.
func alone(address string, qtype uint16) (size int, p50, p99 time.Duration, err error) {
	query, err := packed(qtype)
	if err != nil {
		return 0, 0, 0, err
	}
	conn, err := net.Dial("udp", address)
	if err != nil {
		return 0, 0, 0, err
	}
	defer conn.Close()
	buf := make([]byte, edns)
	took := make([]time.Duration, samples)
	for i := range took {
		start := time.Now()
		if _, err := conn.Write(query); err != nil {
			return 0, 0, 0, err
		}
		if err := conn.SetReadDeadline(start.Add(time.Second)); err != nil {
			return 0, 0, 0, err
		}
		if size, err = conn.Read(buf); err != nil {
			return 0, 0, 0, err
		}
		took[i] = time.Since(start)
	}
	if m := new(dns.Msg); m.Unpack(buf[:size]) != nil || m.Rcode != dns.RcodeSuccess || len(m.Answer) == 0 {
		return 0, 0, 0, errors.New("no answer in an answer")
	}
	slices.Sort(took)
	return size, took[samples/2], took[samples*99/100], nil
}

// ask is one load.
func (o options) ask(address string, qtype uint16) (total, error) {
	query, err := packed(qtype)
	if err != nil {
		return total{}, err
	}
	var (
		mu     sync.Mutex // guards all and failed
		all    total
		failed error
		asking sync.WaitGroup
	)
	start := time.Now()
	for range o.sockets {
		asking.Go(func() {
			t, err := flow(address, query, o.window/o.sockets, start.Add(o.duration))
			mu.Lock()
			defer mu.Unlock()
			all.answers += t.answers
			all.lost += t.lost
			failed = errors.Join(failed, err)
		})
	}
	asking.Wait()
	all.took = time.Since(start)
	return all, failed
}

// flow keeps window questions in flight on a socket. Each answer triggers the next question.
func flow(address string, query []byte, window int, until time.Time) (t total, err error) {
	c, err := net.Dial("udp", address)
	if err != nil {
		return t, err
	}
	defer c.Close()
	p := ipv4.NewPacketConn(c.(*net.UDPConn))
	in, out := make([]ipv4.Message, window), make([]ipv4.Message, window)
	for i := range window {
		in[i].Buffers = [][]byte{make([]byte, edns)}
		out[i].Buffers = [][]byte{slices.Clone(query)}
	}
	id := uint16(0)
	for due := window; ; {
		for i := range due {
			id++
			binary.BigEndian.PutUint16(out[i].Buffers[0], id)
		}
		for sent := 0; sent < due; {
			n, err := p.WriteBatch(out[sent:due], 0)
			if err != nil {
				return t, err
			}
			sent += n
		}
		now := time.Now()
		if now.After(until) {
			return t, nil
		}
		if err := c.SetReadDeadline(now.Add(patience)); err != nil {
			return t, err
		}
		due, err = p.ReadBatch(in, 0)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.lost += uint64(window)
			due = window
			continue
		}
		if err != nil {
			return t, err
		}
		t.answers += uint64(due)
	}
}
