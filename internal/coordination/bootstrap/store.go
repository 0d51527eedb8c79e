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
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/platform/store"
	"github.com/blackhole/blackhole/pkg/fault"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

const (
	stateFile     = "group"
	markPrefix    = "bootstrap-"
	markSuffix    = ".mark"
	lockName      = "bootstrap.lock"
	stateSum      = 4 // bytes of CRC-32C of the first line and the state, big endian, between both
	maxStateBytes = 64 << 10
	maxLeft       = 16 // groups of State.Left
)

// stateFormat is the version of the file of a Store.
func stateFormat() store.Format[*State] { return store.Format[*State]{Name: "group of this peer"} }

// markFormat is the version of a mark: the peer id, and a line break.
func markFormat() store.Format[[]byte] {
	return store.Format[[]byte]{Name: "mark of a vote in the group bootstrap"}
}

// DataDir holds the folders of a peer's durable state.
type DataDir struct {
	Dir string // of the state

	// Marks is the directory of the identity key. A mark in it says that the key once had a state with these founders: with
	// the mark but without the state, the peer may have voted.
	Marks string
}

// State is what a peer remembers of its group. States are replaced, never changed through their pointers.
type State struct {
	Group *Membership // nil: no group is known
	// Word is the group that this peer wants to found, or that it let another peer found; nil: none. See Options.Expect.
	Word *Membership

	// Left are the groups from which this peer went over to the present one, oldest first. Floor is the revision that the
	// present group had then: earlier cursors of watches can be of a former group.
	Left  []GroupID
	Floor int64
	// Drop says that the folder of the member is of the group that was left last, and is to be removed.
	Drop bool
}

// Store is a peer's State on disk. It is not safe for concurrent use.
type Store struct {
	fs      vfs.FS
	path    string
	lock    io.Closer
	self    peer.ID
	network Network
	state   State
	amnesia string
}

// OpenStore loads the state of the peer self, or creates it for a new peer or network. Only one store may be open on a
// directory. A directory keeps its group under a changed list of founders.
//
// A damaged file, or a missing file despite a mark, is not an error: the peer must not found (Amnesia), but may learn the
// group.
//
// Errors: Conflict for a directory with a group of another network, or the state of another peer: the directory was
// copied. Unsupported for a file of a later version. Internal for a disk error.
func OpenStore(fsys vfs.FS, place DataDir, self peer.ID, network Network) (*Store, error) {
	const op = "bootstrap.OpenStore"
	s := &Store{fs: fsys, path: fsys.PathJoin(place.Dir, stateFile), self: self, network: network}
	if err := errors.Join(store.MakeDir(fsys, place.Dir), store.MakeDir(fsys, place.Marks)); err != nil {
		return nil, fault.Wrap(op, s.place().Refused(err))
	}
	lock, err := Lock(fsys, place.Dir)
	if err != nil {
		return nil, fault.Wrap(op, s.place().Refused(err))
	}
	s.lock = lock
	if err := s.open(place); err != nil {
		return nil, fault.Wrap(op, errors.Join(s.place().Refused(err), lock.Close()))
	}
	return s, nil
}

// place is what an operator can do about the file.
func (s *Store) place() store.Place {
	return store.Place{
		Name: stateFormat().Name, Path: s.path, Effect: "this peer founds no group, because it may have voted and forgot",
		Remedy: "If another member of the group runs, nothing is to be done: this peer learns the group from it. Otherwise restore " +
			"the file from a backup of the data directory, or `blackholed group restore FILE` of a backup of the group",
	}
}

// Examine reads the state as OpenStore does, and changes nothing. Errors: as OpenStore; Internal, a problem, also where the peer
// could not found.
func Examine(fsys vfs.FS, place DataDir, self peer.ID, network Network) error {
	s := &Store{fs: fsys, path: fsys.PathJoin(place.Dir, stateFile), self: self, network: network}
	err := s.load()
	switch {
	case err == nil:
		err = s.recognize()
	case errors.Is(err, fs.ErrNotExist):
		marked, failed := s.marked(s.mark(place))
		if err = failed; marked {
			err = s.gone(place)
		}
	}
	if err != nil {
		return fault.Wrap("bootstrap.Examine", s.place().Refused(err))
	}
	return nil
}

// mark is the path of the mark of this network.
func (s *Store) mark(place DataDir) string {
	return s.fs.PathJoin(place.Marks, markPrefix+s.network.ID().String()+markSuffix)
}

func (s *Store) gone(place DataDir) error {
	return fault.New("", fault.Internal, "it is missing, but %s says that it was there", s.mark(place))
}

// Lock takes the lock of an open Store, for other work on the directory.
func Lock(fsys vfs.FS, dir string) (io.Closer, error) {
	return fsys.Lock(fsys.PathJoin(dir, lockName))
}

// open loads the state. The file is created before the mark, so that a crash between the two leaves a file of a peer that
// never voted.
func (s *Store) open(place DataDir) error {
	mark := s.mark(place)
	marked, err := s.marked(mark)
	if err != nil {
		return err
	}
	switch err := s.load(); {
	case err == nil:
		if err := s.recognize(); err != nil {
			return err
		}
	case fault.KindOf(err) == fault.Invalid:
		s.amnesia = fault.ProblemOf(s.place().Refused(err)).String()
	case !errors.Is(err, fs.ErrNotExist):
		return err
	case marked:
		s.amnesia = fault.ProblemOf(s.place().Refused(s.gone(place))).String()
	default:
		if err := s.Save(State{}); err != nil {
			return err
		}
	}
	if marked {
		return nil
	}
	return writeFile(s.fs, mark, markFormat().Seal([]byte(s.self.String()+"\n")))
}

// recognize refuses a directory of another network.
func (s *Store) recognize() error {
	if s.state.Group == nil {
		return nil
	}
	if err := s.network.recognize(*s.state.Group); err != nil {
		return fault.New("", fault.Conflict, "%s belongs to group %s of another network than %q: start with --network and the name of that network; another network needs another data directory, and so another identity (%v)",
			s.path, s.state.Group.GroupID(), s.network.Name, err)
	}
	return nil
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
	return err == nil && strings.TrimSpace(string(content)) == s.self.String(), err
}

// load returns Invalid for a damaged file, and Unsupported for one of a later version.
func (s *Store) load() error {
	b, err := readFile(s.fs, s.path)
	if err != nil {
		return err
	}
	content, is, err := stateFormat().Unseal(s.path, b)
	if err != nil {
		return err
	}
	head := b[:len(b)-len(content)]
	if len(content) < stateSum || binary.BigEndian.Uint32(content) != checksum(head, content[stateSum:]) {
		return fault.New("", fault.Invalid, "wrong checksum")
	}
	w := new(groupv1.KnownGroup)
	if err := proto.Unmarshal(content[stateSum:], w); err != nil {
		return fault.New("", fault.Invalid, "%v", err)
	}
	if own := peer.ID(w.GetPeer()); own != s.self {
		return fault.New("", fault.Conflict, "%s is the state of peer %s; this is %s: the directory was copied or the key replaced",
			s.path, own, s.self)
	}
	state := State{Floor: w.GetFloor(), Drop: w.GetDrop()}
	for _, b := range w.GetLeft() {
		if len(b) != len(GroupID{}) {
			return fault.New("", fault.Invalid, "a former group has %d bytes", len(b))
		}
		state.Left = append(state.Left, GroupID(b))
	}
	if b := w.GetMembership(); len(b) > 0 {
		m, err := DecodeMembership(b)
		if err != nil {
			return err
		}
		state.Group = &m
	}
	if b := w.GetWord(); len(b) > 0 {
		m, err := DecodeMembership(b)
		if err != nil {
			return err
		}
		state.Word = &m
	}
	s.state = state
	// Migrations act on the state in memory; the next Save writes the present format.
	return stateFormat().Upgrade(s.path, is, &s.state, func(uint32) error { return nil })
}

// State returns the last saved state.
func (s *Store) State() State { return s.state }

// Amnesia returns the reason for which the peer must not found; empty if it may.
func (s *Store) Amnesia() string { return s.amnesia }

// Save saves the state: after a nil error, no crash undoes it. Errors: Internal; the process must end.
func (s *Store) Save(state State) error {
	w := &groupv1.KnownGroup{Peer: []byte(s.self), Floor: state.Floor, Drop: state.Drop}
	if state.Group != nil {
		w.Membership = state.Group.Encode()
	}
	if state.Word != nil {
		w.Word = state.Word.Encode()
	}
	for _, id := range state.Left {
		w.Left = append(w.Left, id[:])
	}
	b, err := proto.Marshal(w)
	if err == nil {
		head := stateFormat().Seal(nil)
		head = binary.BigEndian.AppendUint32(head, checksum(head, b))
		err = writeFile(s.fs, s.path, append(head, b...))
	}
	if err == nil {
		s.state = state
	}
	return fault.Wrap("bootstrap.Store.Save", err)
}

// Close releases the directory.
func (s *Store) Close() error { return fault.Wrap("bootstrap.Store.Close", s.lock.Close()) }

// Leave makes another group the one of a directory. floor is the revision that the other group has reached. The folder of its
// member is to be removed: see State.Drop. One write changes all, so a crash leaves the former group or the next one.
//
// Errors: as OpenStore, which it opens.
func Leave(fsys vfs.FS, place DataDir, self peer.ID, network Network, to Membership, floor int64) (err error) {
	const op = "bootstrap.Leave"
	s, err := OpenStore(fsys, place, self, network)
	if err != nil {
		return fault.Wrap(op, err)
	}
	defer func() { err = fault.Wrap(op, errors.Join(err, s.Close())) }()
	next := State{Group: &to, Left: slices.Clone(s.state.Left), Floor: max(s.state.Floor, floor), Drop: true}
	if s.state.Group != nil {
		next.Left = append(next.Left, s.state.Group.GroupID())
	}
	next.Left = slices.DeleteFunc(next.Left, func(id GroupID) bool { return id == to.GroupID() })
	next.Left = next.Left[max(0, len(next.Left)-maxLeft):]
	return s.Save(next)
}

// Adopt stores the group of a peer that knows none, under the lock of its directory: see Lock. The peer that starts with it
// checks the network.
//
// Errors: as OpenStore; Conflict for a directory of another group.
func Adopt(fsys vfs.FS, place DataDir, self peer.ID, m Membership) error {
	const op = "bootstrap.Adopt"
	if err := errors.Join(store.MakeDir(fsys, place.Dir), store.MakeDir(fsys, place.Marks)); err != nil {
		return fault.Wrap(op, err)
	}
	s := &Store{fs: fsys, path: fsys.PathJoin(place.Dir, stateFile), self: self}
	switch err := s.load(); {
	case err == nil || errors.Is(err, fs.ErrNotExist):
	case fault.KindOf(err) == fault.Invalid: // damaged: what is known of the group replaces it
	default:
		return fault.Wrap(op, err)
	}
	if has := s.state.Group; has != nil {
		if has.GroupID() != m.GroupID() {
			return fault.New(op, fault.Conflict, "%s belongs to group %s, not %s: use another directory", place.Dir, has.GroupID(), m.GroupID())
		}
		return nil
	}
	return fault.Wrap(op, s.Save(State{Group: &m, Left: s.state.Left, Floor: s.state.Floor}))
}

func checksum(head, rest []byte) uint32 {
	table := crc32.MakeTable(crc32.Castagnoli)
	return crc32.Update(crc32.Checksum(head, table), table, rest)
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
