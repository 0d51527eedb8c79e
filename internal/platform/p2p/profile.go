package p2p

import (
	"time"

	dht "github.com/libp2p/go-libp2p-kad-dht"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Profile names the kind of network around a peer. It selects the network settings without a configuration key.
type Profile string

const (
	// Dev: peers on one machine. TCP on loopback, no filters, no announcements.
	Dev Profile = "dev"
	// LAN: peers of one private network or cluster. TCP, and QUIC where the addresses to listen on name it; found by mDNS or
	// bootstrap.
	LAN Profile = "lan"
	// Public: the open Internet. NAT traversal, address filters, peer diversity.
	Public Profile = "public"
)

// ParseProfile returns the profile of that name. Error: Invalid, field "profile".
func ParseProfile(s string) (Profile, error) {
	p := Profile(s)
	if _, ok := p.settings(); !ok {
		return "", fault.Invalidf("profile", s, "must be dev, lan or public")
	}
	return p, nil
}

// profileSettings are the settings of one profile.
type profileSettings struct {
	listen []string // default addresses
	quic   bool
	mdns   bool

	// open: peers are strangers on the Internet. It enables NAT traversal, the relay client, address filters,
	// the diversity filter and small connection limits for each address. Elsewhere these would break the network,
	// because all peers may share one address or one /16.
	open bool

	leaf bool // this peer dials out only

	mode    dht.ModeOpt
	refresh time.Duration // between two refreshes of the routing table
	query   time.Duration // timeout of one refresh lookup or liveness check

	low, high  int           // water marks of the connection manager
	perAddress int           // most peers behind one address
	grace      time.Duration // age below which a connection is not trimmed
}

// settings returns the profile's settings. The host's hard connection limit is hardLimit times high.
func (p Profile) settings() (profileSettings, bool) {
	tcp := []string{"/ip4/0.0.0.0/tcp/4801", "/ip6/::/tcp/4801"}
	switch p {
	case Dev:
		return profileSettings{
			listen: []string{"/ip4/127.0.0.1/tcp/4801"},
			mode:   dht.ModeServer, refresh: 5 * time.Minute, query: 5 * time.Second,
			low: 96, high: 160, perAddress: sharedPerAddress, grace: 5 * time.Second,
		}, true
	case LAN:
		return profileSettings{
			listen: tcp, quic: true, mdns: true, // no NAT needs QUIC, which costs more, and hides the end of a process
			mode: dht.ModeServer, refresh: 5 * time.Minute, query: 5 * time.Second,
			low: 128, high: 192, perAddress: sharedPerAddress, grace: 5 * time.Second,
		}, true
	case Public:
		return profileSettings{
			listen: append(tcp, "/ip4/0.0.0.0/udp/4801/quic-v1", "/ip6/::/udp/4801/quic-v1"), quic: true, mdns: true, open: true,
			mode: dht.ModeAuto, refresh: 10 * time.Minute, query: 10 * time.Second,
			low: 192, high: 288, perAddress: publicPerAddress, grace: 5 * time.Second,
		}, true
	default:
		return profileSettings{}, false
	}
}

// mode is the profile's mode, except for a peer without bootstrap peers, which starts a new network. In
// automatic mode that peer would wait for confirmations of its reachability, and the network would never get
// its first server.
func mode(c *Config, settings profileSettings) dht.ModeOpt {
	if settings.mode == dht.ModeAuto && len(c.Bootstrap) == 0 {
		return dht.ModeAutoServer
	}
	return settings.mode
}
