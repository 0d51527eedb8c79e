// Package simulation runs whole coordination groups in virtual time, from a seed. It consists of tests
// only.
//
// The members are real: internal/coordination/replica on internal/coordination/raftlog, with raft, the state
// machine and the lessor. Their environment is simulated in one goroutine: clocks with
// different rates, a network that loses, delays, reorders, repeats and cuts in one direction,
// processes that pause and die, disks that stall, lose unsynced data, tear unfinished writes, lose
// what they had synced, or are wiped. Clients lease, lock, write, read and watch meanwhile, by the rules for clients:
// sequence numbers, and deadlines on their own clocks.
//
// # What is checked
//
// An oracle applies each entry once, at its first application by a member, and compares with its state:
//
//   - every member: equal entries at equal indexes, equal states (C1), and equal hashes of what the members compare by themselves (D6); one leader a term (C2);
//   - every start: a disk opens (D1), unless it lost writes that the member acknowledged (D2);
//   - every answer to a command: it is the oracle's, and was not given before (C3);
//   - the log, by internal/coordination/audit: L1 to L3, L5 to L7, E1, K1, R1, U1, I1 to I4, I6;
//   - on any member, the digest of an owner's entries: it is that of its entries; and what a
//     keepalive says of them: it has what was accepted before the keepalive was sent (I5);
//   - the end of every lease: not before the deadline of its client, nor of any leader's
//     promise, by the one true clock (L4);
//   - what clients believe: no two hold a lock that excludes the other (B1);
//   - watches on any member: W1 to W6; compaction only of what was compacted (W7);
//   - histories, by porcupine: registers, written plainly and under a lock, and locks
//     tried for are linearizable (H1, H2); so is a resource that checks tokens (H3);
//   - in the end, when all faults are healed: the group answers, all members are equal, and the leases of
//     clients that are gone have ended (Q1).
//
// TestBold plays clients that use every kind of comparison, come to their quotas, and try the leases and claims of others.
//
// # Merges
//
// TestMerges begins two or three groups apart, lets them meet under all these faults and under cuts between them, and plays
// operators who freeze one and raise the other. In some of the groups clients queue for locks. The members follow package formation.
// Besides the checks above:
//
//   - a token given by a group is above all tokens of the groups whose members came to it, and a member
//     comes only after the group has reached the revision of the former one (M1);
//   - members leave a dissolved group only, and it gives no token afterwards (M2);
//   - a dissolved group holds no lock and no lease (M3);
//   - in the end all peers are in one group (M4).
//
// # Running it
//
// go test plays some seeds, of TestSeeds, TestBold and TestMerges, and more with TEST_LONG. TEST_SEEDS=N, and TEST_FROM=S, play N of them from S
// on, each for BLACKHOLE_VIRTUAL (such as 60s); the figures are printed with -v. A seed plays the
// same way each time.
//
// With the build tag planted, TestPlanted breaks the members in one place after the
// other, by replacing a line of their source for the compiler alone, and demands that the
// checks notice.
package simulation
