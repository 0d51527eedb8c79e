// Package invite reads and writes invitations: the line with which a machine joins a network.
package invite

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/multiformats/go-multiaddr"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/platform/identity"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/network"
	pb "github.com/blackhole/blackhole/proto/blackhole/network/v1"
)

const (
	// MaxAddresses bounds the addresses of an invitation.
	MaxAddresses = 8
	// MaxSize is the length of the longest invitation in bytes.
	MaxSize = 4096

	version      = 1
	checksumSize = 4
)

// Invitation is all that a machine needs to join a network. Its text is a secret if it has a key.
type Invitation struct {
	Name      network.Name
	Profile   string       // of the inviting peer: dev, lan or public
	Key       identity.Key // nil: the network has no key
	Addresses []string     // multiaddrs of peers of the network, each with /p2p/ID; 1 to MaxAddresses
	Closed    bool         // every connection needs the key; Key is set
}

// Text returns the invitation as one line of letters, digits, hyphens and underscores: bh1_, and in base64url the
// message and the first bytes of its SHA-256. Error: Invalid with the field.
func (i Invitation) Text() (string, error) {
	if err := i.validate(); err != nil {
		return "", err
	}
	m := &pb.Invitation{Name: string(i.Name), Profile: i.Profile, Closed: i.Closed}
	if i.Key != nil {
		b := i.Key()
		m.Key = b[:]
	}
	for n, s := range i.Addresses {
		a, err := multiaddr.NewMultiaddr(s)
		if err != nil {
			return "", fault.Invalidf("addresses["+strconv.Itoa(n)+"]", s, "malformed multiaddr: %w", err)
		}
		m.Addresses = append(m.Addresses, a.Bytes())
	}
	b, err := (proto.MarshalOptions{Deterministic: true}).Marshal(m)
	if err != nil {
		return "", fault.As("invite.Text", fault.Internal, err)
	}
	text := prefix(version) + base64.RawURLEncoding.EncodeToString(append(b, checksum(b)...))
	if len(text) > MaxSize {
		return "", fault.Invalidf("addresses", len(i.Addresses), "are too long for an invitation of %d bytes", MaxSize)
	}
	return text, nil
}

func prefix(number int) string { return "bh" + strconv.Itoa(number) + "_" }

func checksum(b []byte) []byte {
	sum := sha256.Sum256(b)
	return sum[:checksumSize]
}

func (i Invitation) validate() error {
	if err := i.Name.Validate(); err != nil {
		return fault.In("name", err)
	}
	if network.Default(i.Profile) == "" {
		return fault.Invalidf("profile", i.Profile, "must be dev, lan or public")
	}
	if i.Closed && i.Key == nil {
		return fault.Invalidf("key", nil, "is missing: every connection of a closed network needs it")
	}
	if len(i.Addresses) == 0 || len(i.Addresses) > MaxAddresses {
		return fault.Invalidf("addresses", len(i.Addresses), "must be 1 to %d", MaxAddresses)
	}
	for n, s := range i.Addresses {
		a, err := multiaddr.NewMultiaddr(s)
		if err == nil {
			_, err = a.ValueForProtocol(multiaddr.P_P2P)
		}
		if err != nil {
			return fault.Invalidf("addresses["+strconv.Itoa(n)+"]", s, "must be a multiaddr with /p2p/ID: %w", err)
		}
	}
	return nil
}

// Parse reads the text of an invitation. Spaces around it and line breaks within do not count. Error:
// Invalid, without the text; Unsupported for another version.
func Parse(s string) (Invitation, error) {
	if len(s) > 2*MaxSize {
		return Invitation{}, fault.Invalidf("", nil, "is no invitation: it is longer than %d bytes", MaxSize)
	}
	s = strings.Join(strings.Fields(s), "")
	found := regexp.MustCompile(`^bh([0-9]{1,4})_`).FindStringSubmatch(s)
	switch {
	case found == nil:
		return Invitation{}, fault.Invalidf("", nil, "is no invitation: one begins with %s", prefix(version))
	case found[1] != strconv.Itoa(version):
		return Invitation{}, fault.New("", fault.Unsupported, "is an invitation of version %s, and this program reads version %d", found[1], version)
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(s[len(found[0]):])
	cut := len(raw) - checksumSize
	if err != nil || cut < 0 || !slices.Equal(checksum(raw[:cut]), raw[cut:]) {
		return Invitation{}, fault.Invalidf("", nil, "is damaged: copy the whole line again")
	}
	return decode(raw[:cut])
}

// decode reads the message of an invitation.
func decode(b []byte) (Invitation, error) {
	m := new(pb.Invitation)
	if err := proto.Unmarshal(b, m); err != nil {
		return Invitation{}, fault.Invalidf("", nil, "is no invitation: %w", err)
	}
	i := Invitation{Name: network.Name(m.GetName()), Profile: m.GetProfile(), Closed: m.GetClosed()}
	switch len(m.GetKey()) {
	case 0:
	case identity.KeySize:
		var err error
		if i.Key, err = identity.NewKey(bytes.NewReader(m.GetKey())); err != nil {
			return Invitation{}, err
		}
	default:
		return Invitation{}, fault.Invalidf("key", nil, "has %d bytes, not %d", len(m.GetKey()), identity.KeySize)
	}
	for n, raw := range m.GetAddresses() {
		a, err := multiaddr.NewMultiaddrBytes(raw)
		if err != nil {
			return Invitation{}, fault.Invalidf("addresses["+strconv.Itoa(n)+"]", nil, "malformed multiaddr: %w", err)
		}
		i.Addresses = append(i.Addresses, a.String())
	}
	if err := i.validate(); err != nil {
		return Invitation{}, err
	}
	return i, nil
}
