package mirror

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/pkg/fault"
)

// memory is an end in memory.
type memory struct {
	entries map[string]entry
	version uint64
	writes  int
	refused string // the name of an entry that is refused
	change  chan struct{}
}

func newMemory(values ...string) *memory {
	m := &memory{entries: make(map[string]entry), change: make(chan struct{}, 1)}
	for _, v := range values {
		m.entries[v] = entry{value: []byte(v)}
	}
	return m
}

func (m *memory) list(context.Context) (map[string]entry, uint64, error) {
	return maps.Clone(m.entries), m.version, nil
}

func (m *memory) changed(ctx context.Context, _ uint64) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-m.change:
		return nil
	}
}

func (m *memory) close() {}

func (m *memory) put(_ context.Context, name string, e entry, _ bool) error {
	if name == m.refused {
		return fault.Invalidf("key", name, "is not a name")
	}
	m.writes++
	m.entries[name] = e
	return nil
}

func (m *memory) remove(_ context.Context, name string) error {
	m.writes++
	delete(m.entries, name)
	return nil
}

func names(m *memory) string {
	list := make([]string, 0, len(m.entries))
	for name := range m.entries {
		list = append(list, name)
	}
	return strings.Join(sorted(list), " ")
}

func play(from, to *memory) (*mirror, *bytes.Buffer) {
	var out bytes.Buffer
	m := &mirror{con: &term.Console{Stderr: &out}, from: from, to: to, every: 10 * time.Second, copied: map[string][32]byte{}}
	return m, &out
}

// TestRound copies what differs, leaves what others wrote, and removes what it wrote itself.
func TestRound(t *testing.T) {
	from, to := newMemory("a", "b"), newMemory("mine")
	from.entries["lock"] = entry{value: []byte("held"), bound: true}
	m, out := play(from, to)
	_, err := m.round(t.Context())
	require.NoError(t, err)
	require.Equal(t, "a b mine", names(to))
	require.Contains(t, out.String(), "3 at the source: 2 copied, 0 removed, 1 left out")

	delete(from.entries, "a")
	delete(from.entries, "b")
	from.entries["c"] = entry{value: []byte("c"), flags: 7}
	to.entries["b"] = entry{value: []byte("changed by another")}
	_, err = m.round(t.Context())
	require.NoError(t, err)
	require.Equal(t, "b c mine", names(to))
	require.EqualValues(t, 7, to.entries["c"].flags)

	writes := to.writes
	_, err = m.round(t.Context())
	require.NoError(t, err)
	require.Equal(t, writes, to.writes, "nothing differs")

	m.prune = true
	_, err = m.round(t.Context())
	require.NoError(t, err)
	require.Equal(t, "c", names(to))
}

// TestEmptySource removes nothing: a source that was just restored, or a wrong address, looks the same.
func TestEmptySource(t *testing.T) {
	from, to := newMemory("a"), newMemory()
	m, out := play(from, to)
	m.prune = true
	_, err := m.round(t.Context())
	require.NoError(t, err)
	from.entries = map[string]entry{}
	_, err = m.round(t.Context())
	require.NoError(t, err)
	require.Equal(t, "a", names(to))
	require.Contains(t, out.String(), "the source is empty, so nothing is removed")
}

// TestOneRefused copies the others, and names the one.
func TestOneRefused(t *testing.T) {
	from, to := newMemory("a", "b", "c"), newMemory()
	to.refused = "b"
	m, _ := play(from, to)
	_, err := m.round(t.Context())
	require.ErrorContains(t, err, "refuses 1 of them, the first is")
	require.ErrorContains(t, err, "b: is not a name")
	require.Equal(t, fault.Invalid, fault.KindOf(err))
	require.Equal(t, "a c", names(to))
}

// TestRounds begin when the source changes, at most once a second, and after a while of silence.
func TestRounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from, to := newMemory("a"), newMemory()
		m, _ := play(from, to)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- m.run(ctx, false) }()
		synctest.Wait()
		require.Equal(t, "a", names(to))
		from.entries["b"] = entry{value: []byte("b")}
		from.change <- struct{}{}
		time.Sleep(time.Second)
		synctest.Wait()
		require.Equal(t, "a b", names(to))
		from.entries["c"] = entry{value: []byte("c")}
		time.Sleep(m.every + time.Second)
		synctest.Wait()
		require.Equal(t, "a b c", names(to), "the source is silent")
		cancel()
		require.Equal(t, fault.Canceled, fault.KindOf(<-ended))
	})
}

// TestRange: the end of a prefix is the next prefix of its length.
func TestRange(t *testing.T) {
	for prefix, want := range map[string]string{"": "\x00", "a": "b", "a/": "a0", "a\xff": "b", "\xff": "\x00"} {
		require.Equal(t, want, string(end(prefix)), "%q", prefix)
	}
	require.Equal(t, []byte{0}, from(""))
}

func TestEscaped(t *testing.T) {
	for key, want := range map[string]string{"": "", "a/b": "a/b", "a/": "a/", "/a": "%2Fa", "a//b": "a%2F%2Fb", "a/../b": "a%2F%2E%2E%2Fb", "a b?": "a%20b%3F"} {
		require.Equal(t, want, escaped(key), "%q", key)
	}
}

func sorted(list []string) []string {
	slices.Sort(list)
	return list
}
