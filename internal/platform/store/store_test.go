package store

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/internal/platform/store/storetest"
	"github.com/blackhole/blackhole/pkg/fault"
)

func config(fs vfs.FS) Config {
	return Config{
		Dir:      "/home/books",
		FS:       fs,
		Logger:   slog.New(slog.DiscardHandler),
		Role:     "keeper",
		Owner:    "ada",
		Prefix:   "book/",
		Format:   Format[*Store]{Name: "database of books"},
		MemTable: 256 << 10,
	}
}

func open(t require.TestingT, c Config) *Store {
	l, err := Open(c)
	require.NoError(t, err)
	return l
}

// content is the whole content of a store.
type content struct {
	values map[string]string
	floor  uint64
}

func contentOf(t require.TestingT, l *Store) content {
	c := content{make(map[string]string), l.Floor()}
	require.NoError(t, l.All(func(name string, value []byte) error {
		c.values[name] = string(value)
		return nil
	}))
	return c
}

// commit applies a Commit to c.
func (c content) commit(edits []Edit, floor uint64) content {
	next := content{maps.Clone(c.values), max(c.floor, floor)}
	for _, e := range edits {
		delete(next.values, e.Name)
		if e.Value != nil {
			next.values[e.Name] = string(e.Value)
		}
	}
	return next
}

func (c content) equal(d content) bool { return c.floor == d.floor && maps.Equal(c.values, d.values) }

// TestModel compares a store with a map and sometimes reopens it.
func TestModel(t *testing.T) {
	edits := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Edit {
		e := Edit{Name: rapid.SampledFrom([]string{"", "a", "b", "b/c", "meta"}).Draw(t, "name")}
		if rapid.Bool().Draw(t, "set") {
			e.Value = []byte(rapid.StringN(0, 3, -1).Draw(t, "value"))
		}
		return e
	}), 0, 4)
	rapid.Check(t, func(t *rapid.T) {
		c := config(vfs.NewMem())
		l, want := open(t, c), content{values: map[string]string{}}
		defer func() { require.NoError(t, l.Close()) }()
		for range rapid.IntRange(1, 10).Draw(t, "steps") {
			if rapid.IntRange(0, 4).Draw(t, "open") == 0 {
				require.NoError(t, l.Close())
				l = open(t, c)
			}
			these, floor := edits.Draw(t, "edits"), rapid.Uint64().Draw(t, "floor")
			require.NoError(t, l.Commit(these, floor))
			want = want.commit(these, floor)
			require.Equal(t, want, contentOf(t, l))
		}
	})
}

// TestLayout fixes the bytes on disk.
func TestLayout(t *testing.T) {
	for name, k := range map[string]struct {
		owner string
		edits []Edit
		floor uint64
		want  map[string]string
	}{
		"empty":  {owner: "ada", want: map[string]string{"meta": `{"format":1,"keeper":"ada","floor":0}`}},
		"floor":  {owner: "ada", floor: 1<<64 - 1, want: map[string]string{"meta": `{"format":1,"keeper":"ada","floor":18446744073709551615}`}},
		"quoted": {owner: `a"<d>`, want: map[string]string{"meta": `{"format":1,"keeper":"a\"\u003cd\u003e","floor":0}`}},
		"values": {
			owner: "ada", floor: 2, edits: []Edit{{"a", []byte("1")}, {"b/c", []byte{}}, {"a", []byte{0xff}}},
			want: map[string]string{"meta": `{"format":1,"keeper":"ada","floor":2}`, "book/a": "\xff", "book/b/c": ""},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := config(vfs.NewMem())
			c.Owner = k.owner
			l := open(t, c)
			require.NoError(t, l.Commit(k.edits, k.floor))
			held := contentOf(t, l)
			require.NoError(t, l.Close())
			require.Equal(t, k.want, storetest.Read(t, c.FS, c.Dir))

			c.FS = vfs.NewMem()
			storetest.Write(t, c.FS, c.Dir, k.want)
			l = open(t, c)
			require.Equal(t, held, contentOf(t, l))
			require.NoError(t, l.Close())
		})
	}
}

func TestOpenRefuses(t *testing.T) {
	const mine = `{"format":1,"keeper":"ada","floor":3}`
	for name, k := range map[string]struct {
		content map[string]string
		kind    fault.Kind
		says    string
	}{
		"another owner":   {map[string]string{"meta": `{"format":1,"keeper":"eve","floor":3}`}, fault.Conflict, "belongs to keeper eve, not to ada"},
		"another role":    {map[string]string{"meta": `{"format":1,"reader":"ada","floor":3}`}, fault.Internal, `"meta"`},
		"later format":    {map[string]string{"meta": `{"format":2,"colour":"red"}`}, fault.Unsupported, "the database of books in /home/books has format 2, this program reads formats 1 to 1: run the later program again"},
		"no format":       {map[string]string{"meta": `{"keeper":"ada","floor":3}`}, fault.Internal, "the format is missing"},
		"no object":       {map[string]string{"meta": `null`}, fault.Internal, "the format is missing"},
		"no JSON":         {map[string]string{"meta": `{`}, fault.Internal, `"meta"`},
		"more JSON":       {map[string]string{"meta": mine + mine}, fault.Internal, `"meta"`},
		"unknown field":   {map[string]string{"meta": `{"format":1,"keeper":"ada","floor":3,"colour":"red"}`}, fault.Internal, "unknown"},
		"negative floor":  {map[string]string{"meta": `{"format":1,"keeper":"ada","floor":-3}`}, fault.Internal, `"meta"`},
		"no meta":         {map[string]string{"book/a": "1"}, fault.Internal, `is damaged: key "book/a": the database has values but no owner`},
		"somebody else's": {map[string]string{"zebra": "1"}, fault.Internal, `"zebra"`},
	} {
		t.Run(name, func(t *testing.T) {
			c := config(vfs.NewMem())
			storetest.Write(t, c.FS, c.Dir, k.content)
			_, err := Open(c)
			require.Equal(t, k.kind, fault.KindOf(err))
			require.ErrorContains(t, err, k.says)
			require.Equal(t, k.content, storetest.Read(t, c.FS, c.Dir), "nothing is deleted, and it was closed")
		})
	}
	c := config(vfs.NewMem())
	l := open(t, c)
	_, err := Open(c)
	require.ErrorIs(t, err, fault.Unavailable, "the outcome is unknown")
	require.NoError(t, l.Close())
	c.Dir = "/file/books"
	f, err := c.FS.Create("/file", vfs.WriteCategoryUnspecified)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	_, err = Open(c)
	require.ErrorIs(t, err, fault.Unavailable, "no directory")
}

func TestAllRefuses(t *testing.T) {
	c := config(vfs.NewMem())
	storetest.Write(t, c.FS, c.Dir, map[string]string{"meta": `{"format":1,"keeper":"ada","floor":0}`, "book/a": "1", "zebra": "2"})
	l := open(t, c)
	defer func() { require.NoError(t, l.Close()) }()
	err := l.All(func(string, []byte) error { return nil })
	require.ErrorIs(t, err, fault.Internal)
	require.ErrorContains(t, err, `"zebra"`)
	for cause, kind := range map[error]fault.Kind{
		errors.New("blurred"):                       fault.Internal,
		fault.New("", fault.Unauthentic, "forged"):  fault.Internal, // damage of the disk, not a forgery
		fault.New("", fault.Unsupported, "too new"): fault.Unsupported,
	} {
		err := l.All(func(string, []byte) error { return cause })
		require.Equal(t, kind, fault.KindOf(err))
		require.ErrorIs(t, err, cause)
		require.ErrorContains(t, err, `"book/a"`)
	}
}

// TestCrashAtEveryStepOfTheDisk: after a crash, the store has all commits that returned, and the interrupted
// one or not.
func TestCrashAtEveryStepOfTheDisk(t *testing.T) {
	steps := []struct {
		edits []Edit
		floor uint64
	}{
		{[]Edit{{"a", []byte("1")}, {"b", []byte("1")}}, 0},
		{[]Edit{{"a", nil}, {"c", []byte("2")}}, 5},
		{nil, 9},
		{[]Edit{{"a", []byte("3")}}, 4},
	}
	for _, kept := range []int{0, 50, 100} {
		t.Run(fmt.Sprintf("kept %d%%", kept), func(t *testing.T) {
			var step atomic.Int64 // 0: Open
			disk := storetest.NewCrashing(kept, step.Load)
			l := open(t, config(disk))
			states := []content{contentOf(t, l), contentOf(t, l)} // before and after each step
			for i, s := range steps {
				step.Store(int64(i + 1))
				require.NoError(t, l.Commit(s.edits, s.floor))
				states = append(states, states[i+1].commit(s.edits, s.floor))
			}
			require.NoError(t, l.Close())
			images := disk.CrashImages()
			require.Greater(t, len(images), len(steps), "the disk recorded the writes")
			for _, w := range images {
				l := open(t, config(w.FS))
				if got := contentOf(t, l); !states[w.Known].equal(got) {
					require.Equal(t, states[w.Known+1], got, "step %d: neither all nor nothing", w.Known)
				}
				require.NoError(t, l.Close())
			}
		})
	}
}

// TestDiskFails: after a failure, all calls fail until the next Open.
func TestDiskFails(t *testing.T) {
	disk := storetest.NewFailing()
	l := open(t, config(disk))
	a := []Edit{{"a", []byte("1")}}
	require.NoError(t, l.Commit(a, 5))
	require.NoError(t, l.Failure())
	disk.Fail(true)
	err := l.Commit([]Edit{{"b", []byte("1")}}, 7)
	require.ErrorIs(t, err, fault.Unavailable)
	require.ErrorContains(t, err, "input/output error")
	require.Equal(t, err, l.Failure())
	require.Equal(t, uint64(5), l.Floor())
	disk.Fail(false)
	require.Equal(t, err, l.Commit([]Edit{{"c", []byte("1")}}, 0))
	require.NoError(t, l.Commit(nil, 5), "nothing to do")
	after := disk.Synced()
	_ = l.Close() // may report the failure

	l = open(t, config(after))
	require.Equal(t, content{map[string]string{"a": "1"}, 5}, contentOf(t, l))
	require.NoError(t, l.Failure())
	require.NoError(t, l.Commit([]Edit{{"b", []byte("1")}}, 7))
	require.NoError(t, l.Close())
}

// TestDiskFull: a full disk refuses writes and changes nothing. With room again they succeed, without another Open.
func TestDiskFull(t *testing.T) {
	disk := storetest.NewFailing()
	l := open(t, config(disk))
	require.NoError(t, l.Commit([]Edit{{"a", []byte("1")}}, 5))
	disk.Fill(true)
	require.NoError(t, l.Failure(), "nobody has written")
	err := l.Commit([]Edit{{"a", []byte("2")}, {"b", []byte("2")}}, 7)
	require.ErrorIs(t, err, fault.Unavailable)
	require.ErrorContains(t, err, "the disk is full")
	require.Equal(t, err, l.Failure())
	require.Equal(t, content{map[string]string{"a": "1"}, 5}, contentOf(t, l))
	disk.Fill(false)
	require.NoError(t, l.Failure())
	require.NoError(t, l.Commit([]Edit{{"b", []byte("3")}}, 7))
	require.NoError(t, l.Close())

	l = open(t, config(disk))
	require.Equal(t, content{map[string]string{"a": "1", "b": "3"}, 7}, contentOf(t, l))
	require.NoError(t, l.Close())
}

// TestDatabaseDies: a fatal error during a commit fails the commit, and the process survives.
func TestDatabaseDies(t *testing.T) {
	l := open(t, config(vfs.NewMem()))
	defer func() { require.NoError(t, l.Close()) }()
	err := l.write(func(*pebble.Batch) error {
		l.latch.Fatalf("no %s", "manifest")
		return nil
	})
	require.ErrorIs(t, err, fault.Unavailable)
	require.ErrorContains(t, err, "no manifest")
	require.Equal(t, err, l.Failure())
}

// FuzzDecodeMeta decodes arbitrary values without a panic. An accepted value survives encoding.
func FuzzDecodeMeta(f *testing.F) {
	c := config(nil)
	f.Add(c.encodeMeta(1, 7))
	f.Add([]byte(`{"format":1,"keeper":null,"floor":1e3}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := c.decodeMeta(data)
		if err != nil || m.format != 1 {
			return
		}
		c.Owner = m.owner
		again, err := c.decodeMeta(c.encodeMeta(1, m.floor))
		require.NoError(t, err)
		require.Equal(t, m, again)
	})
}
