package bootstrap

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/fault"
)

// disk is a file system that records the effect of a power cut after each operation, or fails at one of them.
type disk struct {
	*vfs.MemFS
	cfg    vfs.CrashCloneCfg
	clones []*vfs.MemFS
	failAt int // operations before a failure; 0: none
}

var errDisk = errors.New("input/output error")

func (d *disk) did() error {
	d.clones = append(d.clones, d.CrashClone(d.cfg))
	if d.failAt--; d.failAt == 0 {
		return errDisk
	}
	return nil
}

func (d *disk) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := d.MemFS.Create(name, c)
	return &diskFile{File: f, disk: d}, errors.Join(err, d.did())
}

func (d *disk) OpenDir(name string) (vfs.File, error) {
	f, err := d.MemFS.OpenDir(name)
	return &diskFile{File: f, disk: d}, errors.Join(err, d.did())
}

func (d *disk) Rename(from, to string) error { return errors.Join(d.MemFS.Rename(from, to), d.did()) }

func (d *disk) MkdirAll(dir string, perm os.FileMode) error {
	return errors.Join(d.MemFS.MkdirAll(dir, perm), d.did())
}

type diskFile struct {
	vfs.File
	disk *disk
}

func (f *diskFile) Write(b []byte) (int, error) {
	n, err := f.File.Write(b)
	return n, errors.Join(err, f.disk.did())
}

func (f *diskFile) Sync() error { return errors.Join(f.File.Sync(), f.disk.did()) }

func testPlace() DataDir { return DataDir{Dir: "/var/data/group", Marks: "/etc/keys"} }

func openStore(t testing.TB, fs vfs.FS, c court, i int) *Store {
	t.Helper()
	s, err := OpenStore(fs, testPlace(), c.ids[i], c.network)
	require.NoError(t, err)
	return s
}

// TestPowerCut cuts the power after every disk operation: the old or the new state is there, the new one after
// Save, and no crash costs a vote.
func TestPowerCut(t *testing.T) {
	c := newCourt(t, 3)
	before := State{Promised: Ballot{Round: 1, Peer: c.ids[0]}}
	cert := c.certificate(t, 0, 1)
	after := State{Promised: c.ballot, Accepted: c.ballot, Membership: &c.charter, Certificate: &cert}
	for _, percent := range []int{0, 50, 100} {
		for seed := range uint64(20) {
			d := &disk{MemFS: vfs.NewCrashableMem()}
			d.cfg = vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rand.New(rand.NewPCG(seed, 1))}
			s := openStore(t, d, c, 1)
			opened := len(d.clones)
			require.NoError(t, s.Save(before))
			saved := len(d.clones)
			require.NoError(t, s.Save(after))
			for i, clone := range d.clones {
				again := openStore(t, clone, c, 1)
				require.Empty(t, again.Amnesia(), "after operation %d", i)
				switch got := again.State(); {
				case i < opened:
					require.Equal(t, State{}, got)
				case i < saved-1:
					require.Contains(t, []State{{}, before}, got)
				case i == saved-1:
					require.Equal(t, before, got)
				case i < len(d.clones)-1:
					require.Contains(t, []State{before, after}, got)
				default:
					require.Equal(t, after, got)
				}
			}
		}
	}
}

// TestDiskFails: a failed write is reported, and is the last.
func TestDiskFails(t *testing.T) {
	c := newCourt(t, 3)
	for at := 1; ; at++ {
		d := &disk{MemFS: vfs.NewCrashableMem()}
		s := openStore(t, d, c, 1)
		d.failAt = at
		err := s.Save(State{Promised: c.ballot})
		if err == nil {
			require.Greater(t, at, 4, "create, write, sync, rename, sync of the directory")
			return
		}
		require.ErrorIs(t, err, errDisk)
		require.Equal(t, State{}, s.State())
		require.ErrorIs(t, s.Save(State{Promised: c.ballot}), errDisk, "fsync is not tried again")
	}
}

// TestOpenFails: no failed disk operation of the first opening costs the peer its vote. An opening without a
// failure ends the loop.
func TestOpenFails(t *testing.T) {
	c := newCourt(t, 3)
	for at := 1; ; at++ {
		require.Less(t, at, 40, "an opening has fewer operations")
		d := &disk{MemFS: vfs.NewCrashableMem(), failAt: at}
		_, err := OpenStore(d, testPlace(), c.ids[1], c.network)
		if err == nil {
			require.Greater(t, at, 10)
			return
		}
		require.ErrorIs(t, err, errDisk)
		require.Empty(t, openStore(t, d, c, 1).Amnesia(), "failure %d cost the vote", at)
	}
}

func TestAmnesia(t *testing.T) {
	c := newCourt(t, 3)
	state := "/var/data/group/bootstrap-" + c.network.ID().String() + ".state"
	mark := "/etc/keys/bootstrap-" + c.network.ID().String() + ".mark"
	tests := []struct {
		name  string
		spoil func(vfs.FS) error
		lost  bool
	}{
		{"nothing happened", func(vfs.FS) error { return nil }, false},
		{"data directory lost", func(fs vfs.FS) error { return fs.RemoveAll("/var") }, true},
		{"file lost", func(fs vfs.FS) error { return fs.Remove(state) }, true},
		{"file emptied", func(fs vfs.FS) error { return writeFile(fs, state, nil) }, true},
		{"mark damaged", func(fs vfs.FS) error { return writeFile(fs, mark, []byte("?")) }, false},
		{"mark damaged, data directory lost", func(fs vfs.FS) error {
			return errors.Join(fs.RemoveAll("/var"), writeFile(fs, mark, []byte("?")))
		}, true},
		{"mark lost", func(fs vfs.FS) error { return fs.Remove(mark) }, false},
		{"both lost: a new machine", func(fs vfs.FS) error { return errors.Join(fs.Remove(mark), fs.RemoveAll("/var")) }, false},
		{"key replaced, its mark left", func(fs vfs.FS) error {
			return errors.Join(fs.RemoveAll("/var"), writeFile(fs, mark, markFormat().Seal([]byte(c.ids[2].String()))))
		}, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			fs := vfs.NewMem()
			require.NoError(t, openStore(t, fs, c, 1).Close())
			require.NoError(t, test.spoil(fs))
			s := openStore(t, fs, c, 1)
			require.Equal(t, test.lost, s.Amnesia() != "", s.Amnesia())
			err := s.Save(State{Promised: c.ballot})
			require.Equal(t, test.lost, err != nil)
			cert := c.certificate(t, 0, 2)
			require.NoError(t, s.Save(State{Certificate: &cert}), "what others founded may be known")
			require.NoError(t, s.Close())
			require.Equal(t, &cert, openStore(t, fs, c, 1).State().Certificate)
		})
	}
}

// TestDamage flips every bit of the file: no wrong state is believed.
func TestDamage(t *testing.T) {
	c := newCourt(t, 3)
	fs := vfs.NewMem()
	s := openStore(t, fs, c, 1)
	require.NoError(t, s.Save(State{Promised: c.ballot, Accepted: c.ballot, Membership: &c.charter}))
	require.NoError(t, s.Close())
	good, err := readFile(fs, s.path)
	require.NoError(t, err)
	digit := bytes.IndexByte(good, '\n') - 1 // of the version: see TestLaterFormats
	for i := range good {
		if i == digit {
			continue
		}
		bad := bytes.Clone(good)
		bad[i] ^= 1 << (i % 8)
		require.NoError(t, writeFile(fs, s.path, bad))
		again := openStore(t, fs, c, 1)
		require.NotEmpty(t, again.Amnesia(), "byte %d", i)
		require.Equal(t, State{}, again.State())
		require.NoError(t, again.Close())
	}
}

// A file of a later version is refused and stays as it is, whatever its content: its promises hold, and the peer
// must neither forget nor replace them.
func TestLaterFormats(t *testing.T) {
	c := newCourt(t, 3)
	state := "/var/data/group/bootstrap-" + c.network.ID().String() + ".state"
	other := "/var/data/group/bootstrap-" + home(3).ID().String() + ".state"
	mark := "/etc/keys/bootstrap-" + c.network.ID().String() + ".mark"
	for path, name := range map[string]string{
		state: "promises of the group bootstrap", other: "promises of the group bootstrap", mark: "mark of a vote in the group bootstrap",
	} {
		fs := vfs.NewMem()
		require.NoError(t, openStore(t, fs, c, 1).Close())
		later := []byte(name + ", format 2\nof another form")
		require.NoError(t, writeFile(fs, path, later))
		_, err := OpenStore(fs, testPlace(), c.ids[1], c.network)
		require.ErrorIs(t, err, fault.Unsupported, path)
		require.ErrorContains(t, err, "the "+name+" in "+path+" has format 2, this program reads formats 1 to 1: run the later program again")
		after, err := readFile(fs, path)
		require.NoError(t, err)
		require.Equal(t, later, after)
	}

	fs := vfs.NewMem()
	require.NoError(t, fs.MkdirAll("d", 0o700))
	require.NoError(t, writeFile(fs, "d/recovery", []byte("recovery record, format 2\n?")))
	_, err := LoadRecovery(fs, "d")
	require.ErrorIs(t, err, fault.Unsupported)
	require.ErrorContains(t, err, "the recovery record in d/recovery has format 2")
}

func TestStoreOfOthers(t *testing.T) {
	c := newCourt(t, 3)
	other := Network{Name: "test", Mode: Listed, Founders: c.ids}
	open := func(fs vfs.FS, i int, n Network) error {
		s, err := OpenStore(fs, testPlace(), c.ids[i], n)
		if err != nil {
			return err
		}
		return s.Close()
	}

	fs := vfs.NewMem()
	s := openStore(t, fs, c, 1)
	require.Error(t, open(fs, 1, c.network), "two at once")
	require.NoError(t, s.Save(State{Promised: c.ballot}))
	require.NoError(t, s.Close())
	require.ErrorIs(t, open(fs, 2, c.network), fault.Conflict, "a copied directory")

	require.NoError(t, open(fs, 1, other), "another configuration before anything was founded")
	s = openStore(t, fs, c, 1)
	require.Equal(t, c.ballot, s.State().Promised, "and back: nothing is forgotten")
	cert := c.certificate(t, 0, 1)
	require.NoError(t, s.Save(State{Certificate: &cert}))
	require.NoError(t, s.Close())
	renamed := other
	renamed.Name = "renamed"
	err := open(fs, 1, renamed)
	require.ErrorIs(t, err, fault.Conflict, "the group of another network")
	require.ErrorContains(t, err, cert.GroupID().String())

	for _, changed := range []Network{other, {Name: "test", Mode: Unlisted, Expect: 1}, other} {
		s, err = OpenStore(fs, testPlace(), c.ids[1], changed)
		require.NoError(t, err)
		require.Equal(t, &cert, s.State().Certificate, "other founders after the founding: the group stays")
		require.NoError(t, s.Close())
	}
}

func FuzzState(f *testing.F) {
	c := newCourt(f, 3)
	cert := c.certificate(f, 0, 1)
	for _, s := range []State{{}, {Promised: c.ballot}, {Promised: c.ballot, Accepted: c.ballot, Membership: &c.charter, Certificate: &cert, Conflicting: &cert}} {
		b, err := encodeState(owner{c.ids[0], c.network.ID()}, s)
		require.NoError(f, err)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		o, s, err := decodeState(b)
		if err != nil {
			return
		}
		again, err := encodeState(o, s)
		require.NoError(t, err)
		o2, s2, err := decodeState(again)
		require.NoError(t, err)
		require.Equal(t, fmt.Sprint(o, s.Promised, s.Accepted), fmt.Sprint(o2, s2.Promised, s2.Accepted))
		require.Equal(t, s, s2)
	})
}

// TestRealDisk uses the operating system's files.
func TestRealDisk(t *testing.T) {
	c := newCourt(t, 3)
	dir := t.TempDir()
	place := DataDir{Dir: filepath.Join(dir, "data", "group"), Marks: filepath.Join(dir, "keys")}
	open := func() *Store {
		s, err := OpenStore(vfs.Default, place, c.ids[1], c.network)
		require.NoError(t, err)
		return s
	}
	s := open()
	require.NoError(t, s.Save(State{Promised: c.ballot}))
	require.NoError(t, s.Close())
	s = open()
	require.Equal(t, State{Promised: c.ballot}, s.State())
	require.NoError(t, s.Close())
	require.NoError(t, os.RemoveAll(place.Dir))
	s = open()
	require.NotEmpty(t, s.Amnesia())
	require.NoError(t, s.Close())
}
