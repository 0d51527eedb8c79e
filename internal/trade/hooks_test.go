package trade

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/platform/script"
	"github.com/blackhole/blackhole/internal/trade/ledger"
	"github.com/blackhole/blackhole/pkg/fault"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	pb "github.com/blackhole/blackhole/proto/blackhole/trade/v1"
)

// seller is a granter with hooks, whose commands are played by a function.
type seller struct {
	*hooks
	shelf *flaky
	mu    sync.Mutex
	calls []string // guarded by mu: name of the command, state of the grant, and a mark of what was durable
}

// flaky is a shelf that fails as long as it is told to.
type flaky struct {
	groupShelf
	mu     sync.Mutex
	failed error
}

func (f *flaky) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failed = err
}

func (f *flaky) swap(ctx context.Context, revision int64, value []byte) (int64, error) {
	f.mu.Lock()
	err := f.failed
	f.mu.Unlock()
	if err != nil {
		return 0, err
	}
	return f.groupShelf.swap(ctx, revision, value)
}

// durable returns the entry of a grant as another process would read it.
func (s *seller) durable(t *testing.T, token string) *pb.Entry {
	t.Helper()
	value, _, err := s.shelf.groupShelf.read(t.Context())
	require.NoError(t, err)
	var state pb.Ledger
	require.NoError(t, proto.Unmarshal(value, &state))
	for _, e := range state.GetEntries() {
		if token == "" || token == strconv.FormatUint(e.GetToken(), 10) {
			return e
		}
	}
	return nil
}

// play is what a command does: how it ends, and after which time.
type play func(o occasion, grant map[string]any) (script.Result, time.Duration)

// newSeller starts a seller whose ledger is in a group.
func newSeller(t *testing.T, group *flaky, h Hooks, p play) *seller {
	t.Helper()
	s := &seller{shelf: group}
	g := newGranter(t, vfs.NewMem(), &place{shelf: group, name: "group"}, func(g *granter) {
		var err error
		s.hooks, err = newHooks(h, g, func(e *pb.Entry) (*pb.SignedGrant, error) {
			text, err := proto.Marshal(&api.Grant{Token: e.Token, ConsumerId: e.ConsumerId, TtlMs: e.TtlMs, State: e.State, Reason: e.Reason})
			return &pb.SignedGrant{Grant: text, Signature: []byte("signature")}, err
		}, slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		g.ended = s.sweep
		s.run = func(ctx context.Context, argv []string, in []byte) (script.Result, error) {
			var o occasion
			require.NoError(t, json.Unmarshal(in, &o))
			require.Equal(t, o.Hook, filepath.Base(argv[0]))
			var grant map[string]any
			require.NoError(t, json.Unmarshal(o.Grant, &grant))
			signed := &pb.SignedGrant{}
			require.NoError(t, proto.Unmarshal(o.Signed, signed))
			require.Equal(t, "signature", string(signed.Signature))
			e := s.durable(t, grant["token"].(string))
			require.NotNil(t, e, "nothing runs for a grant that is not durable")
			owed := map[bool]string{true: ", end owed"}[e.GetOwed() > 0]
			s.mu.Lock()
			s.calls = append(s.calls, o.Hook+" "+strings.ToLower(strings.TrimPrefix(e.GetState().String(), "STATE_"))+owed)
			s.mu.Unlock()
			r, takes := p(o, grant)
			select {
			case <-time.After(takes):
				return r, nil
			case <-ctx.Done():
				return script.Result{}, fault.Wrap("", ctx.Err())
			}
		}
	})
	g.disk.mu.Lock() // a process that has granted before
	g.disk.values[homeName] = []byte(`{"name":"group","longest":0}`)
	g.disk.mu.Unlock()
	t.Cleanup(func() { s.stop() })
	return s
}

// stop is a crash for the commands.
func (s *seller) stop() {
	s.cancel()
	s.work.Wait()
}

func (s *seller) called() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.calls...)
}

// ask reserves like a consumer.
func (s *seller) ask(ctx context.Context, request string, proof ...byte) (*pb.Entry, error) {
	e, err := s.granter.do(ctx, true, func(l *ledger.Ledger, now time.Duration) (*pb.Entry, error) {
		r := &api.ReserveRequest{Key: "/k/gpu", Units: 1, TtlMs: 100_000, RequestId: request, Hold: true}
		return l.Reserve(ledger.Consumer{ID: "buyer"}, r, terms(4), now, time.Now())
	})
	if err != nil {
		return nil, err
	}
	return s.activate(ctx, e, proof)
}

func newGroup() *flaky {
	return &flaky{groupShelf: groupShelf{coordtest.New(coordtest.Config{}), "provider"}}
}

// commands returns hooks of programs that exist everywhere where tests run, by the names of links to them.
func commands(t *testing.T, names ...string) Hooks {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	dir, h := t.TempDir(), Hooks{Limit: 5 * time.Second}
	for _, name := range names {
		at := filepath.Join(dir, name)
		require.NoError(t, os.Symlink(self, at))
		*map[string]*[]string{"on_pay": &h.OnPay, "on_grant": &h.OnGrant, "on_end": &h.OnEnd}[name] = []string{at, "--flag"}
	}
	return h
}

// TestHooks: each command runs once, in its order, for what is durable. A repetition gets the same grant.
func TestHooks(t *testing.T) {
	h := commands(t, "on_grant", "on_end")
	synctest.Test(t, func(t *testing.T) {
		s := newSeller(t, newGroup(), h, func(o occasion, grant map[string]any) (script.Result, time.Duration) {
			require.Equal(t, "gpu", o.Offer)
			require.Equal(t, "buyer", grant["consumer_id"])
			require.Equal(t, "100000", grant["ttl_ms"])
			return script.Result{Out: []byte("for " + string(o.Proof) + "\n")}, time.Second
		})
		var copies sync.WaitGroup
		for range 3 {
			copies.Go(func() {
				e, err := s.ask(t.Context(), "r", []byte("a key")...)
				require.NoError(t, err)
				require.Equal(t, api.Grant_STATE_ACTIVE, e.GetState())
				require.Equal(t, "for a key", e.GetHandover())
			})
		}
		copies.Wait()
		e, err := s.ask(t.Context(), "r")
		require.NoError(t, err)
		require.Equal(t, "for a key", e.GetHandover())
		late := proto.CloneOf(e)
		late.State = api.Grant_STATE_HELD // a copy of the request that was read before the grant was active
		e, err = s.activate(t.Context(), late, nil)
		require.NoError(t, err)
		require.Equal(t, api.Grant_STATE_ACTIVE, e.GetState())
		require.Equal(t, []string{"on_grant held, end owed"}, s.called())
		require.Equal(t, uint32(1), s.durable(t, "").GetOwed())

		time.Sleep(110 * time.Second)
		require.Equal(t, []string{"on_grant held, end owed", "on_end expired, end owed"}, s.called())
		require.True(t, s.durable(t, "").GetFree())
		time.Sleep(105 * time.Second)
		require.Nil(t, s.durable(t, ""), "forgotten after as long a time again")

		e, err = s.ask(t.Context(), "r2")
		require.NoError(t, err)
		_, err = s.granter.do(t.Context(), false, func(l *ledger.Ledger, now time.Duration) (*pb.Entry, error) { return l.Release("buyer", e.Token, now) })
		require.NoError(t, err)
		time.Sleep(2 * time.Second)
		require.Equal(t, []string{"on_grant held, end owed", "on_end released, end owed"}, s.called()[2:])
		require.Zero(t, s.durable(t, "").GetOwed())
		s.stop()
	})
}

// TestFailures of on_grant revoke the grant, with a reason for its holder, and on_end runs after them.
func TestFailures(t *testing.T) {
	h := commands(t, "on_grant", "on_end")
	for name, c := range map[string]struct {
		ends   script.Result
		takes  time.Duration
		reason string
	}{
		"words":     {script.Result{Code: 1, Err: []byte("\n no \x1b[2Jroom \nsecret\n")}, 0, "no \ufffd[2Jroom "},
		"silent":    {script.Result{Code: 1}, 0, "on_grant of the provider failed"},
		"pay":       {script.Result{Code: payCode, Out: []byte("terms")}, 0, "on_grant of the provider failed"},
		"late":      {script.Result{}, time.Minute, "on_grant of the provider took longer than 5s"},
		"long":      {script.Result{Out: make([]byte, ledger.MaxHandover+1)}, 0, "on_grant of the provider wrote too much"},
		"not text":  {script.Result{Out: []byte("a\x00b")}, 0, "on_grant of the provider wrote something else than text"},
		"long line": {script.Result{Code: 3, Err: []byte(strings.Repeat("e", 300))}, 0, strings.Repeat("e", 197) + "…"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSeller(t, newGroup(), h, func(o occasion, _ map[string]any) (script.Result, time.Duration) {
					if o.Hook == "on_end" {
						return script.Result{}, 0
					}
					return c.ends, c.takes
				})
				for range 2 { // also a repetition
					e, err := s.ask(t.Context(), "r")
					require.NoError(t, err)
					require.Equal(t, api.Grant_STATE_REVOKED, e.GetState())
					require.Equal(t, c.reason, e.GetReason())
					require.Empty(t, e.GetHandover())
				}
				synctest.Wait()
				require.Equal(t, []string{"on_grant held, end owed", "on_end revoked, end owed"}, s.called())
				require.Zero(t, s.durable(t, "").GetOwed())
				s.stop()
			})
		})
	}
}

// TestNothingRunsBeforeItIsDurable: without a ledger no command runs, and after one its outcome waits for the ledger.
func TestNothingRunsBeforeItIsDurable(t *testing.T) {
	h := commands(t, "on_grant")
	synctest.Test(t, func(t *testing.T) {
		group := newGroup()
		s := newSeller(t, group, h, func(occasion, map[string]any) (script.Result, time.Duration) {
			group.fail(errors.New("no majority"))
			return script.Result{Out: []byte("a key")}, time.Second
		})
		group.fail(errors.New("no majority"))
		_, err := s.ask(t.Context(), "r")
		require.ErrorIs(t, err, fault.Unavailable)
		require.Empty(t, s.called())
		group.fail(nil)
		ctx, cancel := context.WithTimeout(t.Context(), serveTime)
		defer cancel()
		_, err = s.ask(ctx, "r")
		require.ErrorContains(t, err, "still prepares the grant")
		require.Equal(t, api.Grant_STATE_HELD, s.durable(t, "").GetState(), "its holder has heard nothing")
		group.fail(nil)
		time.Sleep(3 * time.Second)
		e, err := s.ask(t.Context(), "r")
		require.NoError(t, err)
		require.Equal(t, "a key", e.GetHandover())
		require.Len(t, s.called(), 1)
		s.stop()
	})
}

// TestCrashes: on_grant runs once at most, and on_end until it has succeeded, over restarts, or failed too often.
func TestCrashes(t *testing.T) {
	h := commands(t, "on_grant", "on_end")
	synctest.Test(t, func(t *testing.T) {
		group := newGroup()
		first := newSeller(t, group, h, func(occasion, map[string]any) (script.Result, time.Duration) { return script.Result{}, 4 * time.Second })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := first.ask(ctx, "r")
		require.ErrorIs(t, err, fault.Unavailable)
		first.stop()

		fails := func(o occasion, _ map[string]any) (script.Result, time.Duration) {
			if o.Hook == "on_end" {
				return script.Result{Code: 1}, 0
			}
			return script.Result{}, 0
		}
		second := newSeller(t, group, h, fails)
		e, err := second.ask(t.Context(), "r")
		require.NoError(t, err)
		require.Equal(t, api.Grant_STATE_REVOKED, e.GetState())
		require.Equal(t, "the provider stopped while it prepared the grant", e.GetReason())
		time.Sleep(5 * time.Second)
		require.Equal(t, []string{"on_end revoked, end owed", "on_end revoked, end owed", "on_end revoked, end owed"}, second.called(), "after 0, 1 and 3 s")
		second.stop()

		third := newSeller(t, group, h, fails)
		time.Sleep(10 * time.Minute)
		require.Len(t, third.called(), maxTries-3, "the tries of before count")
		require.Nil(t, third.durable(t, ""))
		third.stop()
	})
}

// TestPayment: the same request is refused with the terms, then paid, then repeated. The units are held meanwhile, and
// nobody is asked twice for a grant that is active.
func TestPayment(t *testing.T) {
	h := commands(t, "on_pay", "on_grant")
	const asked = `{"x402Version":1,"accepts":[{"scheme":"exact","maxAmountRequired":"400000"}]}`
	synctest.Test(t, func(t *testing.T) {
		s := newSeller(t, newGroup(), h, func(o occasion, _ map[string]any) (script.Result, time.Duration) {
			switch {
			case o.Hook == "on_grant":
				return script.Result{Out: []byte("a key")}, 0
			case o.Request == "extension":
				return script.Result{Code: payCode, Out: []byte("more")}, 0
			case string(o.Proof) == "slow":
				return script.Result{}, time.Minute
			case string(o.Proof) == "forged":
				return script.Result{Code: 1, Err: []byte("this payment is of another request")}, 0
			case string(o.Proof) == "paid "+o.Request:
				return script.Result{}, 0
			}
			return script.Result{Code: payCode, Out: []byte(asked)}, 0
		})
		_, err := s.ask(t.Context(), "r")
		require.ErrorIs(t, err, fault.PaymentRequired)
		require.Equal(t, asked, string(fault.ValueOf(err).([]byte)))
		require.Equal(t, api.Grant_STATE_HELD, s.durable(t, "").GetState())
		_, err = s.ask(t.Context(), "r", []byte("slow")...)
		require.ErrorIs(t, err, fault.Timeout, "the payment may come again")
		for range 2 {
			e, err := s.ask(t.Context(), "r", []byte("paid r")...)
			require.NoError(t, err)
			require.Equal(t, "a key", e.GetHandover())
			require.NoError(t, s.extend(t.Context(), &pb.Entry{Token: e.Token, ChangeId: "before"}, &api.ExtendRequest{RequestId: "before"}))
			if len(s.called()) == 4 {
				err = s.extend(t.Context(), e, &api.ExtendRequest{RequestId: "extension"})
				require.ErrorIs(t, err, fault.PaymentRequired)
			}
		}
		require.Equal(t, []string{"on_pay held", "on_pay held", "on_pay held", "on_grant held, end owed", "on_pay active, end owed"}, s.called())

		e, err := s.ask(t.Context(), "other", []byte("forged")...)
		require.NoError(t, err)
		require.Equal(t, api.Grant_STATE_REVOKED, e.GetState())
		require.Equal(t, "this payment is of another request", e.GetReason())
		require.Zero(t, e.GetOwed())
		s.stop()
	})
}

// TestPlaces: commands at a time are bounded.
func TestPlaces(t *testing.T) {
	h := commands(t, "on_grant")
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		now, most := 0, 0
		s := newSeller(t, newGroup(), h, func(occasion, map[string]any) (script.Result, time.Duration) { return script.Result{}, time.Second })
		run := s.run
		s.run = func(ctx context.Context, argv []string, in []byte) (script.Result, error) {
			mu.Lock()
			now++
			most = max(most, now)
			mu.Unlock()
			defer func() {
				mu.Lock()
				now--
				mu.Unlock()
			}()
			return run(ctx, argv, in)
		}
		var all sync.WaitGroup
		for i := range 20 {
			all.Go(func() {
				e, err := s.granter.do(t.Context(), true, func(l *ledger.Ledger, now time.Duration) (*pb.Entry, error) {
					r := &api.ReserveRequest{Key: "/k/gpu", TtlMs: 100_000, RequestId: "r", Hold: true}
					return l.Reserve(ledger.Consumer{ID: base64.StdEncoding.EncodeToString([]byte{byte(i)})}, r, terms(100), now, time.Now())
				})
				require.NoError(t, err)
				_, err = s.activate(t.Context(), e, nil)
				require.NoError(t, err)
			})
		}
		all.Wait()
		require.Equal(t, maxHooks, most)
		s.stop()
	})
}

// TestExtensionsOfOneGrant: while a command decides about an extension, copies of the request wait for it, and other
// requests for the same grant are refused. So waiting requests start no further commands.
func TestExtensionsOfOneGrant(t *testing.T) {
	h := commands(t, "on_pay")
	synctest.Test(t, func(t *testing.T) {
		s := newSeller(t, newGroup(), h, func(occasion, map[string]any) (script.Result, time.Duration) { return script.Result{}, time.Second })
		e, err := s.ask(t.Context(), "r")
		require.NoError(t, err)
		var all sync.WaitGroup
		for range 2 {
			all.Go(func() { require.NoError(t, s.extend(t.Context(), e, &api.ExtendRequest{RequestId: "first"})) })
		}
		synctest.Wait()
		for i := range 100 {
			err := s.extend(t.Context(), e, &api.ExtendRequest{RequestId: string(rune('a' + i%26))})
			require.ErrorIs(t, err, &fault.Error{Kind: fault.LimitReached, Field: "request_id"})
		}
		all.Wait()
		require.Len(t, s.called(), 2, "one for the grant, one for its extension")
		require.NoError(t, s.extend(t.Context(), e, &api.ExtendRequest{RequestId: "second"}))
		s.stop()
	})
}
