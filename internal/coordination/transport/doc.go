// Package transport carries what the members of the coordination group, and those who ask them,
// say to each other over libp2p. It has three parts, each with a protocol of its own:
//
//   - Transport moves Raft's messages between members: a stream for what is small and urgent
//     (votes, heartbeats, acknowledgements, reads), one for appends, and one for each snapshot.
//   - Exchange carries small questions and answers between any two peers: those of
//     founding, and who leads.
//   - Listen, Dial and Credentials let gRPC run over libp2p, with the authenticated peer
//     id as the caller's identity.
//
// # Trust
//
// Raft believes its members, so a stream of Transport is served only for a member: the peer
// id that the connection has authenticated must be the one that the configuration gives for
// the raft id that the dialler claims, and the raft id that it means to reach must be this
// member's. A peer that lost its disk has a new raft id, and what was meant for the old
// one never reaches it. Streams of a member that was removed are reset by Recheck. Relayed connections
// are refused.
//
// # Loss
//
// Nothing here waits for the network on behalf of its caller. Queues are bounded by count
// and by bytes, and a full one drops the newest: Raft repeats what it needs. What a member missed is reported
// to Raft as Unreachable, so that it probes instead of streaming on.
//
// A stream that is not answered for Limits.Silence is reset; if a new one on the same connection is not
// answered either, the connection is closed, so that after a partition nobody waits for the
// retransmission timers of a connection that has been dead for long. Redialling disregards
// libp2p's own dial backoff, which would grow to minutes: a member is dialled at least
// once in Limits.Backoff while there is something to say to it.
package transport
