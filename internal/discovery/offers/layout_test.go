package offers

import (
	"fmt"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/store/storetest"
)

// TestLayout opens a database of format 1, byte by byte, and writes the same bytes: an update of the program
// keeps the services.
func TestLayout(t *testing.T) {
	const (
		a = `{"format":1,"offer":{"id":"a","metadata":{"type":"relay","name":"Relay a"},"location":{"latitude":52.52,"longitude":13.4}},` +
			`"created":"2026-03-01T12:00:00Z","until":"2026-03-02T12:00:00Z","current":{"issued":"2026-03-01T12:00:00Z","envelope":"` +
			`CiQIARIgiojj3XQJ8ZX9UtstPLpdcspnCb8dlBIb83SIAbQPb1wSIC9ibGFja2hvbGUvdGVzdC9zZXJ2aWNlLXJlY29yZC8xGn4KAWESNDEyRDNLb29XSzk5Vm9WeE5FN1h6` +
			`eUJ3WEV6Vzd4aEs3R3B2ODVyOUYzVjNmeUtTVUtQSDUaEAoFcmVsYXkaB1JlbGF5IGEqEgnD9Shcj0JKQBHNzMzMzMwqQEIGCMDUkM0GSgYIwNSQzQZSBgjA95XNBmCAlJTK` +
			`yjMqQDPXTce9CdW0y3bc+cwpXHPEuer7bPiNnJRSsyS8EJvKZfR4IBOxAZvBHtuoy5XPgcXpZgLbHP/b29418zmfRws="}}`
		b = `{"format":1,` +
			`"created":"2026-03-01T12:00:00Z","until":"2026-03-02T12:00:00Z","current":{"issued":"2026-03-01T12:00:00Z","envelope":"` +
			`CiQIARIgiojj3XQJ8ZX9UtstPLpdcspnCb8dlBIb83SIAbQPb1wSIC9ibGFja2hvbGUvdGVzdC9zZXJ2aWNlLXJlY29yZC8xGmMKAWISNDEyRDNLb29XSzk5Vm9WeE5FN1h6` +
			`eUJ3WEV6Vzd4aEs3R3B2ODVyOUYzVjNmeUtTVUtQSDUaBwoFcmVsYXlCBgjA1JDNBkoGCMDUkM0GUgYIwPeVzQZggZSUysozaAEqQPQOGx61dHIGfBo71Hl7c4Q0VI4q+N+i` +
			`3h0cvF5N+jfHBnsoay22d0pIIGgboYLKnVkS+mFzF4L3h/F2eUyUuwA="}}`
	)
	c := config(t, vfs.NewMem())
	meta := func(floor uint64) string {
		return fmt.Sprintf(`{"format":1,"provider":"%s","floor":%d}`, self(t, c), floor)
	}
	storetest.Write(t, c.FS, c.Dir, map[string]string{"meta": meta(0), "service/a": a, "service/b": b})
	r, err := Open(c, epoch())
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, ids(r.List()))
	require.Len(t, r.Due(epoch(), 10), 2, "the tombstone too")
	require.NoError(t, r.Close())
	require.Equal(t, map[string]string{"meta": meta(0), "service/a": a, "service/b": b}, read(t, c))

	r = open(t, c, epoch())
	gone := r.services["b"].current
	r.Due(gone.Expires().Add(-time.Second), 10) // renews a
	r.Due(gone.Expires(), 10)                   // deletes b
	require.NoError(t, r.Close())
	left := read(t, c)
	require.Equal(t, meta(gone.Sequence()), left["meta"])
	require.NotContains(t, left, "service/b")
}
