package examples_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/client/fence"
	"github.com/blackhole/blackhole/pkg/instance"
	"github.com/blackhole/blackhole/testnet/process"
)

// storm is a bad network before a peer: of its answers each nth is cut, comes late, or is garbled, one after the other.
type storm struct {
	net.Listener
	target string
	nth    int64
	ends   bool // garbles the end of an answer too: text says so, but frames of HTTP/2 have no sum, and would lie
	seen   atomic.Int64
	faults [4]atomic.Int64
	done   sync.WaitGroup
}

// late is longer than the clients of the test wait for an answer.
const late = 1500 * time.Millisecond

func newStorm(t *testing.T, target string, nth int64, ends bool) *storm {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &storm{Listener: l, target: target, nth: nth, ends: ends}
	ctx, cancel := context.WithCancel(context.Background())
	s.done.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			s.done.Go(func() { s.pass(ctx, conn) })
		}
	})
	t.Cleanup(func() {
		cancel()
		_ = l.Close()
		s.done.Wait()
	})
	return s
}

// pass connects a client with the peer until one of them, a cut or the test ends the connection.
func (s *storm) pass(ctx context.Context, from net.Conn) {
	to, err := net.Dial("tcp", s.target)
	if err != nil {
		_ = from.Close()
		return
	}
	end := func() { _, _ = from.Close(), to.Close() }
	defer context.AfterFunc(ctx, end)()
	s.done.Go(func() {
		_, _ = io.Copy(to, from)
		end()
	})
	defer end()
	buffer := make([]byte, 64<<10)
	for {
		n, err := to.Read(buffer)
		if n > 0 && !s.answer(ctx, from, buffer[:n]) || err != nil {
			return
		}
	}
}

// answer passes an answer on. It reports false for the last one.
func (s *storm) answer(ctx context.Context, to io.Writer, text []byte) bool {
	if n := s.seen.Add(1); n%s.nth == 0 {
		kinds := int64(3)
		if s.ends {
			kinds++
		}
		kind := n / s.nth % kinds
		s.faults[kind].Add(1)
		switch kind {
		case 0: // cut
			_, _ = to.Write(text[:len(text)/2])
			return false
		case 1:
			select {
			case <-time.After(late):
			case <-ctx.Done():
			}
		case 2:
			copy(text, bytes.Repeat([]byte{0xff}, 9))
		case 3:
			text[len(text)-1] = 0
		}
	}
	_, err := to.Write(text)
	return err == nil
}

// house has a peer, which a long storm kills.
type house struct {
	mu   sync.Mutex
	peer *process.Process
	spec process.Spec
}

// strike kills the peer in the middle of a long storm, and starts it again at its addresses: an election, too.
func (h *house) strike(t *testing.T, length time.Duration) {
	if length < time.Minute {
		return
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		select {
		case <-time.After(length / 2):
		case <-t.Context().Done():
			return
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		h.peer.Kill()
		again, err := process.Start(h.spec)
		if assert.NoError(t, err) {
			h.peer = again
		}
	}()
	t.Cleanup(func() { <-over })
}

// TestStorm plays the three clients over a bad network: nothing that is kept ends, each put is applied once, tokens
// rise, and no list is empty. A long storm kills their peer as well.
func TestStorm(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("builds and runs programs")
	}
	length := 5 * time.Second
	if text := os.Getenv("TEST_STORM"); text != "" { // set by testnet prove
		var err error
		length, err = time.ParseDuration(text)
		require.NoError(t, err)
	}
	dir := t.TempDir()
	p := daemon(t, dir)
	h := &house{peer: p, spec: process.Spec{
		Name: "peer", Binary: filepath.Join(dir, "blackholed"), Data: filepath.Join(dir, "data"), Check: 2 * time.Second,
		Place: process.Place{HTTP: p.HTTP, GRPC: p.GRPC},
	}}
	t.Cleanup(func() { h.peer.Stop() })
	seconds := strconv.FormatFloat(length.Seconds(), 'f', -1, 64)

	t.Run("go", func(t *testing.T) {
		t.Parallel()
		s := newStorm(t, p.GRPC, 5, false)
		h.strike(t, length)
		playStorm(t, s.Addr().String(), length)
		s.raged(t)
	})
	t.Run("python", func(t *testing.T) {
		t.Parallel()
		binary, err := exec.LookPath("python3")
		if err != nil {
			t.Skip("no Python: its client does not run")
		}
		s := newStorm(t, p.HTTP, 3, true)
		h.strike(t, length)
		out, err := exec.CommandContext(t.Context(), binary, "-B", "testdata/storm.py", "../sdk/python", "http://"+s.Addr().String(), seconds).CombinedOutput()
		require.NoError(t, err, "%s", out)
		t.Logf("%s", out)
		s.raged(t)
	})
	t.Run("typescript", func(t *testing.T) {
		t.Parallel()
		run := typescript(t, append(sdk(t), "testdata/storm.ts")...)
		run("node_modules/typescript/bin/tsc", "--target", "es2022", "--module", "nodenext", "--types", "node", "--outDir", "out", "storm.ts")
		s := newStorm(t, p.HTTP, 3, true)
		h.strike(t, length)
		t.Log(run("out/storm.js", "http://"+s.Addr().String(), seconds))
		s.raged(t)
	})
}

// raged requires that each kind of fault happened.
func (s *storm) raged(t *testing.T) {
	t.Helper()
	for kind := range s.faults {
		require.Equal(t, kind < 3 || s.ends, s.faults[kind].Load() > 0, "fault %d", kind)
	}
}

func playStorm(t *testing.T, address string, length time.Duration) {
	c, err := client.New(address)
	require.NoError(t, err)
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), length+patience)
	defer cancel()
	here, err := c.Services().Register(ctx, instance.Registration{Key: instance.Key{Service: "storm", ID: "go"}, Spec: instance.Spec{Host: "10.0.0.9", Port: 25}})
	require.NoError(t, err)
	session, err := c.Locks().Session(ctx, client.TTL(30*time.Second))
	require.NoError(t, err)
	revision, token, steps := client.Revision(0), fence.Token(0), 0
	for begin := time.Now(); steps < 3 || time.Since(begin) < length; {
		steps++
		r, err := c.KV().Txn().If(client.WhileAt("storm/go", revision)).
			Then(client.Put("storm/go", []byte(strconv.Itoa(steps)))).Commit(ctx)
		require.NoError(t, err)
		require.NoError(t, r.Unmet, "a put was applied twice, or not at all")
		kv, err := c.KV().Get(ctx, "storm/go")
		require.NoError(t, err)
		require.EqualValues(t, steps, kv.Version)
		revision = kv.ModRevision
		held, err := session.Lock(ctx, "storm/go/lock")
		require.NoError(t, err)
		require.Greater(t, held.Token(), token)
		token = held.Token()
		require.NoError(t, held.Unlock(ctx))
		found, err := c.Services().Discover(ctx, instance.Query{
			Name: instance.Name{Service: "storm"}, Selector: instance.Selector{AnyStatus: true}, // after a crash it is unknown
		})
		require.NoError(t, err)
		require.Contains(t, idsOf(found), "go", "%v %s", found.Stale, found.Reason)
		require.NoError(t, session.Err())
	}
	t.Log(steps, "steps")
	require.NoError(t, here.Close(ctx))
	require.NoError(t, session.Close(ctx))
}

func idsOf(r instance.Result) (ids []string) {
	for _, i := range r.Instances {
		ids = append(ids, i.ID)
	}
	return ids
}
