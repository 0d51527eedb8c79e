package bootstrap

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"io/fs"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/platform/store"
	"github.com/blackhole/blackhole/pkg/fault"
)

const (
	filePrefix    = "bootstrap-"
	stateSuffix   = ".state"
	markSuffix    = ".mark"
	lockName      = "bootstrap.lock"
	stateSum      = 4 // bytes of CRC-32C of the first line and the state, big endian, between both
	maxStateBytes = 64 << 10
)

// stateFormat is the version of the file of a Store.
func stateFormat() store.Format[*State] {
	return store.Format[*State]{Name: "promises of the group bootstrap"}
}

// markFormat is the version of a mark: the peer id, and a line break.
func markFormat() store.Format[[]byte] {
	return store.Format[[]byte]{Name: "mark of a vote in the group bootstrap"}
}

// DataDir holds the folders of a peer's durable state.
type DataDir struct {
	// Dir holds the state, one file for each network.
	Dir string

	// Marks is the directory of the identity key. A mark in it says that the key once voted in a network: with
	// the mark but without the state, the peer has lost its promises.
	Marks string
}

// Store is an acceptor's state on disk. It is not safe for concurrent use.
type Store struct {
	fs      vfs.FS
	path    string
	lock    io.Closer
	own     owner
	state   State
	amnesia string
	broken  error // the first failed write, which is not repeated
}

// OpenStore loads the state of the peer self in the network, or creates it for a new peer or network. Only one
// store may be open on a directory.
//
// A damaged file, or a missing file despite a mark, is not an error: the peer must not vote (Amnesia), but may
// learn the group.
//
// A directory keeps its group: with a certificate of other founders of the same network, that certificate is the new
// state's. So a changed list of founders changes no group.
//
// Errors: Conflict for a directory with a certificate of another network, or the state of another peer: the directory
// was copied. Unsupported for a file of a later version: its promises are intact, so the peer must not forget them.
// Internal for a disk error.
func OpenStore(fsys vfs.FS, place DataDir, self peer.ID, network Network) (*Store, error) {
	const op = "bootstrap.OpenStore"
	s := &Store{
		fs:   fsys,
		path: fsys.PathJoin(place.Dir, filePrefix+network.ID().String()+stateSuffix),
		own:  owner{peer: self, network: network.ID()},
	}
	if err := errors.Join(store.MakeDir(fsys, place.Dir), store.MakeDir(fsys, place.Marks)); err != nil {
		return nil, fault.Wrap(op, err)
	}
	lock, err := Lock(fsys, place.Dir)
	if err != nil {
		return nil, fault.Wrap(op, err)
	}
	s.lock = lock
	if err := s.open(place, network); err != nil {
		return nil, fault.Wrap(op, errors.Join(err, lock.Close()))
	}
	return s, nil
}

// Lock takes the lock of an open Store, for other work on the directory.
func Lock(fsys vfs.FS, dir string) (io.Closer, error) {
	return fsys.Lock(fsys.PathJoin(dir, lockName))
}

// open loads the state. The file is created before the mark, so that a crash between the two leaves a file
// without votes.
func (s *Store) open(place DataDir, network Network) error {
	kept, err := s.earlier(place.Dir, network)
	if err != nil {
		return err
	}
	mark := s.fs.PathJoin(place.Marks, filePrefix+s.own.network.String()+markSuffix)
	marked, err := s.marked(mark)
	if err != nil {
		return err
	}
	switch err := s.load(); {
	case err == nil:
	case fault.KindOf(err) == fault.Invalid:
		s.amnesia = s.path + " is damaged: " + fault.Message(err)
	case !errors.Is(err, fs.ErrNotExist):
		return err
	case marked:
		s.amnesia = s.path + " is missing, but " + mark + " says that it was there"
	default:
		if err := s.Save(State{}); err != nil {
			return err
		}
	}
	if !marked {
		if err := writeFile(s.fs, mark, markFormat().Seal([]byte(s.own.peer.String()+"\n"))); err != nil {
			return err
		}
	}
	if kept == nil || s.state.Certificate != nil {
		return nil
	}
	state := s.state
	state.Certificate = kept
	return s.Save(state)
}

// earlier returns the certificate that the directory holds under another definition of the network; nil without one.
// Its group is this peer's group.
func (s *Store) earlier(dir string, network Network) (*Certificate, error) {
	names, err := s.fs.List(dir)
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	var found *Certificate
	for _, name := range names {
		path := s.fs.PathJoin(dir, name)
		if path == s.path || !strings.HasPrefix(name, filePrefix) || !strings.HasSuffix(name, stateSuffix) {
			continue
		}
		_, state, err := readState(s.fs, path)
		if fault.KindOf(err) == fault.Unsupported {
			return nil, err // it may have a certificate
		}
		if err != nil || state.Certificate == nil {
			continue
		}
		if err := network.recognize(*state.Certificate); err != nil {
			return nil, fault.New("", fault.Conflict, "%s belongs to group %s of another network than %q: use another data directory (%v)",
				dir, state.Certificate.GroupID(), network.Name, err)
		}
		found = state.Certificate
	}
	return found, nil
}

// marked reports whether the identity key was marked; the mark of an earlier key does not count. A damaged mark
// counts: it may cost a vote, but no promise.
func (s *Store) marked(path string) (bool, error) {
	b, err := readFile(s.fs, path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	content, is, err := markFormat().Unseal(path, b)
	if fault.KindOf(err) == fault.Invalid {
		return true, nil
	}
	if err == nil {
		err = markFormat().Upgrade(path, is, content, func(uint32) error { return nil })
	}
	return err == nil && strings.TrimSpace(string(content)) == s.own.peer.String(), err
}

func (s *Store) load() error {
	o, state, err := readState(s.fs, s.path)
	if err != nil {
		return err
	}
	if o.peer != s.own.peer {
		return fault.New("", fault.Conflict, "%s is the state of peer %s; this is %s: the directory was copied or the key replaced",
			s.path, o.peer, s.own.peer)
	}
	if o.network != s.own.network {
		return fault.New("", fault.Invalid, "file of network %s", o.network)
	}
	s.state = state
	return nil
}

// State returns the last saved state.
func (s *Store) State() State { return s.state }

// Amnesia returns the reason for which the peer must not vote; empty if it may.
func (s *Store) Amnesia() string { return s.amnesia }

// Save saves the state: after a nil error, no crash undoes it. After a failure every Save fails, because the
// disk's content is unknown; the process should end.
func (s *Store) Save(state State) error {
	const op = "bootstrap.Store.Save"
	if s.broken != nil {
		return fault.Wrap(op, s.broken)
	}
	if s.amnesia != "" && state.Certificate == nil {
		return fault.New(op, fault.Internal, "a peer without memory has nothing to promise")
	}
	if err := s.write(state); err != nil {
		s.broken = err
		return fault.Wrap(op, err)
	}
	s.state = state
	return nil
}

func (s *Store) write(state State) error {
	b, err := encodeState(s.own, state)
	if err != nil {
		return err
	}
	head := stateFormat().Seal(nil)
	head = binary.BigEndian.AppendUint32(head, checksum(head, b))
	return writeFile(s.fs, s.path, append(head, b...))
}

// Close releases the directory.
func (s *Store) Close() error { return fault.Wrap("bootstrap.Store.Close", s.lock.Close()) }

func checksum(head, rest []byte) uint32 {
	table := crc32.MakeTable(crc32.Castagnoli)
	return crc32.Update(crc32.Checksum(head, table), table, rest)
}

// readState returns Invalid for a damaged file, and Unsupported for one of a later version.
func readState(fsys vfs.FS, path string) (owner, State, error) {
	b, err := readFile(fsys, path)
	if err != nil {
		return owner{}, State{}, err
	}
	content, is, err := stateFormat().Unseal(path, b)
	if err != nil {
		return owner{}, State{}, err
	}
	head := b[:len(b)-len(content)]
	if len(content) < stateSum || binary.BigEndian.Uint32(content) != checksum(head, content[stateSum:]) {
		return owner{}, State{}, fault.New("", fault.Invalid, "wrong checksum")
	}
	// Migrations act on the state in memory; the next Save writes the present format.
	own, state, err := decodeState(content[stateSum:])
	if err != nil {
		return own, state, err
	}
	return own, state, stateFormat().Upgrade(path, is, &state, func(uint32) error { return nil })
}

func readFile(fsys vfs.FS, path string) ([]byte, error) {
	f, err := fsys.Open(path)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(f, maxStateBytes))
	return b, errors.Join(err, f.Close())
}

// writeFile replaces a file atomically and durably: temporary file, sync, rename, sync of the directory.
func writeFile(fsys vfs.FS, path string, b []byte) error {
	tmp := path + ".new"
	f, err := fsys.Create(tmp, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := fsys.Rename(tmp, path); err != nil {
		return err
	}
	return store.SyncDir(fsys, fsys.PathDir(path))
}
