package raftlog_test

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"
	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/coordination/raftlog"
	"github.com/blackhole/blackhole/pkg/fault"
)

const group = "0123456789abcdef"

type text string

func (t text) WriteTo(w io.Writer) (int64, error) {
	n, err := io.WriteString(w, string(t))
	return int64(n), err
}

func snapshot(index, term uint64) *pb.Snapshot {
	return &pb.Snapshot{Data: []byte("members"), Metadata: &pb.SnapshotMetadata{
		Index: &index, Term: &term, ConfState: &pb.ConfState{Voters: []uint64{7, 8}, AutoLeave: new(false)},
	}}
}

func hard(term, vote, commit uint64) *pb.HardState {
	return &pb.HardState{Term: &term, Vote: &vote, Commit: &commit}
}

// entries gives some from first on, in a term.
func entries(first, n, term uint64) []*pb.Entry {
	all := make([]*pb.Entry, n)
	for i := range all {
		index := first + uint64(i)
		all[i] = &pb.Entry{Index: &index, Term: &term, Data: fmt.Appendf(nil, "entry %d of term %d", index, term)}
	}
	return all
}

func open(t testing.TB, fs vfs.FS, tail int) *raftlog.Storage {
	t.Helper()
	s, err := raftlog.Open(raftlog.Options{FS: fs, Dir: "data/group", Tail: tail})
	require.NoError(t, err)
	return s
}

func founded(t testing.TB, fs vfs.FS, tail int) *raftlog.Storage {
	t.Helper()
	s := open(t, fs, tail)
	require.NoError(t, s.Bootstrap(group, snapshot(1, 1), text("first")))
	return s
}

// require that the log holds exactly these entries after the cut.
func holds(t testing.TB, s *raftlog.Storage, want []*pb.Entry) {
	t.Helper()
	first, _ := s.FirstIndex()
	last, _ := s.LastIndex()
	require.Equal(t, uint64(len(want)), last+1-first)
	if len(want) == 0 {
		return
	}
	got, err := s.Entries(first, last+1, 1<<40)
	require.NoError(t, err)
	require.Len(t, got, len(want))
	for i := range want {
		require.True(t, proto.Equal(want[i], got[i]), "%v, want %v", got[i], want[i])
		term, err := s.Term(want[i].GetIndex())
		require.NoError(t, err)
		require.Equal(t, want[i].GetTerm(), term)
	}
}

func state(t testing.TB, s *raftlog.Storage) string {
	t.Helper()
	snap, err := s.Snapshot()
	require.NoError(t, err)
	r, err := s.State(snap)
	require.NoError(t, err)
	b, err := io.ReadAll(r)
	require.NoError(t, err)
	require.NoError(t, r.Close())
	return string(b)
}

func TestIdentity(t *testing.T) {
	fs := vfs.NewMem()
	s := open(t, fs, 0)
	id := s.Member()
	require.NotZero(t, id)
	require.Empty(t, s.Group())
	require.False(t, s.HasSnapshot())
	require.NoError(t, s.Bind(group))
	require.NoError(t, s.Bind(group))
	require.ErrorIs(t, s.Bind("another"), fault.Conflict)
	require.ErrorIs(t, s.Bind(""), fault.Invalid)
	require.NoError(t, s.Close())

	s = open(t, fs, 0)
	require.Equal(t, id, s.Member())
	require.Equal(t, group, s.Group())
	require.ErrorIs(t, s.Bootstrap("another", snapshot(1, 1), text("")), fault.Conflict)
	require.NoError(t, s.Close())
	require.NotEqual(t, id, open(t, vfs.NewMem(), 0).Member())

	_, err := raftlog.Open(raftlog.Options{FS: fs, Dir: "x", Rand: bytes.NewReader(nil)})
	require.ErrorIs(t, err, fault.Internal)
}

func TestFound(t *testing.T) {
	fs := vfs.NewMem()
	s := founded(t, fs, 0)
	require.ErrorIs(t, s.Bootstrap(group, snapshot(1, 1), text("first")), fault.Conflict)
	require.NoError(t, s.Close())

	s = open(t, fs, 0)
	h, conf, err := s.InitialState()
	require.NoError(t, err)
	require.True(t, proto.Equal(hard(1, 0, 1), h), "%v", h)
	require.Equal(t, []uint64{7, 8}, conf.Voters)
	require.Equal(t, "first", state(t, s))
	holds(t, s, nil)
	term, err := s.Term(1)
	require.NoError(t, err)
	require.Equal(t, uint64(1), term)
	_, err = s.Term(0)
	require.ErrorIs(t, err, raft.ErrCompacted)
	_, err = s.Term(2)
	require.ErrorIs(t, err, raft.ErrUnavailable)
}

func TestAppendAndReplace(t *testing.T) {
	for _, keep := range []int{1, 400, 1 << 20} {
		t.Run(fmt.Sprintf("tail %d", keep), func(t *testing.T) {
			fs := vfs.NewMem()
			s := founded(t, fs, keep)
			first := entries(2, 20, 1)
			require.NoError(t, s.Save(hard(1, 7, 1), first, true))
			second := entries(10, 5, 2)
			require.NoError(t, s.Save(nil, second, true))
			want := append(append([]*pb.Entry(nil), first[:8]...), second...)
			holds(t, s, want)
			require.ErrorIs(t, s.Save(nil, entries(20, 1, 2), true), fault.Internal, "a gap")
			holds(t, s, want)
			require.NoError(t, s.Close())

			s = open(t, fs, keep)
			holds(t, s, want)
			some, err := s.Entries(3, 9, 0)
			require.NoError(t, err)
			require.Len(t, some, 1, "at least one, whatever the size")
			some, err = s.Entries(3, 9, uint64(2*proto.Size(first[1])))
			require.NoError(t, err)
			require.Len(t, some, 2)
			_, err = s.Entries(14, 16, 1)
			require.ErrorIs(t, err, raft.ErrUnavailable)
		})
	}
}

func TestSnapshotAndCompact(t *testing.T) {
	fs := vfs.NewMem()
	s := founded(t, fs, 300)
	log := entries(2, 50, 1)
	require.NoError(t, s.Save(hard(1, 7, 40), log, true))
	require.ErrorIs(t, s.Compact(30), fault.Internal, "nothing covers it")
	require.NoError(t, s.Write(snapshot(40, 1), text("at 40")))
	require.Equal(t, "first", state(t, s), "of no effect yet")
	require.NoError(t, s.Adopt(snapshot(40, 1)))
	require.NoError(t, s.Adopt(snapshot(39, 1)), "passed over")
	require.Equal(t, "at 40", state(t, s))
	require.NoError(t, s.Compact(30))
	require.NoError(t, s.Compact(20), "done already")
	holds(t, s, log[29:])
	_, err := s.Entries(30, 32, 1)
	require.ErrorIs(t, err, raft.ErrCompacted)
	require.NoError(t, s.Close())

	s = open(t, fs, 300)
	holds(t, s, log[29:])
	require.Equal(t, "at 40", state(t, s))
	files, err := fs.List("data/group/snapshots")
	require.NoError(t, err)
	require.Len(t, files, 1)

	info, err := fs.Stat(fs.PathJoin("data/group/snapshots", files[0]))
	require.NoError(t, err)
	cut, err := fs.Create("data/group/snapshots/"+files[0]+".1.partial", vfs.WriteCategoryUnspecified)
	require.NoError(t, err)
	_, err = cut.Write(make([]byte, 10*info.Size()))
	require.NoError(t, err)
	require.NoError(t, cut.Close())
	require.Equal(t, uint64(info.Size()), raftlog.SnapshotBytes(fs, "data/group"), "the last one is about as large as the next")
	require.Zero(t, raftlog.SnapshotBytes(fs, "data/none"))
}

// A snapshot that does not know a member which joined is of no use to it.
func TestRequire(t *testing.T) {
	s := founded(t, vfs.NewMem(), 0)
	require.NoError(t, s.Save(hard(1, 7, 9), entries(2, 9, 1), true))
	s.Require(5)
	_, err := s.Snapshot()
	require.ErrorIs(t, err, raft.ErrSnapshotTemporarilyUnavailable)
	require.NoError(t, s.Write(snapshot(6, 1), text("at 6")))
	require.NoError(t, s.Adopt(snapshot(6, 1)))
	require.Equal(t, "at 6", state(t, s))
	require.NoError(t, s.Close())
	require.NoError(t, s.Close(), "again")
}

func TestRestore(t *testing.T) {
	fs := vfs.NewMem()
	s := founded(t, fs, 0)
	require.NoError(t, s.Save(hard(1, 7, 1), entries(2, 50, 1), true))
	old, err := s.Snapshot()
	require.NoError(t, err)
	reading, err := s.State(old)
	require.NoError(t, err)
	require.NoError(t, s.Write(snapshot(90, 3), text("from the leader")))
	require.NoError(t, s.Restore(snapshot(90, 3), hard(3, 0, 90), 7))
	holds(t, s, nil)
	require.NoError(t, s.Save(nil, entries(91, 3, 3), true))
	holds(t, s, entries(91, 3, 3))
	b, err := io.ReadAll(reading)
	require.NoError(t, err)
	require.Equal(t, "first", string(b), "one that is being sent can be read to its end")
	require.NoError(t, reading.Close())
	require.NoError(t, s.Close())

	s = open(t, fs, 0)
	holds(t, s, entries(91, 3, 3))
	require.Equal(t, "from the leader", state(t, s))
	require.NoError(t, fs.Remove("data/group/snapshots/0000000000000003-000000000000005a"))
	_, err = s.State(snapshot(90, 3))
	require.ErrorIs(t, err, fault.NotFound)
}

func TestDamagedSnapshot(t *testing.T) {
	fs := vfs.NewMem()
	s := founded(t, fs, 0)
	const file = "data/group/snapshots/0000000000000001-0000000000000001"
	f, err := fs.OpenReadWrite(file, vfs.WriteCategoryUnspecified)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte{'X'}, 20)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	_, err = s.State(snapshot(1, 1))
	require.ErrorIs(t, err, fault.Invalid)
}

// TestLostParts: each part of the database can be lost alone, with a table of Pebble. None is lost without a word.
func TestLostParts(t *testing.T) {
	for _, key := range []string{"h", "s", "c", "n", "w", "e\x00\x00\x00\x00\x00\x00\x00\x1f", "e\x00\x00\x00\x00\x00\x00\x00\x33"} {
		fs := vfs.NewMem()
		s := founded(t, fs, 0)
		require.NoError(t, s.Save(hard(3, 7, 1), entries(2, 50, 1), true))
		require.NoError(t, s.Write(snapshot(40, 1), text("at 40")))
		require.NoError(t, s.Adopt(snapshot(40, 1)))
		require.NoError(t, s.Compact(30))
		require.NoError(t, s.Save(hard(4, 7, 51), nil, true))
		require.NoError(t, s.Close())
		db, err := pebble.Open("data/group/log", &pebble.Options{FS: fs, FormatMajorVersion: pebble.FormatNewest})
		require.NoError(t, err)
		_, closer, err := db.Get([]byte(key))
		require.NoError(t, err, "%q", key)
		require.NoError(t, closer.Close())
		require.NoError(t, db.Delete([]byte(key), pebble.Sync))
		require.NoError(t, db.Close())
		_, err = raftlog.Open(raftlog.Options{FS: fs, Dir: "data/group"})
		require.ErrorIs(t, err, fault.Internal, "%q", key)
		require.ErrorContains(t, err, "blackholed group restore")
	}
}

func FuzzReadMetadata(f *testing.F) {
	f.Add([]byte("BHGROUP\x01\x00\x00\x00\x00\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		snap, err := raftlog.ReadMetadata(bytes.NewReader(b))
		if err == nil && snap.GetMetadata() == nil {
			t.Fatal("nil metadata without error")
		}
	})
}

// A failing fsync is told, and nothing is taken for saved after it.
func TestDiskError(t *testing.T) {
	broken := false
	fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if broken && (op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData || op.Kind == errorfs.OpFileSyncTo) {
			return errorfs.ErrInjected
		}
		return nil
	}))
	s := founded(t, fs, 0)
	require.NoError(t, s.Save(hard(1, 7, 1), entries(2, 3, 1), true))
	broken = true
	require.ErrorIs(t, s.Save(nil, entries(5, 3, 1), true), fault.Internal)
	broken = false
	require.ErrorIs(t, s.Save(nil, entries(5, 3, 1), true), fault.Internal, "fsync is not tried again")
	holds(t, s, entries(2, 3, 1))
	_ = s.Close()
}

// crashing is a storage with what it must hold at least and may hold at most.
type crashing struct {
	fs      *vfs.MemFS
	s       *raftlog.Storage
	random  *rand.Rand
	synced  []*pb.Entry // index 2 on
	term    uint64
	vote    uint64
	taken   uint64 // index of the snapshot in force
	current []*pb.Entry
	crashes int
}

// After any crash what was synced is there, in order, and nothing is torn: the log is the
// synced one with a beginning of what was written since. TEST_SEEDS=18000 crashes 100,000 times, from
// seed TEST_FROM on.
func TestCrash(t *testing.T) {
	crashes, from := 0, setting(t, "FROM", 0)
	for seed := from; seed < from+setting(t, "SEEDS", 60); seed++ {
		c := &crashing{fs: vfs.NewCrashableMem(), random: rand.New(rand.NewPCG(seed, 1)), term: 1, taken: 1}
		c.s = founded(t, c.fs, 500)
		for range 60 {
			c.step(t)
		}
		_ = c.s.Close()
		crashes += c.crashes
	}
	t.Logf("%d crashes", crashes)
}

func setting(t *testing.T, name string, usual uint64) uint64 {
	text := os.Getenv("TEST_" + name)
	if text == "" {
		return usual
	}
	n, err := strconv.ParseUint(text, 10, 64)
	require.NoError(t, err, name)
	return n
}

func (c *crashing) step(t *testing.T) {
	switch c.random.IntN(10) {
	case 0:
		c.crash(t)
	case 1:
		c.snapshot(t)
	default:
		c.append(t, c.random.IntN(2) == 0)
	}
}

func (c *crashing) append(t *testing.T, sync bool) {
	keep := len(c.current)
	if c.random.IntN(5) == 0 { // replace the end, in a new term, but nothing snapshotted
		keep = int(c.taken) - 1 + c.random.IntN(len(c.current)+2-int(c.taken))
		c.term++
		sync = true
	}
	more := entries(uint64(keep)+2, uint64(1+c.random.IntN(5)), c.term)
	c.vote = c.random.Uint64()
	require.NoError(t, c.s.Save(hard(c.term, c.vote, c.taken), more, sync))
	c.current = append(c.current[:keep:keep], more...)
	if sync {
		c.synced = c.current
	}
}

func (c *crashing) snapshot(t *testing.T) {
	if len(c.synced) == 0 {
		return
	}
	at := c.synced[c.random.IntN(len(c.synced))]
	if at.GetIndex() <= c.taken {
		return
	}
	snap := snapshot(at.GetIndex(), at.GetTerm())
	require.NoError(t, c.s.Write(snap, text(fmt.Sprint("at ", at.GetIndex()))))
	if c.random.IntN(3) == 0 {
		return // a crash may come before it is in force
	}
	require.NoError(t, c.s.Adopt(snap))
	c.taken, c.synced = at.GetIndex(), c.current
	require.NoError(t, c.s.Compact(at.GetIndex()-1-uint64(c.random.IntN(int(at.GetIndex()-1)))))
}

func (c *crashing) crash(t *testing.T) {
	c.crashes++
	seed := rand.NewPCG(c.random.Uint64(), 1)
	clone := c.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: c.random.IntN(101), RNG: rand.New(seed)})
	_ = c.s.Close()
	c.fs = clone
	c.s = open(t, clone, 500)
	h, _, err := c.s.InitialState()
	require.NoError(t, err)
	last, _ := c.s.LastIndex()
	first, _ := c.s.FirstIndex()
	require.GreaterOrEqual(t, int(last)-1, len(c.synced), "what was synced is there")
	require.LessOrEqual(t, int(last)-1, len(c.current))
	c.current = c.current[:last-1]
	holds(t, c.s, c.current[first-2:])
	require.Equal(t, c.term, h.GetTerm())
	if c.taken > 1 {
		require.Equal(t, fmt.Sprint("at ", c.taken), state(t, c.s))
	} else {
		require.Equal(t, "first", state(t, c.s))
	}
	c.synced = c.current // what was read counts: the next sync makes it durable
	require.NoError(t, c.s.Save(hard(c.term, 0, c.taken), nil, true))
}

// A snapshot of a later leader replaces a log that reaches beyond it.
func TestRestoreOverLongerLog(t *testing.T) {
	fs := vfs.NewCrashableMem()
	s := founded(t, fs, 500)
	require.NoError(t, s.Save(hard(1, 0, 1), entries(2, 9, 1), true))
	snap := snapshot(6, 2)
	require.NoError(t, s.Write(snap, text("at 6")))
	require.NoError(t, s.Restore(snap, hard(2, 0, 6), 7))
	require.NoError(t, s.Save(nil, entries(7, 1, 2), true))
	require.NoError(t, s.Close())
	s = open(t, fs, 500)
	holds(t, s, entries(7, 1, 2))
	require.Equal(t, "at 6", state(t, s))
	require.NoError(t, s.Close())
}

// A crash at any moment of the founding leaves a folder that can be opened and founded.
func TestCrashWhileFounding(t *testing.T) {
	for seed := range uint64(40) {
		fs := vfs.NewCrashableMem()
		s := open(t, fs, 0)
		id := s.Member()
		clone := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: rand.New(rand.NewPCG(seed, 2))})
		_ = s.Close()
		s = open(t, clone, 0)
		require.Equal(t, id, s.Member(), "the id was told to others")
		require.NoError(t, s.Bootstrap(group, snapshot(1, 1), text("first")))
		clone = clone.CrashClone(vfs.CrashCloneCfg{})
		_ = s.Close()
		s = open(t, clone, 0)
		require.Equal(t, "first", state(t, s))
		_ = s.Close()
	}
}

// One append, synced, on the disk under TMPDIR: the latency of a lock rests on it.
func BenchmarkSyncedAppend(b *testing.B) {
	for _, size := range []int{128, 16 << 10} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			s, err := raftlog.Open(raftlog.Options{Dir: b.TempDir() + "/group"})
			require.NoError(b, err)
			require.NoError(b, s.Bootstrap(group, snapshot(1, 1), text("first")))
			data, next, one := make([]byte, size), uint64(2), uint64(1)
			b.ReportAllocs()
			for b.Loop() {
				index := next
				require.NoError(b, s.Save(nil, []*pb.Entry{{Index: &index, Term: &one, Data: data}}, true))
				next++
			}
			b.StopTimer()
			require.NoError(b, s.Close())
		})
	}
}

// What a follower is sent that keeps up, out of memory, and one that is behind by more than the tail, out of
// Pebble: 1 MiB in entries of 4 KiB.
func BenchmarkEntries(b *testing.B) {
	for name, tail := range map[string]int{"tail": 2 << 20, "disk": 1} {
		b.Run(name, func(b *testing.B) {
			s, err := raftlog.Open(raftlog.Options{Dir: b.TempDir() + "/group", Tail: tail})
			require.NoError(b, err)
			require.NoError(b, s.Bootstrap(group, snapshot(1, 1), text("first")))
			all := entries(2, 256, 1)
			for _, e := range all {
				e.Data = make([]byte, 4<<10)
			}
			require.NoError(b, s.Save(nil, all, true))
			b.ReportAllocs()
			for b.Loop() {
				got, err := s.Entries(2, 258, 1<<30)
				require.NoError(b, err)
				require.Len(b, got, 256)
			}
			require.NoError(b, s.Close())
		})
	}
}
