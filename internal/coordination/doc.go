// Package coordination is the coordination plane of one peer. It bootstraps or finds the group, makes an
// eligible peer a member, and serves the contract of package coord on every peer. Calls that need the leader
// are forwarded to the leader.
//
// The parts lie below it, and none knows this package. view holds the group as other peers describe it; routing finds the leader
// and carries calls to it; formation brings a peer into its group; upkeep keeps the members sound. bootstrap chooses the initial
// members; machine, raftlog, replica and member form one member of the group; transport is its network; announce publishes the
// leader. This package makes the parts, gives each the functions that it needs, and passes on what peers say of the group.
//
// Front ends do not import it. See DESIGN.md.
package coordination
