package daemon

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/internal/operator"
	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// TestDebugHasNoSecrets uses a peer with all kinds of secrets, at the most talkative level, and searches its report.
func TestDebugHasNoSecrets(t *testing.T) {
	const admin, other, stranger = "canary-of-the-admin", "canary-of-another", "canary-of-nobody"
	dir, key := t.TempDir(), newKey(t)
	require.NoError(t, access.CreateNetworkKey(filepath.Join(dir, keyFile), key))
	c := config.Default()
	c.Network.Closed = true
	c.Auth.Token = func() string { return admin }
	c.Auth.Tokens = []config.Token{{Token: func() string { return other }, Name: "web", Role: "service", Services: []string{"web"}}}
	p := startWith(t, c, dir)

	_, err := operatorCalls{p.parts}.SetLogLevel("debug")
	require.NoError(t, err)
	for _, token := range []string{admin, other, stranger} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.http+"/v1/locks?"+"token="+token, http.NoBody)
		require.NoError(t, err)
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
	}
	_, err = p.Client.Debug(t.Context())
	require.Contains(t, []fault.Kind{fault.Forbidden, fault.Unauthentic}, fault.KindOf(err), "a stranger gets no report")
	_, err = p.Client.SetLogLevel(t.Context(), "error")
	require.Contains(t, []fault.Kind{fault.Forbidden, fault.Unauthentic}, fault.KindOf(err))
	_, err = p.Client.LastChecks(t.Context(), instance.Key{Namespace: "default", Service: "web", ID: "web-1"})
	require.Contains(t, []fault.Kind{fault.Forbidden, fault.Unauthentic}, fault.KindOf(err), "a cause tells of the peer's network")

	of, err := operator.New(p.grpc, client.WithToken(admin))
	require.NoError(t, err)
	defer func() { require.NoError(t, of.Close()) }()
	identity, err := os.ReadFile(filepath.Join(dir, identityFile))
	require.NoError(t, err)
	secret := key()
	files, err := of.Debug(t.Context())
	require.NoError(t, err)
	var names []string
	for _, f := range files {
		names = append(names, f.Name)
		require.NotEmpty(t, f.Content, f.Name)
		for _, secret := range encoded(admin, other, stranger, string(secret[:]), string(identity)) {
			require.False(t, bytes.Contains(f.Content, []byte(secret)), "%s has a secret", f.Name)
		}
	}
	require.Equal(t, []string{"build.txt", "settings.txt", "metrics.txt", "goroutines.txt", "heap.pb.gz", "log.txt"}, names)
	require.Contains(t, string(files[1].Content), "auth.token: [redacted]\n")
	require.Contains(t, string(files[2].Content), "blackhole_build_info")
	require.Contains(t, string(files[3].Content), "goroutine profile: total")
}

// TestLastChecks: the operator learns over gRPC and REST alike why an instance is down.
func TestLastChecks(t *testing.T) {
	p := startWith(t, config.Default(), t.TempDir())
	k := instance.Key{Namespace: "default", Service: "pay", ID: "pay-1"}
	spec := instance.Spec{Host: "127.0.0.1", Port: 1, Check: &instance.Check{Type: instance.TCP, Interval: time.Second, Timeout: 500 * time.Millisecond}}
	_, err := p.Agent().Register(t.Context(), instance.Registration{Key: k, Spec: spec})
	require.NoError(t, err)
	var ends []instances.LastCheck
	require.Eventually(t, func() bool {
		ends, err = p.Client.LastChecks(t.Context(), k)
		return err == nil && len(ends) > 0
	}, patience, 20*time.Millisecond)
	require.False(t, ends[0].Passing)
	require.Contains(t, ends[0].Cause, "refused")

	resp, err := http.Get(p.http + "/v1/services/pay/instances/pay-1")
	require.NoError(t, err)
	defer resp.Body.Close()
	var shown instances.DetailJSON
	require.NoError(t, json.NewDecoder(resp.Body).Decode(&shown))
	require.NotEmpty(t, shown.LastChecks)
	first := shown.LastChecks[len(shown.LastChecks)-1]
	require.True(t, ends[len(ends)-1].At.Equal(first.At))
	require.Equal(t, ends[len(ends)-1].Cause, first.Cause)

	ends, err = p.Client.LastChecks(t.Context(), instance.Key{Namespace: "default", Service: "pay", ID: "other"})
	require.NoError(t, err)
	require.Empty(t, ends)
}

// encoded are secrets in the forms in which something may print them.
func encoded(secrets ...string) (all []string) {
	for _, s := range secrets {
		all = append(all, s, hex.EncodeToString([]byte(s)), base64.StdEncoding.EncodeToString([]byte(s)), base64.RawURLEncoding.EncodeToString([]byte(s)), fmt.Sprint([]byte(s)))
	}
	return all
}

// TestJournal changes the level while lines are written.
func TestJournal(t *testing.T) {
	var out bytes.Buffer
	log, j := newJournal(config.Log{Level: "warn", Format: "text"}, &out)
	log.Info("quiet")
	before, err := j.setLevel("debug")
	require.NoError(t, err)
	require.Equal(t, "warn", before)
	log.With("part", "x").Debug("heard")
	_, err = j.setLevel("loud")
	require.Equal(t, fault.Invalid, fault.KindOf(err))
	require.NotContains(t, out.String(), "quiet")
	require.Contains(t, out.String(), "heard")
	require.Equal(t, out.String(), string(j.lines()))

	for i := range 20_000 {
		log.Info("one of many lines", "number", i)
	}
	kept := string(j.lines())
	require.LessOrEqual(t, len(kept), maxJournal)
	require.Greater(t, len(kept), maxJournal/2)
	require.True(t, strings.HasPrefix(kept, "time="), kept[:40])
	require.True(t, strings.HasSuffix(kept, fmt.Sprintf("number=%d\n", 19_999)))
	require.LessOrEqual(t, len(j.kept), 2*maxJournal+len("time=2026-03-01T00:00:00.000Z level=INFO msg=\"one of many lines\" number=19999\n")+40)
}
