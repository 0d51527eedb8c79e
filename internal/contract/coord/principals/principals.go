// Package principals names the owners of commands, leases and entries.
package principals

import (
	"strings"
	"unicode/utf8"

	"github.com/blackhole/blackhole/internal/contract/coord"
)

// An owner is the principal behind a command. It has one of four forms:
//
//   - the id of a peer: the peer itself, with its directory entries. No API speaks for a peer.
//   - "@" and the name of an authenticated caller: the same owner at every peer.
//   - "~" and the id of a peer: a caller without a name at this peer. All of them have the same rights: the
//     random id of a lease is the credential. The peer's id only divides the quotas.
//   - "&", the name of a front, "~" and the id of a peer: a caller without a name at this peer's front for other clients.
//     The ids of its leases are public within the front, at every peer, and say nothing to others.
//
// "~" and an address or a user may follow the last two, and divide their quota further.
const (
	namedMark     = "@"
	anonymousMark = "~"
	frontMark     = "&"
)

// Named returns the owner of an authenticated caller.
func Named(name string) string { return namedMark + name }

// Anonymous returns the owner of callers without a name at a peer.
func Anonymous(peer string) string { return anonymousMark + peer }

// OfFront returns the owner of callers without a name at a peer's front, a name without "~"; without a front that of Anonymous.
func OfFront(front, peer string) string {
	if front == "" {
		return Anonymous(peer)
	}
	return frontMark + front + anonymousMark + peer
}

// From returns the owner of one caller without a name among those of an owner, by its address or user; empty: that
// owner.
func From(owner, caller string) string {
	if caller == "" {
		return owner
	}
	return owner + anonymousMark + caller
}

// Account returns the owner with whose callers a caller without a name has one quota. False for others.
func Account(owner string) (account string, ok bool) {
	if _, ofFront := front(owner); !ofFront && !IsAnonymous(owner) {
		return "", false
	}
	mark, rest, _ := strings.Cut(owner, anonymousMark)
	peer, _, _ := strings.Cut(rest, anonymousMark)
	return mark + anonymousMark + peer, true
}

// Quota returns the owner whose quota an owner takes from: itself, or its account.
func Quota(owner string) string {
	if account, ok := Account(owner); ok {
		return account
	}
	return owner
}

// front returns the front of a caller without a name.
func front(owner string) (name string, ok bool) {
	if !strings.HasPrefix(owner, frontMark) {
		return "", false
	}
	name, _, ok = strings.Cut(owner[len(frontMark):], anonymousMark)
	return name, ok
}

// IsNamelessAt reports whether an owner is a caller without a name at a peer, of a front or of none.
func IsNamelessAt(owner, peer string) bool {
	name, _ := front(owner)
	account, ok := Account(owner)
	return ok && account == OfFront(name, peer)
}

// IsApplication reports whether an owner is an application, not a peer.
func IsApplication(owner string) bool {
	_, ok := front(owner)
	return ok || IsNamed(owner) || IsAnonymous(owner)
}

// IsAnonymous reports whether an owner is a caller without a name, and of no front.
func IsAnonymous(owner string) bool { return strings.HasPrefix(owner, anonymousMark) }

// IsNamed reports whether an owner is an authenticated caller.
func IsNamed(owner string) bool { return strings.HasPrefix(owner, namedMark) }

// Valid reports whether text is the owner of an authenticated caller with a name in UTF-8.
func Valid(text string) bool {
	return IsNamed(text) && len(text) > len(namedMark) && utf8.ValidString(text)
}

// MayUse reports whether a caller may use what an owner owns, given that the caller knows its id.
func MayUse(owner, caller string) bool {
	if owner == caller || IsAnonymous(owner) && IsAnonymous(caller) {
		return true
	}
	a, isFront := front(owner)
	b, same := front(caller)
	return isFront && same && a == b
}

// Learns reports whether a caller may learn the ids of an owner's leases: a named caller those of its own, and a caller of
// a front without a name those of the front. The id of another lease without a name is its credential.
func Learns(owner, caller string) bool { return !IsAnonymous(owner) && MayUse(owner, caller) }

// Shows reports whether the answer to a question for leases has those of an owner. Callers without a name see all without a
// name, and learn the ids of their front alone.
func Shows(asker, owner string) bool {
	switch asker {
	case "":
		return true
	case coord.Everybody:
		return IsApplication(owner)
	}
	_, ofFront := front(owner)
	return MayUse(owner, asker) || ofFront && IsAnonymous(asker)
}
