// Package machine is the replicated state machine of the coordination group: a keyspace with
// revisions, leases, locks with fencing tokens, the directory, and the history for watches.
//
// # Pure
//
// A Machine only computes. Apply takes the next entry of the group's log and returns its result
// and effects. The same entries give the same states and results on every member. A Machine reads
// no clock, draws no random number, starts no goroutine and has no configuration: its limits are
// state, changed by a command. Time, network, log and disk belong to the packages lessor, transport, member,
// replica and raftlog.
//
// # History
//
// A ring of recent events serves watches and reads at an earlier revision, which undo the events
// since. A watch is only a revision to continue from. Events that fell out of the ring are
// compacted, and readers learn of the gap (coord.Compacted).
//
// # Time
//
// The state holds the time to live of a lease, not its deadline. Deadlines live on the leader's
// clock: the leader proposes Expire when a deadline passes. Apply drops an Expire that the leader
// of another term measured, and a reference to an earlier grant of the same id.
//
// # The directory
//
// A put of an unchanged entry makes no event. When several peers register one instance, the latest
// registration wins in any order of arrival: an entry carries the revision of its registration
// (directory.Entry.Since), and the machine remembers removals for a while (MaxRemovalRecords). The entry of an
// authenticated caller (directory.Entry.Principal) moves only for that caller while its lease lasts. Batches
// belong to generations, so that late batches of an earlier process change nothing. A digest of
// each owner's entries (directory.Publication) lets the peer compare with every keepalive.
package machine
