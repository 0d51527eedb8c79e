package coordination

import (
	"cmp"
	"log/slog"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/calls"
	"github.com/blackhole/blackhole/internal/coordination/announce"
	"github.com/blackhole/blackhole/internal/coordination/bootstrap"
	"github.com/blackhole/blackhole/internal/coordination/formation"
	"github.com/blackhole/blackhole/internal/coordination/replica"
	"github.com/blackhole/blackhole/internal/coordination/routing"
	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/internal/platform/identity"
	"github.com/blackhole/blackhole/internal/platform/metrics"
)

// Config configures a Seat.
type Config struct {
	Host    host.Host         // finds peers by their ids
	Values  announce.Values   // DHT for announcements; nil: none
	Key     crypto.PrivKey    // of this peer
	Name    identity.PeerName // that it shows to others; empty: none
	Etcd    string            // URL where it answers clients of etcd, for others; empty: nowhere
	Network bootstrap.Network
	Voters  int              // at the bootstrap and later: 1, 3 or 5
	Replace time.Duration    // silence after which a voter is replaced
	Access  formation.Access // of other peers to this member
	Policy  formation.Policy

	// Limits returns the wanted limits of the group from its present ones. This peer proposes them as leader.
	// nil keeps the limits.
	Limits func(coord.Limits) coord.Limits

	// Dir holds the durable state; Marks is the directory of the identity key. See bootstrap.DataDir.
	Dir, Marks string
	FS         vfs.FS // nil: the operating system's

	Spans func(to peer.ID) calls.BeginSpan         // begins the spans of calls to another peer; nil, also of a peer: none
	dial  func(to peer.ID) (routing.Remote, error) // for tests; nil: over the host
	// Fatal receives, once, an error after which this peer must end. The failure of the member alone does not: see
	// condition member_stopped.
	Fatal func(error)

	// Exhausted hears of each command of an owner that found no room in a pool of the group, and must not block; see fault.PoolOf. nil: nobody.
	Exhausted func(owner string, err error)

	// LocksLost hears the locks whose holder's lease expired, as this member learns it, and must not block. It also hears the
	// commands of the log that a member repeats at its start. nil: nobody.
	LocksLost func(locks []string)

	Conditions *condition.Set // receives no_quorum, no_reserve, feature_level, member_stopped, states_differ and space_low; nil: nobody

	Now     func() time.Time      // nil means time.Now
	Replica replica.Config        // Storage and Applied are set by Open
	Metrics *metrics.Coordination // nil counts nothing
	Logger  *slog.Logger          // nil logs nothing
}

func (c *Config) setDefaults() {
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	c.FS = cmp.Or(c.FS, vfs.Default)
	if c.Now == nil {
		c.Now = time.Now
	}
}

// Examine reads the directory of a stopped peer as Open does, and changes nothing. Each error tells a problem, or is one of Open.
func Examine(dir, marks string, self peer.ID, network bootstrap.Network) []error {
	return formation.Dir{FS: vfs.Default, Path: dir, Marks: marks}.Examine(self, network)
}

// room is what a member needs to go on after its disk was full, in bytes. The next snapshot is written beside the last one, and is about as
// large.
func (c *Config) room() uint64 { return roomNeeded + c.dir().SnapshotBytes() }

func (c *Config) dir() formation.Dir { return formation.Dir{FS: c.FS, Path: c.Dir, Marks: c.Marks} }
