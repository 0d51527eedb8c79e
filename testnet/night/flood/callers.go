package flood

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// Fronts are the addresses of a peer's APIs, on the loopback of its host.
type Fronts struct{ HTTP, DNS string }

// call is a program on the host of the peer, with ordinary rights: it registers, writes, asks, watches without reading,
// and keeps connections silent.
func call(ctx context.Context, h *hostile) {
	// A program for each address of the attacker: three.
	var silent held
	defer func() { silent.close() }()
	c := &http.Client{Timeout: callLimit}
	defer c.CloseIdleConnections()
	large := strings.Repeat("v", 64<<10)
	rest := func(method, path, body string) string {
		req, err := http.NewRequestWithContext(ctx, method, "http://"+h.order.Fronts.HTTP+path, strings.NewReader(body))
		if err != nil {
			return "internal"
		}
		resp, err := c.Do(req)
		if err != nil {
			return short(err)
		}
		_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxResponse))
		_ = resp.Body.Close()
		if resp.StatusCode >= http.StatusBadRequest {
			return resp.Status
		}
		return ""
	}
	open := func(text string) string {
		conn, err := (&net.Dialer{Timeout: callLimit}).DialContext(ctx, "tcp", h.order.Fronts.HTTP)
		if err != nil {
			return short(err)
		}
		silent.keep(conn)
		_, err = io.WriteString(conn, text)
		return because(err)
	}
	for i := 0; h.pace.turn(ctx, 1); i++ {
		switch i % 8 {
		case 0:
			h.tally.send(1, rest("POST", "/v1/services/greedy/instances", `{"host":"192.0.2.2","port":80}`))
		case 1:
			h.tally.send(1, rest("PUT", fmt.Sprintf("/v1/coordination/keys/greedy%%2F%d", i%64), large))
		case 2:
			h.tally.send(1, rest("GET", "/v1/coordination/keys?prefix=true", ""))
		case 3:
			h.tally.send(1, rest("POST", "/mcp",
				`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"find_offers","arguments":{"type":"compute"}}}`))
		case 4:
			h.tally.send(1, open("GET /v1/events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"))
		case 5:
			h.tally.send(1, open(""))
		case 6:
			h.tally.send(1, open("PUT /v1/coordination/keys/half HTTP/1.1\r\nHost: localhost\r\n"+
				"Content-Length: 1048576\r\n\r\n"+large))
		default:
			q := new(dns.Msg).SetQuestion("greedy.service.blackhole.", dns.TypeA)
			_, _, err := (&dns.Client{Timeout: time.Second}).ExchangeContext(ctx, q, h.order.Fronts.DNS)
			h.tally.send(1, because(err))
		}
	}
}
