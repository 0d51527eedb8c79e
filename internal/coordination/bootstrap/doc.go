// Package bootstrap is the group bootstrap: the eligible peers of a network choose, once and for all, the first
// members of the coordination group.
//
// # Outcome
//
// A Membership lists the group's initial voters with their raft ids. Its hash is the group's id. A
// Certificate proves its choice. No member starts without a certificate, and no holder of a certificate
// votes for another group.
//
// # Algorithm
//
// Single-decree Paxos (L. Lamport, "Paxos Made Simple") among the at most E eligible peers of a Network. The
// quorum is a majority of E, whatever number of peers is visible, as in the bootstrap of Elasticsearch's
// Zen2: any two quorums share a peer, which carries the accepted membership of one to the other. Ballots are
// (round, peer), so two proposers never share one. Acceptors sign: the signatures of a majority at one
// ballot form the certificate, which every peer of the Network can verify.
//
// E never falls after a timeout: a network without a majority waits. The lowest visible peer id proposes first,
// after a settling time; the others follow at random times if it fails.
//
// # Requirements
//
// Every promise and every acceptance is on disk before its message leaves (Store). A peer that may have voted
// and lost the file never votes again, but joins the group after its bootstrap by others. A restored backup
// of the file is such a loss that the peer cannot detect: exclude the file from backups.
//
// In the mode Unlisted, more than E peers may vote. A peer that sees more steps back unless it is among the E
// lowest, but two groups can form across a partition. Their certificates meet sooner or later and prove the
// conflict by themselves (Conflict). The mode Listed rules this out.
//
// # Parts
//
// machine is pure: time and events in, actions out, in an order that its owner keeps. Founder is its owner:
// one goroutine, the disk, the transport.
package bootstrap
