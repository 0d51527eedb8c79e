// Package principals names the owners of commands, leases and entries.
package principals

import (
	"strings"
	"unicode/utf8"

	"github.com/blackhole/blackhole/pkg/coord"
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

// Named returns the owner of an authenticated caller.
func Named(name string) string { return namedMark + name }

// Anonymous returns the owner of callers without a name at a peer.
func Anonymous(peer string) string { return anonymousMark + peer }

// IsAnonymous reports whether an owner is a caller without a name.
func IsAnonymous(owner string) bool { return strings.HasPrefix(owner, anonymousMark) }

// IsNamed reports whether an owner is an authenticated caller.
func IsNamed(owner string) bool { return strings.HasPrefix(owner, namedMark) }

// IsApplication reports whether an owner is an application, not a peer.
func IsApplication(owner string) bool { return IsNamed(owner) || IsAnonymous(owner) }

// Valid reports whether text is the owner of an authenticated caller with a name in UTF-8.
func Valid(text string) bool {
	return IsNamed(text) && len(text) > len(namedMark) && utf8.ValidString(text)
}

// MayUse reports whether a caller may use what an owner owns, given that the caller knows its id.
func MayUse(owner, caller string) bool {
	return owner == caller || IsAnonymous(owner) && IsAnonymous(caller)
}

// Shows reports whether the answer to a question for leases has those of an owner.
func Shows(asker, owner string) bool {
	switch asker {
	case "":
		return true
	case coord.Everybody:
		return IsApplication(owner)
	}
	return MayUse(owner, asker)
}
