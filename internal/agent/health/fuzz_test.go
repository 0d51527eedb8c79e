package health

import (
	"bytes"
	"io"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/probe"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// FuzzEndpoint checks that an endpoint is rejected, or leads to one request to
// the instance's own host or an allowed loopback address.
func FuzzEndpoint(f *testing.F) {
	for _, seed := range []string{"", "/", "//b/", "http://b/", "http://a@b/", "http://a:80@b/", "https://a:443/?q#f", `http://b\@a/`, "8080", ":1", "b:1", "[::1]:1", "80/svc"} {
		f.Add("HTTP", "a", seed, false)
		f.Add("gRPC", "10.0.0.1", seed, true)
		f.Add("TCP", "::1", seed, true)
	}
	c := &Checker{policy: probe.NewPolicy()}
	f.Fuzz(func(t *testing.T, kind, host, endpoint string, local bool) {
		p, err := c.newPlan(Target{
			Host: host, Port: 80, Local: local,
			Check: instance.Check{Type: instance.CheckType(kind), Endpoint: endpoint},
		})
		if err != nil {
			require.ErrorIs(t, err, fault.Invalid)
			return
		}
		require.True(t, alike(p.host, host) || local && isLoopback(p.host), "goes to %q", p.host)
		require.NotZero(t, p.port)
		if a, err := netip.ParseAddr(p.host); err == nil {
			require.NoError(t, c.policy.Check(a, local))
		}
		if p.target.Check.Type == instance.HTTP && netipOrName(host) {
			request, rest, _ := strings.Cut(string(requestOf(p)), "\r\n")
			require.Len(t, strings.Fields(request), 3, "%q", request)
			require.Equal(t, 5, strings.Count(rest, "\n"), "%q", rest)
		}
	})
}

// netipOrName reports whether the validation of an instance may accept a host.
func netipOrName(host string) bool {
	_, err := netip.ParseAddr(host)
	return err == nil || !strings.ContainsFunc(host, func(r rune) bool { return r <= ' ' || r > '~' })
}

// talk is a connection with one answer.
type talk struct {
	io.Reader
	io.Writer
}

// FuzzAnswer checks that reads are bounded and that only 2xx passes.
func FuzzAnswer(f *testing.F) {
	for _, seed := range []string{
		"", "HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx", "HTTP/1.1 100 x\r\n\r\nHTTP/1.1 204 x\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n", "HTTP/1.1 302 x\r\nLocation: /\r\n\r\n",
	} {
		f.Add([]byte(seed))
	}
	p := &plan{host: "a", port: 80, resource: "/"}
	f.Fuzz(func(t *testing.T, answer []byte) {
		const more = 1 << 16
		tail := bytes.NewReader(make([]byte, more))
		err := exchange(talk{io.MultiReader(bytes.NewReader(answer), tail), io.Discard}, p)
		if read := more - tail.Len(); read > 0 {
			require.LessOrEqual(t, len(answer)+read, maxAnswer)
		}
		if err == nil {
			require.Contains(t, string(answer), " 2")
		} else {
			require.NotEqual(t, fault.Internal, fault.KindOf(err))
		}
	})
}
