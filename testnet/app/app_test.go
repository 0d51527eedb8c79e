package app_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/app"
)

// TestServerDies: it is healthy until it is dead, and then nobody listens.
func TestServerDies(t *testing.T) {
	s, err := app.Serve()
	require.NoError(t, err)
	ask := func() error {
		resp, err := http.Get("http://" + s.Address() + app.Health)
		if err == nil {
			require.Equal(t, http.StatusNoContent, resp.StatusCode)
			require.NoError(t, resp.Body.Close())
		}
		return err
	}
	require.NoError(t, ask())
	s.Die()
	require.Error(t, ask())
}

// peer answers as told, and notes what it was asked.
func peer(t *testing.T, status int, stale, body string) (*app.REST, *http.Request) {
	t.Helper()
	var asked http.Request
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = *r
		if stale != "" {
			w.Header().Set("X-Blackhole-Stale", stale)
		}
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}))
	t.Cleanup(s.Close)
	return app.At(strings.TrimPrefix(s.URL, "http://"), nil), &asked
}

func TestBothFormsOfAService(t *testing.T) {
	for body, ids := range map[string][]string{
		`{"id":"a","host":"::1","port":80}`: {"a"}, `[{"id":"b"},{"id":"a"}]`: {"a", "b"}, `[]`: {},
	} {
		r, asked := peer(t, http.StatusOK, "true", body)
		got, err := r.Service(t.Context(), "web")
		require.NoError(t, err)
		require.Equal(t, ids, got.IDs())
		require.True(t, got.Stale)
		require.Equal(t, "/v1/services/web", asked.URL.Path)
	}
	r, _ := peer(t, http.StatusNotFound, "", `{"error":"service_not_found"}`)
	got, err := r.Service(t.Context(), "web")
	require.NoError(t, err)
	require.Empty(t, got.IDs())
	require.Equal(t, "[::1]:80", app.Instance{Host: "::1", Port: 80}.Address())
}

func TestRefusalsHaveTheirKinds(t *testing.T) {
	for status, want := range map[int]fault.Kind{
		400: fault.Invalid, 404: fault.NotFound, 409: fault.Exists, 410: fault.Gone, 422: fault.Invalid,
		429: fault.LimitReached, 500: fault.Internal, 503: fault.Unavailable, 504: fault.Timeout,
	} {
		r, _ := peer(t, status, "", `{"message":"no luck today"}`)
		_, err := r.Register(t.Context(), "web", app.Registration{ID: "a"}, true)
		require.ErrorIs(t, err, want, status)
		require.ErrorContains(t, err, "no luck today")
	}
	s := httptest.NewServer(http.NotFoundHandler())
	s.Close()
	r := app.At(strings.TrimPrefix(s.URL, "http://"), nil)
	_, err := r.Instances(t.Context(), "web", true)
	require.ErrorIs(t, err, fault.Unavailable)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, r.Deregister(ctx, "web", "a"), fault.Canceled)
}

func TestRegister(t *testing.T) {
	r, asked := peer(t, http.StatusAccepted, "", `{"instance_id":"a","lease_id":"l","committed":false}`)
	got, err := r.Register(t.Context(), "web", app.Registration{ID: "a"}, true)
	require.NoError(t, err)
	require.Equal(t, app.Receipt{ID: "a", Lease: "l"}, got)
	require.Equal(t, "/v1/services/web/instances?require_commit=true", asked.URL.String())
}

// TestWatch: what is no news is passed over, and an end is an error.
func TestWatch(t *testing.T) {
	r, asked := peer(t, http.StatusOK, "", "event: reset\nid: 1\ndata: {\"instances\":[{\"id\":\"a\"}]}\n\n: progress\nid: 2\n\n"+
		"event: contact\ndata: {\"stale\":true}\n\n"+
		"event: change\nid: 3\ndata: {\"index\":3,\"events\":[{\"type\":\"DELETED\",\"instance\":{\"id\":\"a\",\"health\":\"DOWN\"},\"revision\":3}]}\n\n")
	var got []app.Change
	err := r.Watch(t.Context(), "web", func(c app.Change) error { got = append(got, c); return nil })
	require.ErrorIs(t, err, fault.Unavailable)
	require.Equal(t, []app.Change{
		{Reset: true, Instances: []app.Instance{{ID: "a"}}},
		{Events: []app.Event{{Type: "DELETED", Instance: app.Instance{ID: "a", Health: "DOWN"}, Revision: 3}}},
	}, got)
	require.Equal(t, "text/event-stream", asked.Header.Get("Accept"))
	enough := errors.New("enough")
	require.ErrorIs(t, r.Watch(t.Context(), "web", func(app.Change) error { return enough }), enough)
}
