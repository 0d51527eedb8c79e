package identity

import (
	"strings"

	"github.com/blackhole/blackhole/pkg/fault"
)

// PeerName is the name that a peer gives itself, for people. It is a claim and never an identity: several peers may
// have the same name, and only ids decide. Empty means no name.
type PeerName string

// MaxPeerName bounds a PeerName, as DNS bounds a label.
const MaxPeerName = 63

// Validate reports a name that cannot be shown beside an id. Errors: Invalid.
func (n PeerName) Validate() error {
	if n == "" || len(n) > MaxPeerName || strings.ContainsFunc(string(n), func(r rune) bool { return !nameable(r) }) || !lettered(n[0]) {
		return fault.New("", fault.Invalid, "must be 1 to %d letters, digits, hyphens, dots or underscores, with a letter or digit first", MaxPeerName)
	}
	return nil
}

// PeerNameOf makes a name of a host name: characters that a name cannot have become hyphens. Empty without a letter or
// digit.
func PeerNameOf(host string) PeerName {
	clean := strings.Map(func(r rune) rune {
		if nameable(r) {
			return r
		}
		return '-'
	}, host)
	clean = strings.TrimLeft(clean, "-._")
	return PeerName(clean[:min(len(clean), MaxPeerName)])
}

func lettered(b byte) bool {
	return 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z' || '0' <= b && b <= '9'
}

func nameable(r rune) bool { return r < 0x80 && (lettered(byte(r)) || strings.ContainsRune("-._", r)) }
