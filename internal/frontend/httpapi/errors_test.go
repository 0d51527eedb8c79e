package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/discovery"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// failing is a service that answers each call with an error, or with a panic for nil.
type failing struct {
	discovery.Registrar
	discovery.Finder
	err error
}

func (f failing) Query(context.Context, query.Query) (*query.Answer, error) {
	if f.err == nil {
		panic("a bug")
	}
	return nil, f.err
}

func (f failing) Own(string) (*records.Record, error) { return nil, f.err }

func (f failing) Resolve(context.Context, string) (*records.Record, error) { return nil, f.err }

func (f failing) Watch(context.Context, query.Query, string) (discovery.Watcher, error) {
	return nil, f.err
}

func (f failing) handler(t testing.TB) http.Handler {
	s := New(Config{Registrar: f, Finder: f, Metrics: http.NotFoundHandler()})
	t.Cleanup(s.Close)
	return s.Handler()
}

func TestErrorTable(t *testing.T) {
	type entry struct {
		status int
		code   string
	}
	table := map[fault.Kind]entry{
		fault.Internal:      {500, "internal_error"},
		fault.Invalid:       {400, "validation_error"},
		fault.NotFound:      {404, "service_not_found"},
		fault.Exists:        {409, "service_already_exists"},
		fault.LimitReached:  {429, "rate_limit_exceeded"},
		fault.Unauthentic:   {401, "unauthorized"},
		fault.Forbidden:     {403, "forbidden"},
		fault.Timeout:       {504, "timeout"},
		fault.Unavailable:   {503, "service_unavailable"},
		fault.Conflict:      {409, "conflict"},
		fault.TooLarge:      {413, "too_large"},
		fault.Unsupported:   {405, "method_not_allowed"},
		fault.Canceled:      {499, "canceled"},
		fault.Gone:          {410, "service_gone"},
		fault.Unprocessable: {422, "unprocessable"},
		fault.PoolExhausted: {429, "pool_exhausted"},

		fault.PaymentRequired: {402, "payment_required"},

		200: {500, "internal_error"},
	}
	for kind := fault.Internal; !strings.HasPrefix(kind.String(), "kind("); kind++ {
		require.Contains(t, table, kind)
	}
	for kind, want := range table {
		h := failing{err: fault.Wrap("a.B", &fault.Error{Op: "c.D", Kind: kind, Field: "f.g", Value: 7, Err: io.EOF})}.handler(t)
		for _, target := range []string{"/v1/discovery/query?type=x", own + "/a", "/v1/discovery/resolve?key=x", "/v1/discovery/watch?type=x"} {
			got := do(h, "GET", target, "")
			require.Equal(t, want.status, got.Code, target)
			body := object{"error": want.code, "message": "EOF", "field": "f.g", "value": 7.0}
			if want.status >= 500 { // the operator must fix it
				body["details"] = "a.B: c.D: f.g: EOF"
			}
			require.Equal(t, body, got.json)
		}
	}
}

// TestMessages: what a message says is understood without the fields beside it, and once.
func TestMessages(t *testing.T) {
	wrong := fault.Invalidf("port", 0, "must be 1 to 65535")
	for _, err := range []error{wrong, fault.Wrap("a.B", wrong), ofParameters(fault.Wrap("a.B", wrong))} {
		_, body := bodyOf(err)
		require.Equal(t, "Invalid port: must be 1 to 65535", body.Message)
		require.Empty(t, body.Details)
	}
	_, missing := bodyOf(fault.Invalidf("version", nil, "Missing required field: version"))
	require.Equal(t, "Missing required field: version", missing.Message)
	_, more := bodyOf(fault.Wrap("a.B", fmt.Errorf("%w (adopted from p)", wrong)))
	require.Equal(t, "a.B: port: must be 1 to 65535 (adopted from p)", more.Details)
}

func TestErrorsWithoutAField(t *testing.T) {
	got := do(failing{err: io.EOF}.handler(t), "GET", "/v1/discovery/query?type=x", "")
	require.Equal(t, 500, got.Code)
	require.Equal(t, object{"error": "internal_error", "message": "EOF"}, got.json)
}

func TestUnreadableValuesAreLeftOut(t *testing.T) {
	for _, value := range []any{math.NaN(), math.Inf(1), make(chan int), func() {}, strings.Repeat("x", maxValue)} {
		_, body := bodyOf(fault.Invalidf("f", value, "no"))
		require.Nil(t, body.Value)
	}
}

func TestPanicsEndNothing(t *testing.T) {
	h := failing{}.handler(t)
	got := do(h, "GET", "/v1/discovery/query?type=x", "")
	require.Equal(t, 500, got.Code)
	require.Equal(t, object{"error": "internal_error", "message": "internal error: see the log of the peer", "details": "httpapi: internal error: see the log of the peer"}, got.json)
	require.Equal(t, 200, do(h, "GET", "/livez", "").Code)
}

// TestPanicsCutAnswersOff: half an answer must not look like a whole one.
func TestPanicsCutAnswersOff(t *testing.T) {
	s := New(Config{Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("blackhole_up "))
		panic("a bug")
	})})
	t.Cleanup(s.Close)
	require.PanicsWithError(t, http.ErrAbortHandler.Error(), func() { do(s.Handler(), "GET", "/v1/metrics", "") })
}

// TestTerms of a payment are JSON if they can be.
func TestTerms(t *testing.T) {
	for terms, want := range map[string]string{`{"accepts":[]}`: `"terms":{"accepts":[]}`, "1 USDC\n": `"terms":"1 USDC\n"`} {
		code, body := bodyOf(fault.Wrap("a.B", &fault.Error{Kind: fault.PaymentRequired, Field: "proof", Value: []byte(terms), Err: io.EOF}))
		require.Equal(t, http.StatusPaymentRequired, code)
		text, err := json.Marshal(body)
		require.NoError(t, err)
		require.Contains(t, string(text), want)
		require.NotContains(t, string(text), `"value"`)
	}
}
