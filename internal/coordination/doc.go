// Package coordination is the coordination plane of one peer. It bootstraps or finds the group, makes an
// eligible peer a member, and serves the contract of package coord on every peer. Calls that need the leader
// are forwarded to the leader.
//
// The parts lie below it: bootstrap chooses the initial members; machine, raftlog, replica and member form one
// member of the group; transport is its network; leader tracks the leader; announce publishes it; lessor
// measures leases at the leader; membership decides on changes of the members. This package connects the
// parts, finds the leader for callers, and repeats calls without repeating their effects.
//
// It knows the network (through transport) and package coord. Front ends do not import it. See DESIGN.md.
package coordination
