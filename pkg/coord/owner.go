package coord

import (
	"crypto/sha256"
	"encoding/binary"
	"strconv"
	"strings"
	"unicode/utf8"
)

// An owner is the principal behind a command. It has one of three forms:
//
//   - the id of a peer: the peer itself, with its directory entries. No API speaks for a peer.
//   - "@" and the name of an authenticated caller: the same owner at every peer.
//   - "~" and the id of a peer: a caller without a name at this peer. All of them have the same rights: the
//     random id of a lease is the credential. The peer's id only divides the quotas.
const (
	namedMark     = "@"
	anonymousMark = "~"
)

// NamedOwner returns the owner of an authenticated caller.
func NamedOwner(name string) string { return namedMark + name }

// AnonymousOwner returns the owner of callers without a name at a peer.
func AnonymousOwner(peer string) string { return anonymousMark + peer }

// IsAnonymous reports whether an owner is a caller without a name.
func IsAnonymous(owner string) bool { return strings.HasPrefix(owner, anonymousMark) }

// IsNamed reports whether an owner is an authenticated caller.
func IsNamed(owner string) bool { return strings.HasPrefix(owner, namedMark) }

// IsPrincipal reports whether text is the owner of an authenticated caller with a name in UTF-8.
func IsPrincipal(text string) bool {
	return IsNamed(text) && len(text) > len(namedMark) && utf8.ValidString(text)
}

// MayUse reports whether a caller may use what an owner owns, given that the caller knows its id.
func MayUse(owner, caller string) bool {
	return owner == caller || IsAnonymous(owner) && IsAnonymous(caller)
}

// Principal returns an owner in the form that one peer tells another: empty for the peer itself, "~" for a
// caller without a name, "@NAME" for a named one.
func Principal(owner string) string {
	switch {
	case IsAnonymous(owner):
		return anonymousMark
	case IsNamed(owner):
		return owner
	}
	return ""
}

// OwnerOf returns the owner of a principal that a peer speaks for; false for no principal. So a peer speaks
// for itself and for applications, never for another peer.
func OwnerOf(principal, peer string) (owner string, ok bool) {
	switch {
	case principal == "":
		return peer, true
	case principal == anonymousMark:
		return AnonymousOwner(peer), true
	case IsNamed(principal) && len(principal) > len(namedMark):
		return principal, true
	}
	return "", false
}

// PrincipalMetadata is the gRPC metadata with the Principal of a call from one peer to another.
const PrincipalMetadata = "blackhole-principal-bin"

// Everybody as the owner of a question for leases selects those of all applications.
const Everybody = "*"

// Shows reports whether the answer to a question for leases has those of an owner.
func Shows(asker, owner string) bool {
	switch asker {
	case "":
		return true
	case Everybody:
		return IsNamed(owner) || IsAnonymous(owner)
	}
	return MayUse(owner, asker)
}

// HiddenLease stands in an answer for the id of a lease that the caller may not learn.
const HiddenLease LeaseID = -1

// Tag returns a public name for a lease. It does not tell the id.
func (id LeaseID) Tag() string {
	var b [24]byte
	sum := sha256.Sum256(binary.BigEndian.AppendUint64(append(b[:0], "blackhole lease "...), uint64(id)))
	return strconv.FormatUint(binary.BigEndian.Uint64(sum[:8]), 16)
}
