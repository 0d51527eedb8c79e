// Package network names networks of peers. Every identifier on the wire carries the name of its network: protocols,
// topics, namespaces and the domains of signatures. So two networks never merge, even with a shared address.
//
// The forms of the identifiers stand here and nowhere else.
package network

import (
	"strings"

	"github.com/blackhole/blackhole/pkg/fault"
)

// MaxName is the length of the longest name.
const MaxName = 32

// Name is the name of a network: 1 to 32 lower-case letters, digits and inner hyphens. The zero value is no name.
type Name string

// Default returns the name of the networks of a profile without a setting: dev, lan, or main for public. It is
// the zero value for an unknown profile.
func Default(profile string) Name {
	switch profile {
	case "dev", "lan":
		return Name(profile)
	case "public":
		return "main"
	}
	return ""
}

// Validate returns an Invalid error that names the rule which n breaks.
func (n Name) Validate() error {
	switch {
	case n == "":
		return fault.Invalidf("", nil, "must not be empty")
	case len(n) > MaxName:
		return fault.Invalidf("", nil, "must have at most %d characters, got %d", MaxName, len(n))
	case strings.Trim(string(n), "-") != string(n):
		return fault.Invalidf("", string(n), "must begin and end with a letter or a digit")
	}
	for _, c := range string(n) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return fault.Invalidf("", string(n), "must consist of lower-case letters, digits and hyphens, not %q", c)
		}
	}
	return nil
}

// String returns the name.
func (n Name) String() string { return string(n) }

// Prefix begins the protocols of the network: /blackhole/NAME.
func (n Name) Prefix() string { return "/blackhole/" + string(n) }

// Version is the protocol version in libp2p's identify, by which a peer names its network: /blackhole/NAME/1.
func (n Name) Version() string { return n.Prefix() + "/1" }

// Identified returns the network that a peer names by its protocol version; false for a peer that names none.
func Identified(version string) (Name, bool) {
	rest, ok := strings.CutPrefix(version, "/blackhole/")
	name, _, slash := strings.Cut(rest, "/")
	n := Name(name)
	return n, ok && slash && n.Validate() == nil
}

// Protocol returns the name of a protocol between peers: /blackhole/NAME/PART/VERSION.
func (n Name) Protocol(part, version string) string { return n.Prefix() + "/" + part + "/" + version }

// Topics returns the beginning of the GossipSub topics of one kind: /blackhole/NAME/KIND/VERSION/.
func (n Name) Topics(kind, version string) string { return n.Protocol(kind, version) + "/" }

// Namespace returns the first segment of the DHT keys of one kind of value: blackhole.NAME.KIND.
func (n Name) Namespace(kind string) string { return "blackhole." + string(n) + "." + kind }

// Domain returns the domain of the signatures, hashes and proofs of one kind: blackhole:NAME:KIND. Signed bytes begin
// with their domain, so a signature of one network is void in others.
func (n Name) Domain(kind string) string { return "blackhole:" + string(n) + ":" + kind }

// Multicast returns the DNS-SD service by which peers of the network find each other: _blackhole-NAME._udp.
func (n Name) Multicast() string { return "_blackhole-" + string(n) + "._udp" }
