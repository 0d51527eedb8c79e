// Package bootstrap lets the eligible peers of a network agree, once and for
// all, which of them are the first members of the coordination group.
//
// # What is decided
//
// A Membership: the group's first voters with their raft ids. Its hash is the
// group's id. A Certificate proves that it was chosen; no member starts
// without one, and nobody founds who holds one.
//
// # How
//
// Single-decree Paxos (L. Lamport, "Paxos Made Simple") among the at most E
// peers that a Network declares eligible. The quorum is a majority of E,
// whoever is visible, as in the bootstrap of Elasticsearch's Zen2: any two
// quorums share a peer, and that peer carries what one of them accepted to the
// other. Ballots are (round, peer), so no two proposers share one. Accepting is
// signing: the signatures of a majority at one ballot are the certificate, which
// anybody can check who knows the Network.
//
// E is never lowered after a timeout: a network that cannot muster a majority
// waits. The lowest visible peer id proposes first, after a time of settling;
// the others follow at random, should nothing come of it.
//
// # What it takes
//
// Every promise and every acceptance is on disk before it is told (Store). A
// peer that may have voted and lost the file never votes again; it still takes
// its place in the group once others have founded it. A restored backup of the
// file is such a loss, unseen: do not back it up.
//
// In the mode Home nothing stops more than E peers from voting. A peer that sees
// more steps back unless it is among the E lowest, but across a partition two
// groups can form. Their certificates meet sooner or later and prove the
// conflict by themselves (Conflict). The mode Listed does not have the problem.
//
// # Parts
//
// machine is pure: time and events in, actions out, in an order that the owner
// keeps. Founder is its owner: one goroutine, the disk, the messenger.
package bootstrap
