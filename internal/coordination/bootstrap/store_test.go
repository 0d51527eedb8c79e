package bootstrap

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/libp2p/go-libp2p/core/peer"
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

// court is three founders and a peer that is none.
type court struct {
	network Network
	ids     []peer.ID
	first   Membership
	alone   Membership
}

func newCourt(t testing.TB) court {
	_, ids := keyring(t, 4)
	n := listed(ids[:3]...)
	return court{network: n, ids: ids, first: n.Membership(), alone: unlisted().Alone(Voter{ids[1], 7})}
}

func openStore(t testing.TB, fs vfs.FS, c court, i int) *Store {
	t.Helper()
	s, err := OpenStore(fs, testPlace(), c.ids[i], c.network)
	require.NoError(t, err)
	return s
}

// TestPowerCut cuts the power after every disk operation: the old or the new state is there, the new one after
// Save, and no crash costs a vote.
func TestPowerCut(t *testing.T) {
	c := newCourt(t)
	before := State{Group: &c.alone}
	after := State{Group: &c.first, Left: []GroupID{c.alone.GroupID()}, Floor: 9, Drop: true}
	for _, percent := range []int{0, 50, 100} {
		for seed := range uint64(20) {
			d := &disk{MemFS: vfs.NewCrashableMem()}
			d.cfg = vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rand.New(rand.NewPCG(seed, 1))}
			s := openStore(t, d, c, 1)
			opened := len(d.clones)
			require.NoError(t, s.Save(before))
			saved := len(d.clones)
			require.NoError(t, s.Close())
			require.NoError(t, Leave(d, testPlace(), c.ids[1], c.network, c.first, 9))
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

// TestLeave: a peer remembers the last groups that it left, and not the one to which it returns.
func TestLeave(t *testing.T) {
	c := newCourt(t)
	fs := vfs.NewMem()
	s := openStore(t, fs, c, 1)
	require.NoError(t, s.Save(State{Group: &c.first}))
	require.NoError(t, s.Close())
	var all []GroupID
	for i := range maxLeft + 3 {
		next := unlisted().Alone(Voter{c.ids[1], 7})
		require.NoError(t, Leave(fs, testPlace(), c.ids[1], c.network, next, int64(i)))
		all = append(all, next.GroupID())
	}
	require.NoError(t, Leave(fs, testPlace(), c.ids[1], c.network, c.first, 1))
	s = openStore(t, fs, c, 1)
	require.Equal(t, State{Group: &c.first, Left: all[3:], Floor: maxLeft + 2, Drop: true}, s.State())
}

// TestDiskFails: a failed write is reported, and the former state stays.
func TestDiskFails(t *testing.T) {
	c := newCourt(t)
	for at := 1; ; at++ {
		d := &disk{MemFS: vfs.NewCrashableMem()}
		s := openStore(t, d, c, 1)
		d.failAt = at
		err := s.Save(State{Group: &c.first})
		if err == nil {
			require.Greater(t, at, 4, "create, write, sync, rename, sync of the directory")
			return
		}
		require.ErrorIs(t, err, errDisk)
		require.Equal(t, State{}, s.State())
	}
}

// TestOpenFails: no failed disk operation of the first opening costs the peer its vote. An opening without a
// failure ends the loop.
func TestOpenFails(t *testing.T) {
	c := newCourt(t)
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
	c := newCourt(t)
	const state = "/var/data/group/group"
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
			require.NoError(t, s.Save(State{Group: &c.first}), "what others founded may be known")
			require.NoError(t, s.Close())
			require.Equal(t, &c.first, openStore(t, fs, c, 1).State().Group)
		})
	}
}

// TestDamage flips every bit of the file: no wrong state is believed.
func TestDamage(t *testing.T) {
	c := newCourt(t)
	fs := vfs.NewMem()
	s := openStore(t, fs, c, 1)
	require.NoError(t, s.Save(State{Group: &c.first, Left: []GroupID{c.alone.GroupID()}, Floor: 9}))
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

// A file of a later version is refused and stays as it is, whatever its content: the peer must neither forget nor replace it.
func TestLaterFormats(t *testing.T) {
	c := newCourt(t)
	const state = "/var/data/group/group"
	mark := "/etc/keys/bootstrap-" + c.network.ID().String() + ".mark"
	for path, name := range map[string]string{state: "group of this peer", mark: "mark of a vote in the group bootstrap"} {
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
	c := newCourt(t)
	other := listed(c.ids...)
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
	require.NoError(t, s.Close())
	require.ErrorIs(t, open(fs, 2, c.network), fault.Conflict, "a copied directory")

	require.NoError(t, open(fs, 1, other), "another configuration before anything was founded")
	s = openStore(t, fs, c, 1)
	require.NoError(t, s.Save(State{Group: &c.first}))
	require.NoError(t, s.Close())
	renamed := other
	renamed.Name = "renamed"
	err := open(fs, 1, renamed)
	require.ErrorIs(t, err, fault.Conflict, "the group of another network")
	require.ErrorContains(t, err, c.first.GroupID().String())

	for _, changed := range []Network{other, unlisted(), other} {
		s, err = OpenStore(fs, testPlace(), c.ids[1], changed)
		require.NoError(t, err)
		require.Equal(t, &c.first, s.State().Group, "other founders after the founding: the group stays")
		require.NoError(t, s.Close())
	}
	require.ErrorIs(t, Adopt(fs, testPlace(), c.ids[1], c.alone), fault.Conflict)
	require.NoError(t, Adopt(fs, testPlace(), c.ids[1], c.first))
}

// TestRealDisk uses the operating system's files.
func TestRealDisk(t *testing.T) {
	c := newCourt(t)
	dir := t.TempDir()
	place := DataDir{Dir: filepath.Join(dir, "data", "group"), Marks: filepath.Join(dir, "keys")}
	open := func() *Store {
		s, err := OpenStore(vfs.Default, place, c.ids[1], c.network)
		require.NoError(t, err)
		return s
	}
	s := open()
	require.NoError(t, s.Save(State{Group: &c.first}))
	require.NoError(t, s.Close())
	s = open()
	require.Equal(t, State{Group: &c.first}, s.State())
	require.NoError(t, s.Close())
	require.NoError(t, os.RemoveAll(place.Dir))
	s = open()
	require.NotEmpty(t, s.Amnesia())
	require.NoError(t, s.Close())
}
