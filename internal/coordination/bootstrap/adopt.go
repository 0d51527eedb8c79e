package bootstrap

import (
	"errors"
	"io/fs"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/platform/store"
	"github.com/blackhole/blackhole/pkg/fault"
)

// ReadCertificate decodes the canonical encoding. It verifies nothing: the certificate says which group a backup is of, and the
// peer that starts with it verifies it.
func ReadCertificate(b []byte) (Certificate, error) {
	c, err := decodeCertificate(b)
	return c, fault.Wrap("bootstrap.ReadCertificate", err)
}

// Adopt stores a certificate for a peer without one, under the lock of its directory.
//
// Errors: as OpenStore; Conflict for a directory with the certificate of another group.
func Adopt(fsys vfs.FS, place DataDir, self peer.ID, c Certificate) error {
	const op = "bootstrap.Adopt"
	for _, dir := range []string{place.Dir, place.Marks} {
		if err := store.MakeDir(fsys, dir); err != nil {
			return fault.Wrap(op, err)
		}
	}
	if err := otherGroup(fsys, place.Dir, c.GroupID()); err != nil {
		return fault.Wrap(op, err)
	}
	network := c.Membership.Network
	s := &Store{
		fs: fsys, path: fsys.PathJoin(place.Dir, filePrefix+network.String()+stateSuffix), own: owner{peer: self, network: network},
	}
	switch err := s.load(); {
	case err == nil || errors.Is(err, fs.ErrNotExist):
	case fault.KindOf(err) == fault.Invalid: // damaged; with a certificate the peer never votes
	default:
		return fault.Wrap(op, err)
	}
	state := s.State()
	if state.Certificate != nil {
		return nil
	}
	state.Certificate = &c
	return fault.Wrap(op, s.Save(state))
}

// Replace makes a certificate the only one of a directory, whose peer goes over to another group. The file of the present
// network comes last, so that the peer goes on from a crash with its former group. Errors: as OpenStore, which it opens.
func Replace(fsys vfs.FS, place DataDir, self peer.ID, network Network, c Certificate) (err error) {
	const op = "bootstrap.Replace"
	s, err := OpenStore(fsys, place, self, network)
	if err != nil {
		return fault.Wrap(op, err)
	}
	defer func() { err = fault.Wrap(op, errors.Join(err, s.Close())) }()
	names, err := fsys.List(place.Dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		path := fsys.PathJoin(place.Dir, name)
		if path == s.path || !strings.HasPrefix(name, filePrefix) || !strings.HasSuffix(name, stateSuffix) {
			continue
		}
		own, state, err := readState(fsys, path)
		if err != nil || state.Certificate == nil {
			continue // OpenStore refuses one of a later version
		}
		if err := (&Store{fs: fsys, path: path, own: own}).write(State{Certificate: &c}); err != nil {
			return err
		}
	}
	return s.Save(State{Certificate: &c})
}

// otherGroup refuses a directory with the certificate of another group.
func otherGroup(fsys vfs.FS, dir string, group GroupID) error {
	names, err := fsys.List(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if !strings.HasPrefix(name, filePrefix) || !strings.HasSuffix(name, stateSuffix) {
			continue
		}
		_, state, err := readState(fsys, fsys.PathJoin(dir, name))
		if fault.KindOf(err) == fault.Unsupported && err != nil {
			return err // it may have a certificate
		}
		if err == nil && state.Certificate != nil && state.Certificate.GroupID() != group {
			return fault.New("", fault.Conflict, "%s belongs to group %s, not %s: use another directory", dir, state.Certificate.GroupID(), group)
		}
	}
	return nil
}
