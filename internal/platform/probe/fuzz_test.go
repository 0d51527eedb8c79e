package probe

import (
	"bytes"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/clean"
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

// FuzzJudge: whatever a server answers, no check fails; only a success, or a page about TLS, is wrong; an answer in
// error never answers.
func FuzzJudge(f *testing.F) {
	f.Add(uint16(200), "application/json", "", []byte(discovered))
	f.Add(uint16(402), "Payment-Required", "e30=", []byte(payment))
	f.Add(uint16(200), "Content-Type", "text/event-stream", []byte("event: endpoint\ndata: /x\n\n"))
	f.Add(uint16(503), "Retry-After", "9", []byte("[[[["))
	f.Fuzz(func(t *testing.T, code uint16, name, value string, body []byte) {
		for _, d := range dialects() {
			a := &answer{status: int(code) % 600, header: http.Header{http.CanonicalHeaderKey(name): {value}}, body: body}
			if strings.HasPrefix(value, "text/event-stream") {
				a.event, a.body = eventOf(bytes.NewReader(body), d.event)
			}
			o := a.judge(&d, true)
			success := a.status/100 == 2
			require.True(t, success || o.State != Answers)
			require.True(t, success || a.status == 400 || o.State != Wrong)
			require.True(t, slices.Contains([]State{cannotTell, Answers, Closed, Refuses, Wrong}, o.State))
			require.LessOrEqual(t, o.Again, MaxWait)
			require.GreaterOrEqual(t, o.Asks.Amount, 0.0)
			require.NotEmpty(t, o.Detail)
			text := clean.Text(o.Text, maxText)
			require.LessOrEqual(t, len(text), maxText)
			require.Equal(t, text, strings.ToValidUTF8(text, "?"))
		}
	})
}
