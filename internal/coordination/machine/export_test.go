package machine

import (
	"bytes"
	"crypto/sha256"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Snapshot returns the state in one piece.
func (m *Machine) Snapshot() []byte {
	var b bytes.Buffer
	_, _ = m.Image().WriteTo(&b) // a Buffer never fails
	return b.Bytes()
}

// StateHash returns the hash of the present state; see Image.Hash.
func (m *Machine) StateHash() [sha256.Size]byte { return m.Image().Hash() }

// Restore returns the machine of a snapshot for this program, which must end where b ends.
//
// Errors: Invalid for a damaged or contradictory snapshot; Unsupported for another feature level.
func Restore(b []byte) (*Machine, error) {
	r := bytes.NewReader(b)
	m, err := Current().RestoreFrom(r)
	if err == nil && r.Len() > 0 {
		return nil, fault.Wrap("coord.Restore", fault.Refused(fault.Invalid, "snapshot", "%d bytes follow its end", r.Len()))
	}
	return m, err
}
