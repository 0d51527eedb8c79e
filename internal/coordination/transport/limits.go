package transport

import (
	"cmp"
	"time"
)

// Bounds of the protocols, known to both sides. A peer that breaks one loses its stream.
const (
	// MaxFrame bounds a Raft message on the wire, in bytes.
	MaxFrame = 8 << 20
	// MaxMessage bounds a question of Exchange, and its answer, in bytes.
	MaxMessage = 64 << 10

	maxControl = 64 << 10 // only appends are large
	maxHello   = 1 << 10  // of either side of a handshake
	maxEntries = 1 << 16  // of one append: an empty one takes two bytes on the wire and a hundred in memory

	chunkSize = 128 << 10 // of a snapshot, at most
	batchSize = 256 << 10 // of messages written at once, approximately
	keptSize  = 1 << 20   // larger buffers are released
)

const (
	// Queued messages and bytes for one member on one stream; new ones are dropped.
	controlQueue, appendQueue, controlBytes = 512, 1024, 1 << 20

	dialWithin  = 3 * time.Second // to connect and open a stream
	greetWithin = 3 * time.Second // for the handshake
	writeWithin = 5 * time.Second // for sending a batch, or receiving a chunk of a snapshot
	pingEvery   = time.Second     // between probes of a stream
	silence     = 5 * time.Second // without an answer to a probe until a stream is abandoned
	longestRest = time.Second     // between attempts; the first pause lasts 1/20
)

// Limits are the configurable bounds. A zero field takes its default.
type Limits struct {
	AppendBytes  int           // queued for one member; 32 MiB, above Raft's bound of data in flight
	MaxSnapshot  int64         // bytes of a state; 4 GiB
	SnapshotTime time.Duration // to send or receive a snapshot; 10 min

	Handshakes        int // concurrent handshakes of all peers; 64
	HandshakesPerPeer int // 8
}

func (l Limits) withDefaults() Limits {
	l.AppendBytes = cmp.Or(l.AppendBytes, 32<<20)
	l.MaxSnapshot = cmp.Or(l.MaxSnapshot, 4<<30)
	l.SnapshotTime = cmp.Or(l.SnapshotTime, 10*time.Minute)
	l.Handshakes = cmp.Or(l.Handshakes, 64)
	l.HandshakesPerPeer = cmp.Or(l.HandshakesPerPeer, 8)
	return l
}
