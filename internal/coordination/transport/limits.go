package transport

import "time"

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

// Limits are the configurable bounds. A zero field takes its default.
type Limits struct {
	// Queued messages and bytes for one member on one stream; new ones are dropped.
	ControlQueue int // 512
	AppendQueue  int // 1024
	ControlBytes int // 1 MiB
	AppendBytes  int // 32 MiB, above Raft's bound of data in flight

	MaxSnapshot  int64         // bytes of a state; 4 GiB
	SnapshotTime time.Duration // to send or receive a snapshot; 10 min

	Dial    time.Duration // to connect and open a stream; 3 s
	Hello   time.Duration // for the handshake; 3 s
	Write   time.Duration // for sending a batch, or receiving a chunk of a snapshot; 5 s
	Ping    time.Duration // between probes of a stream; 1 s
	Silence time.Duration // without an answer to a probe until a stream is abandoned; 5 s
	Backoff time.Duration // longest pause between attempts; the first lasts 1/20; 1 s

	Handshakes        int // concurrent handshakes of all peers; 64
	HandshakesPerPeer int // 8
}

func (l Limits) withDefaults() Limits {
	orDefault(&l.ControlQueue, 512)
	orDefault(&l.AppendQueue, 1024)
	orDefault(&l.ControlBytes, 1<<20)
	orDefault(&l.AppendBytes, 32<<20)
	orDefault(&l.MaxSnapshot, 4<<30)
	orDefault(&l.SnapshotTime, 10*time.Minute)
	orDefault(&l.Dial, 3*time.Second)
	orDefault(&l.Hello, 3*time.Second)
	orDefault(&l.Write, 5*time.Second)
	orDefault(&l.Ping, time.Second)
	orDefault(&l.Silence, 5*time.Second)
	orDefault(&l.Backoff, time.Second)
	orDefault(&l.Handshakes, 64)
	orDefault(&l.HandshakesPerPeer, 8)
	return l
}

func orDefault[T int | int64 | time.Duration](v *T, d T) {
	if *v <= 0 {
		*v = d
	}
}
