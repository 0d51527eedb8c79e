// Package loopback gives tests addresses for processes that must know theirs before they start.
package loopback

import (
	"math/rand/v2"
	"net"
	"strconv"
	"testing"
)

// Free returns an address of loopback, HOST:PORT, that nobody uses for TCP. Its port is below those that systems give to who asks for any, so
// nobody gets it by chance before the test uses it.
func Free(t testing.TB) string {
	t.Helper()
	for range 100 {
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(12000+rand.IntN(20000))))
		if err != nil {
			continue
		}
		defer l.Close()
		return l.Addr().String()
	}
	t.Fatal("no port of a hundred is free")
	return ""
}
