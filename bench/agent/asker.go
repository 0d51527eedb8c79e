package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"strconv"

	"github.com/blackhole/blackhole/pkg/fault"
)

// asker is a client with its own connection. It does the work of a load generator in C: it writes
// a prepared request and reads the whole answer without parsing the body. The client of net/http
// would take more processor time than the measured servers.
type asker struct {
	conn  net.Conn
	in    *bufio.Reader
	index string // name of the header to report
	body  []byte // of the last fetched answer

	release func() bool
}

// answer is an answer of a server. Its body is valid until the next answer.
type answer struct {
	status int
	length int // of the body; -1: in chunks
	index  string
	body   []byte
}

// dial connects to a server, until the context ends.
func dial(ctx context.Context, address, index string) (*asker, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, fault.As("dial", fault.Unavailable, err)
	}
	a := &asker{conn: conn, in: bufio.NewReaderSize(conn, 256<<10), index: index}
	a.release = context.AfterFunc(ctx, func() { _ = conn.Close() }) // fails pending reads and writes
	return a, nil
}

func (a *asker) close() {
	a.release()
	_ = a.conn.Close() // no call is in flight
}

// request formats a request.
func request(method, host, path, body string) []byte {
	dst := fmt.Appendf(nil, "%s %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: bench\r\nAccept: */*\r\n", method, path, host)
	if body != "" {
		dst = fmt.Appendf(dst, "Content-Type: application/json\r\nContent-Length: %d\r\n", len(body))
	}
	return append(append(dst, "\r\n"...), body...)
}

// ask sends a request and reads its answer. Every status except success is an error.
func (a *asker) ask(request []byte) error {
	_, err := a.exchange(request, false)
	return err
}

// fetch is ask with the answer.
func (a *asker) fetch(request []byte) (answer, error) {
	return a.exchange(request, true)
}

func (a *asker) exchange(request []byte, keep bool) (answer, error) {
	if _, err := a.conn.Write(request); err != nil {
		return answer{}, fault.As("ask", fault.Unavailable, err)
	}
	got, err := a.header()
	if err != nil {
		return got, fault.As("ask", fault.Unavailable, err)
	}
	keep = keep || got.status/100 != 2
	a.body = a.body[:0]
	if err := a.read(got.length, keep); err != nil {
		return got, fault.As("ask", fault.Unavailable, err)
	}
	got.body = a.body
	if got.status/100 != 2 {
		line, _, _ := bytes.Cut(request, []byte("\r\n"))
		return got, fault.New("ask", fault.Unavailable, "%s: %d %.200s", line, got.status, got.body)
	}
	return got, nil
}

// header reads the status and the fields that delimit the body.
func (a *asker) header() (got answer, err error) {
	line, err := a.in.ReadSlice('\n')
	if err != nil {
		return got, err
	}
	if len(line) < len("HTTP/1.1 200") {
		return got, fmt.Errorf("answered %q", line)
	}
	if got.status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return got, err
	}
	for {
		if line, err = a.in.ReadSlice('\n'); err != nil {
			return got, err
		}
		if len(line) <= len("\r\n") {
			return got, nil
		}
		name, value, _ := bytes.Cut(bytes.TrimSpace(line), []byte(": "))
		switch string(name) {
		case "Content-Length":
			got.length, err = strconv.Atoi(string(value))
		case "Transfer-Encoding":
			got.length = -1
		case a.index:
			got.index = string(value)
		}
		if err != nil {
			return got, err
		}
	}
}

// read reads a body.
func (a *asker) read(length int, keep bool) error {
	if length >= 0 {
		return a.take(length, keep)
	}
	for {
		line, err := a.in.ReadSlice('\n')
		if err != nil {
			return err
		}
		n, err := strconv.ParseUint(string(bytes.TrimSpace(line)), 16, 31)
		if err != nil {
			return err
		}
		if n == 0 {
			_, err := a.in.Discard(len("\r\n"))
			return err
		}
		if err := a.take(int(n), keep); err != nil {
			return err
		}
		if _, err := a.in.Discard(len("\r\n")); err != nil {
			return err
		}
	}
}

// take reads n bytes and keeps them on request.
func (a *asker) take(n int, keep bool) error {
	if !keep {
		_, err := a.in.Discard(n)
		return err
	}
	for n > 0 {
		part, err := a.in.Peek(min(n, a.in.Size()))
		if err != nil {
			return err
		}
		a.body = append(a.body, part...)
		n -= len(part)
		if _, err := a.in.Discard(len(part)); err != nil {
			return err
		}
	}
	return nil
}
