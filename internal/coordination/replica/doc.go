// Package replica is one member of the coordination group as a deterministic object: Raft, the log
// on disk, the replicated state machine and the deadlines of leases, driven by whoever owns it.
//
// A Replica has no goroutine, no clock and no network. Its owner (internal/group/member, or a
// simulation of a whole group) puts in what happened and takes out what is to be done:
//
//	Tick, Step, Restore, Propose, Read, KeepAlive, Change, Transfer      in, in any order
//	for r.Ready() {
//		send(r.Prepare(now))        // what need not wait for the disk
//		answer(r.Apply(now))        // changes the state machine: readers must wait
//		late, err := r.Persist()    // the disk; an error ends the process
//		send(late)
//	}
//
// Time is an argument: a duration since an origin that the owner chose once, which never goes
// back. Raft's own randomness, the jitter of elections, comes from crypto/rand.
//
// # The order of things
//
// The leader's appends and heartbeats leave before its own disk has the entries, as in section
// 10.2.1 of Ongaro's thesis: followers write at the same time. Votes and acknowledgements leave
// after. Committed entries are applied and answered before the entries that came later are
// written: a majority has them, and the state machine is rebuilt from snapshot and log at
// the next start.
//
// # Answers
//
// What is asked carries an id of the owner's choice and is answered once, in an Output. A
// proposal whose leader falls is answered at once with NotLeader, Maybe set: it may yet be
// applied. It is the coord.Client of a command that makes repeating it harmless.
//
// # Reads and keepalives
//
// A read is answered when the state has everything that was answered anywhere before it was asked. All that
// are waiting share a round of heartbeats, begun after they came (Raft's ReadIndex); a round that is
// lost is begun anew under a new number, so that nothing stale can confirm it. Any member
// can read. A keepalive takes part in the same rounds, on the leader only, and renews its
// leases when the round is over: so it never outlives a leadership that it does not know to be
// over. No round begins before an entry of the leader's own term is applied; not even in
// a group of one, whose commit index on disk may be behind what it had answered.
package replica
