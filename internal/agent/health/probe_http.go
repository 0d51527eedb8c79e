package health

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strconv"

	"github.com/blackhole/blackhole/pkg/fault"
)

// maxInterim bounds the 1xx answers before the final one.
const maxInterim = 5

// probeHTTP passes if a GET, or a HEAD, receives a 2xx answer with a readable start of the
// body. It speaks HTTP/1.1 (RFC 9112) over a connection of its own: no
// redirects, no kept connections, no leftover goroutines.
func (c *Checker) probeHTTP(ctx context.Context, p *plan) error {
	l, err := c.line(ctx, p)
	if err != nil {
		return err
	}
	conn, end, err := l.Open(ctx, "http/1.1")
	if err != nil {
		return failed("health.dial", err)
	}
	defer end()
	return exchange(conn, p)
}

// exchange sends the request and reads the bounded answer.
func exchange(conn io.ReadWriter, p *plan) error {
	const op = "health.http"
	if _, err := conn.Write(requestOf(p)); err != nil {
		return failed(op, err)
	}
	limited := &io.LimitedReader{R: conn, N: maxAnswer}
	answer, err := readAnswer(bufio.NewReaderSize(limited, 2<<10), &http.Request{Method: p.method()})
	if err != nil {
		return failed(op, err)
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode < 200 || answer.StatusCode > 299 {
		return refused(op, "answered %d", answer.StatusCode)
	}
	if _, err := io.CopyN(io.Discard, answer.Body, maxBody); err != nil && err != io.EOF && limited.N > 0 {
		return failed(op, err)
	}
	return nil
}

// requestOf formats the request. parseURL excludes control characters and
// spaces.
func requestOf(p *plan) []byte {
	b := make([]byte, 0, 256)
	b = append(append(b, p.method()...), ' ')
	b = append(b, p.resource...)
	b = append(b, " HTTP/1.1\r\nHost: "...)
	b = append(b, net.JoinHostPort(p.host, strconv.Itoa(int(p.port)))...)
	return append(b, "\r\nUser-Agent: "+userAgent+"\r\nAccept: */*\r\nConnection: close\r\n\r\n"...)
}

func (p *plan) method() string {
	if p.target.Head {
		return http.MethodHead
	}
	return http.MethodGet
}

// readAnswer skips interim answers.
func readAnswer(r *bufio.Reader, to *http.Request) (*http.Response, error) {
	for range maxInterim {
		answer, err := http.ReadResponse(r, to)
		if err != nil || answer.StatusCode > 199 || answer.StatusCode == http.StatusSwitchingProtocols {
			return answer, err
		}
	}
	return nil, fault.New("health.http", fault.Unavailable, "more than %d interim answers", maxInterim)
}
