// Package replica is one member of the coordination group as a deterministic object: Raft, the log
// on disk, the replicated state machine and the deadlines of leases. Its owner drives it.
//
// A Replica has no goroutine, no clock and no network. Its owner (internal/coordination/member, or a
// simulation of a whole group) puts in what happened and takes out what is to be done:
//
//	Tick, Step, Restore, Propose, Read, KeepAlive, Change, Transfer      in, in any order
//	for r.Ready() {
//		send(r.Prepare(now))        // what need not wait for the disk
//		answer(r.Apply(now))        // changes the state machine: readers must wait
//		late, err := r.Persist()    // the disk; an error ends the process
//		send(late)
//	}
//	Release                             HoldFor after Holds
//
// Time is an argument: a duration since any fixed origin, which never goes back. Raft draws the jitter
// of elections from crypto/rand.
//
// # Order
//
// The leader's appends and heartbeats leave before its own disk write, as in section 10.2.1 of Ongaro's
// thesis: the followers write at the same time. Votes and acknowledgements leave after it. Committed entries
// are applied and answered before later entries are written: a majority stores them, and a restart
// rebuilds the state machine from snapshot and log. A commit index travels with the next entries, see Holds.
//
// # Answers
//
// Each request carries an id of the owner and gets one answer, in an Output. If the leader falls, its
// proposals are answered with NotLeader and Maybe, because they may still be applied. The client id of a
// command makes its repetition harmless.
//
// # Reads and keepalives
//
// A read is answered once the state contains all answers given anywhere before the read. Waiting reads
// share a round of heartbeats that begins after their arrival (Raft's ReadIndex). A lost round begins again
// under a new number, so that no stale answer confirms it. Every member can read. A keepalive joins the
// same rounds, at the leader only, and renews its leases after the round: a former leader without a
// majority cannot renew. No round begins before an entry of the leader's own term is applied, not even in a
// group of one, whose commit index on disk may be older than its answers.
package replica
