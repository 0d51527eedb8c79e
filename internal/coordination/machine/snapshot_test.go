package machine_test

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

var update = flag.Bool("update", false, "write the golden files anew")

// story returns a state with every kind of content.
func story(t testing.TB) *log {
	l := newLog()
	id := l.leases(t, 3)
	l.must(t, &apiv1.LeaseGrantRequest{Id: int64(0x7ead), TtlMs: 30_000})
	l.must(t, write(put("a", "1", 0), put("b", "", id[0])))
	l.must(t, write(put("a", "2", 0)))
	l.must(t, lock("db", id[0]))
	l.must(t, &apiv1.LockRequest{TimeoutMs: -1, Name: "db", LeaseId: int64(id[1]), Metadata: []byte("waits")})
	l.must(t, lock("db", id[0]))
	l.must(t, &apiv1.TryLockRequest{Name: "pool", LeaseId: int64(id[1]), Mode: apiv1.ShareMode_SHARE_MODE_PERMIT, Permits: 2})
	l.must(t, &apiv1.TryLockRequest{Name: "file", LeaseId: int64(id[2]), Mode: apiv1.ShareMode_SHARE_MODE_SHARED})
	opened, _ := l.must(t, &apiv1.OpenClientRequest{})
	l.must(t, &apiv1.OpenClientRequest{})
	l.send(coordtest.Once(opened.Client, 3, coordtest.Command(alice, unlock("db", 1, 99))))
	l.must(t, write(del(coord.Exactly("b"))))
	l.must(t, &apiv1.LeaseRevokeRequest{Id: int64(id[2])})
	l.must(t, &coordv1.Compact{Revision: 2})
	l.must(t, &apiv1.PublishInstancesRequest{LeaseId: int64(id[0]), Generation: 7, Puts: []*apiv1.DirectoryEntry{entry("n", "s", "a", 1), entry("n", "s", "b", 1)}})
	l.must(t, &apiv1.PublishInstancesRequest{LeaseId: int64(id[0]), Generation: 7, Puts: []*apiv1.DirectoryEntry{entry("n", "s", "a", 2)}, Deletes: [][]byte{[]byte("directory/n/s/b")}})
	l.do(bob, &apiv1.LeaseGrantRequest{Id: int64(0xb0b), TtlMs: 30_000})
	theirs := &apiv1.PublishInstancesRequest{LeaseId: int64(0xb0b), Generation: 9, Puts: []*apiv1.DirectoryEntry{entry("n", "s", "a", 3), entry("n", "s", "c", 3)}}
	theirs.Puts[1].Principal = "@web"
	opened, _ = l.do(bob, &apiv1.OpenClientRequest{})
	l.send(coordtest.Once(opened.Client, 1, coordtest.Command(bob, theirs)))
	l.must(t, &apiv1.SetRequirementRequest{Name: "r", Min: 3})
	l.must(t, hide(coord.Under("a"), l.Revision()-1))
	return l
}

// The format is stable: members of different versions compare hashes and exchange snapshots.
func TestSnapshotIsGolden(t *testing.T) {
	const path = "testdata/story.snapshot.hex"
	got := hex.Dump(story(t).Snapshot())
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), got)
}

// Restore refuses other feature levels.
func TestRestoreRefusesOtherLevels(t *testing.T) {
	for _, version := range []byte{0, 2, 5} {
		b := story(t).Snapshot()
		b[7] = version
		_, err := machine.Restore(b)
		require.ErrorIs(t, err, fault.Unsupported, "version %d", version)
	}
}

func TestRestoreIsTheSameState(t *testing.T) {
	l := story(t)
	m, err := machine.Restore(l.Snapshot())
	require.NoError(t, err)
	require.Equal(t, l.StateHash(), m.StateHash())
	for _, id := range []coord.LeaseID{1, 2, 0x7ead} {
		require.Equal(t, l.LeaseKeys(id), m.LeaseKeys(id))
	}
	token := coord.Token(4)
	for _, member := range []*machine.Machine{l.Machine, m} {
		member.Apply(100, 2, coordtest.Command(alice, unlock("db", 1, token)))
		r, e := member.Apply(101, 2, coordtest.Command(alice, unlock("db", 1, token)))
		require.NoError(t, r.Err)
		require.Equal(t, coord.LeaseID(2), e.Grants[0].Lease)
	}
	require.Equal(t, l.StateHash(), m.StateHash())
}

func TestImageIsFixed(t *testing.T) {
	l := story(t)
	image, want := l.Image(), l.Snapshot()
	for range 3 {
		l.must(t, write(put("a", "later", 0)))
		first := l.Leases()[0]
		l.do(first.Owner, &apiv1.LeaseRevokeRequest{Id: int64(first.ID)})
	}
	l.send(coordtest.Once(1, 9, coordtest.Command(alice, &apiv1.CloseClientRequest{})))
	var b bytes.Buffer
	n, err := image.WriteTo(&b)
	require.NoError(t, err)
	require.Equal(t, int64(b.Len()), n)
	require.Equal(t, want, b.Bytes())
	require.NotEqual(t, image.Hash(), l.StateHash())
}

func TestSnapshotStreams(t *testing.T) {
	l := newLog()
	for i := range 3000 {
		l.must(t, write(put(fmt.Sprint("k", i%500), fmt.Sprintf("%0100d", i), 0)))
	}
	snapshot := l.Snapshot()
	require.Greater(t, len(snapshot), 3*(64<<10))
	rest := []byte("what follows on the stream")
	stream := bytes.NewReader(append(bytes.Clone(snapshot), rest...))
	m, err := machine.Current().RestoreFrom(iotest.HalfReader(stream))
	require.NoError(t, err)
	require.Equal(t, l.StateHash(), m.StateHash())
	require.Equal(t, len(rest), stream.Len())
	_, err = machine.Current().RestoreFrom(iotest.TimeoutReader(bytes.NewReader(snapshot)))
	require.ErrorIs(t, err, iotest.ErrTimeout)
	_, err = l.Image().WriteTo(limited{})
	require.ErrorIs(t, err, os.ErrClosed)
}

type limited struct{}

func (limited) Write([]byte) (int, error) { return 0, os.ErrClosed }

// Every byte matters: flip, drop or add one.
func TestRestoreRefusesDamage(t *testing.T) {
	snapshot := story(t).Snapshot()
	for i := range snapshot {
		damaged := bytes.Clone(snapshot)
		damaged[i] ^= 0x40
		_, err := machine.Restore(damaged)
		require.Error(t, err, "byte %d", i)
		_, err = machine.Restore(snapshot[:i])
		require.Error(t, err, "cut at %d", i)
	}
	_, err := machine.Restore(append(bytes.Clone(snapshot), 0))
	require.ErrorIs(t, err, fault.Invalid)
	other := bytes.Clone(snapshot)
	other[7] = 2
	_, err = machine.Restore(other)
	require.ErrorIs(t, err, fault.Unsupported)
}

// Correct checksums do not excuse contradictions.
func TestRestoreRefusesContradictions(t *testing.T) {
	l := newLog()
	id := l.leases(t, 2)
	l.must(t, lock("db", id[0]))
	l.must(t, lock("db", id[1]))
	l.must(t, write(put("a", "v", 0)))
	data := unframed(l.Snapshot())
	waiting := []byte{3, 3, 1, 2, 0, 1}  // create, mod, version, lease, no writer, claim of db/2
	by := func(version ...byte) []byte { // value, create, mod, version, lease, writer, no claim of a
		return append(append(version, byte(len(alice))), alice+"\x00"...)
	}
	plain := by('v', 4, 4, 1, 0)
	key := coord.LockKey("db", 2)
	claimed := func(revision byte, key string, now, before byte) []byte { // revision, key, present, absent
		return append(append([]byte{revision, byte(len(key))}, key...), now, before)
	}
	event := claimed(3, key, 2, 0)
	for _, c := range []struct {
		name     string
		old, new []byte
		field    string
	}{
		{"a token twice", waiting, []byte{2, 3, 1, 2, 0, 1}, "token"},
		{"a claim that is none", waiting, by(3, 3, 1, 2), ""},
		{"a claim of another lease", waiting, []byte{3, 3, 1, 1, 0, 1}, "key"},
		{"a version too many", waiting, []byte{3, 3, 2, 2, 0, 1}, "version"},
		{"a version of the future", plain, by('v', 4, 5, 1, 0), "mod_revision"},
		{"a beginning after the end", plain, by('v', 5, 4, 1, 0), "create_revision"},
		{"a lease that is not there", plain, by('v', 4, 4, 1, 5), "lease"},
		{"a plain key whose lease is another's", plain, []byte{'v', 4, 4, 1, 2, 3, 'b', 'o', 'b', 0}, "lease"},
		{"a value that is no claim", plain, append(bytes.Clone(plain[:len(plain)-1]), 1), "wire"},
		{"a number in a longer form", plain, by('v', 4, 4, 1, 0x80, 0), "number"},
		{"an event out of order", event, claimed(4, key, 2, 0), "event"},
		{"an event of nothing", event, claimed(3, key, 0, 0), "event"},
		{"an event of a missing version", event, claimed(3, key[:len(key)-1]+"x", 2, 0), "event"},
		{"an event that replaced itself", event, claimed(3, key, 2, 2), "event"},
		{"a version in no form", event, claimed(3, key, 3, 0), "event"},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.Equal(t, 1, bytes.Count(data, c.old))
			_, err := machine.Restore(framed(bytes.Replace(data, c.old, c.new, 1)))
			switch c.field {
			case "":
				// A plain key with the layout of a lock's key is legal, and not a claim.
				require.NoError(t, err)
			case "wire":
				require.ErrorIs(t, err, fault.Invalid)
			default:
				require.ErrorIs(t, err, fault.Invalid)
				require.Equal(t, c.field, fault.FieldOf(err), "%v", err)
			}
		})
	}
	_, err := machine.Restore(framed(append(bytes.Clone(data), 0)))
	require.Equal(t, "snapshot", fault.FieldOf(err))
}

// A generation must be bound to a lease of its owner.
func TestRestoreRefusesForeignPublications(t *testing.T) {
	l := newLog()
	l.leases(t, 2)
	l.lease(t, bob)
	l.must(t, batch(2, 7, entry("n", "s", "a", 1)))
	data := unframed(l.Snapshot())
	was := []byte("\x05alice\x07\x02")
	for name, is := range map[string]string{
		"nobody": "\x05alibi\x07\x02", "no generation": "\x05alice\x00\x02", "no lease": "\x05alice\x07\x00", "another's lease": "\x05alice\x07\x03",
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, 1, bytes.Count(data, was))
			_, err := machine.Restore(framed(bytes.Replace(data, was, []byte(is), 1)))
			require.ErrorIs(t, err, fault.Invalid)
		})
	}
	twice := bytes.Replace(data, append([]byte{1}, was...), append(append([]byte{2}, was...), was...), 1)
	_, err := machine.Restore(framed(twice))
	require.ErrorIs(t, err, fault.Invalid)
	require.Equal(t, "owner", fault.FieldOf(err))
}

// Removal records and Since must agree with the entries.
func TestRestoreRefusesRemovals(t *testing.T) {
	l := newLog()
	id := l.leases(t, 1)[0]
	l.must(t, batch(id, 1, adopted(entry("n", "s", "a", 1)), adopted(entry("n", "s", "b", 1)), adopted(entry("n", "s", "c", 1))))
	l.must(t, &apiv1.PublishInstancesRequest{LeaseId: int64(id), Generation: 1, Deletes: [][]byte{[]byte("directory/n/s/b")}})
	l.must(t, &apiv1.PublishInstancesRequest{LeaseId: int64(id), Generation: 1, Deletes: [][]byte{[]byte("directory/n/s/c")}})
	data := unframed(l.Snapshot())
	first, second := "\x0fdirectory/n/s/b\x03\x05alice", "\x0fdirectory/n/s/c\x04\x05alice"
	value := string(entry("n", "s", "a", 1).Value)
	for _, c := range []struct{ name, old, new, field string }{
		{"out of order", first + second, second + first, "removal"},
		{"twice", first + second, first + first, "removal"},
		{"of no entry", first, "\x0fdirectory/n/s/ \x03\x05alice", "removal"},
		{"of what is there", first, "\x0fdirectory/n/s/a\x03\x05alice", "removal"},
		{"never", first, "\x0fdirectory/n/s/b\x00\x05alice", "removal"},
		{"yet to come", second, "\x0fdirectory/n/s/c\x05\x05alice", "removal"},
		{"registered in the future", value + "\x02\x02\x01\x01\x00\x00\x02", value + "\x02\x02\x01\x01\x00\x00\x05", "since"},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.Equal(t, 1, bytes.Count(data, []byte(c.old)))
			_, err := machine.Restore(framed(bytes.Replace(data, []byte(c.old), []byte(c.new), 1)))
			require.ErrorIs(t, err, fault.Invalid)
			require.Equal(t, c.field, fault.FieldOf(err), "%v", err)
		})
	}
}
