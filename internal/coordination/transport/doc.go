// Package transport connects the members of the coordination group, and their clients, over libp2p. It has
// three parts, each with its own protocol:
//
//   - Transport exchanges Raft messages between members: one stream for small urgent messages (votes,
//     heartbeats, acknowledgements, reads), one for appends, and one for each snapshot.
//   - Exchange carries small questions and answers between any two peers: messages of the group
//     bootstrap, and descriptions of the group.
//   - Listen, Dial and Credentials run gRPC over libp2p, with the authenticated peer id as the caller's
//     identity.
//
// # Trust
//
// Raft trusts its members, so Transport serves streams of members only: the configuration must map the
// dialler's claimed raft id to the authenticated peer id of the connection, and the intended raft id must be
// this member's. A peer with a lost disk has a new raft id, and never receives messages for the old one.
// Recheck resets the streams of removed members. Relayed connections are rejected.
//
// # Loss
//
// No function waits for the network on behalf of its caller. Queues are bounded by count and bytes, and a full
// queue drops the newest message: Raft repeats it on demand. Transport reports losses to Raft as
// Unreachable, so that Raft probes instead of streaming on.
//
// A stream without an answer for a while is reset; if the next one on the same connection gets no
// answer either, the connection is closed, so that after a partition no stream waits for the retransmission
// timers of a dead connection. Redialling ignores libp2p's own dial backoff, which grows to minutes: a
// member with queued messages is dialled at least once in longestRest.
package transport
