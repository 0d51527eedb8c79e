package coord

import (
	"crypto/sha256"
	"encoding/binary"
	"strconv"
)

// PrincipalMetadata is the gRPC metadata with the Principal of a call from one peer to another.
const PrincipalMetadata = "blackhole-principal-bin"

// Everybody as the owner of a question for leases selects those of all applications.
const Everybody = "*"

// HiddenLease stands in a noun of a client for the id of a lease that it may not learn. Answers have 0, and the lease's
// tag.
const HiddenLease LeaseID = -1

// LeaseOf returns the id of a lease, or of that of a claim, in an answer.
func LeaseOf(id int64) LeaseID {
	if id == 0 {
		return HiddenLease
	}
	return LeaseID(id)
}

// Tag returns a public name for a lease. It does not tell the id.
func (id LeaseID) Tag() string {
	var b [24]byte
	sum := sha256.Sum256(binary.BigEndian.AppendUint64(append(b[:0], "blackhole lease "...), uint64(id)))
	return strconv.FormatUint(binary.BigEndian.Uint64(sum[:8]), 16)
}
