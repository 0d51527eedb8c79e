package probe

import (
	"bytes"
	"io"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzHealth: only an answer of the status 0 with a whole message tells a health.
func FuzzHealth(f *testing.F) {
	f.Add("0", []byte("\x00\x00\x00\x00\x02\x08\x01"))
	f.Add("0", []byte("\x00\xff\xff\xff\xff\x08\x01"))
	f.Add("5", []byte{})
	f.Fuzz(func(t *testing.T, status string, body []byte) {
		a, err := healthOf(&http.Response{
			StatusCode: http.StatusOK,
			Header:     http.Header{"Content-Type": {"application/grpc"}},
			Trailer:    http.Header{"Grpc-Status": {status}},
			Body:       io.NopCloser(bytes.NewReader(body)),
		})
		require.NoError(t, err)
		require.Equal(t, status, a.Status)
		if a.Health != nil {
			require.Equal(t, "0", status)
			require.GreaterOrEqual(t, len(body), 5)
		}
	})
}
