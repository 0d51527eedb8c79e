package transport

import "time"

// Bounds of the protocols: both sides know them, and a peer that breaks one loses its stream.
const (
	// MaxFrame bounds one of Raft's messages on the wire, in bytes.
	MaxFrame = 8 << 20
	// MaxMessage bounds a question of Exchange, and its answer, in bytes.
	MaxMessage = 64 << 10

	maxControl = 64 << 10  // a message that is no append has nothing large in it
	maxHello   = 1 << 10   // a stranger's first words
	maxWelcome = 128 << 10 // the answer, which may carry group information
	maxEntries = 1 << 16   // of one append: an empty one takes two bytes on the wire, and a hundred in memory

	chunkSize = 128 << 10 // of a snapshot, at most
	batchSize = 256 << 10 // of messages written at once, about
	keptSize  = 1 << 20   // buffers above it are not kept
)

// Limits are the bounds that an operator may move. A zero field is its default.
type Limits struct {
	// Messages and bytes waiting for one member on one lane; the newest are dropped.
	ControlQueue int // 512
	AppendQueue  int // 1024
	ControlBytes int // 1 MiB
	AppendBytes  int // 32 MiB, above Raft's bound on what is in flight

	MaxSnapshot  int64         // bytes of a state; 4 GiB, or 256 MiB when it is kept in memory
	SnapshotTime time.Duration // to send or receive one; 10 min

	Dial    time.Duration // connecting and opening a stream; 3 s
	Hello   time.Duration // the handshake on a stream; 3 s
	Write   time.Duration // a batch may take so long to leave, and a chunk of a snapshot to come; 5 s
	Ping    time.Duration // a stream is probed so often; 1 s
	Silence time.Duration // a stream without an answer to its probes is given up; 5 s
	Backoff time.Duration // most between two attempts, of which the first follows after 1/20; 1 s

	Handshakes        int // handshakes at once, with anybody; 64
	HandshakesPerPeer int // 8
}

func (l Limits) withDefaults(inMemory bool) Limits {
	orDefault(&l.ControlQueue, 512)
	orDefault(&l.AppendQueue, 1024)
	orDefault(&l.ControlBytes, 1<<20)
	orDefault(&l.AppendBytes, 32<<20)
	if inMemory {
		orDefault(&l.MaxSnapshot, 256<<20)
	}
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
