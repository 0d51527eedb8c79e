package replica

import (
	"go.etcd.io/raft/v3"
)

// turnTicks lie between the candidacies of two voters after their leader has gone. The first one has mostly won by then.
const turnTicks = 2

// Unreachable reports dropped messages to a member. gone: it has closed its last connection, because its process has ended.
// If it leads, a voter forgets it and stands for election after few ticks, in the order of the ids, instead of after a
// silence of Config.ElectionTimeout. A report that is wrong harms nothing: the next heartbeat restores the leader, and
// members that hear it give no vote. See "ForgetLeader" of etcd's raft.
func (r *Replica) Unreachable(id uint64, gone bool) {
	r.node.ReportUnreachable(id)
	status := r.node.BasicStatus()
	if !gone || id == 0 || status.Lead != id || status.RaftState != raft.StateFollower || !r.membership.votes(r.id) {
		return
	}
	if err := r.node.ForgetLeader(); err != nil {
		return // this member waits for the silence
	}
	before := 0
	for _, v := range r.membership.conf.Voters {
		if v != id && v < r.id {
			before++
		}
	}
	r.role.candidacy = 1 + turnTicks*before
}

// stand makes this member a candidate when its turn has come, unless there is a leader again.
func (r *role) stand(node *raft.RawNode) {
	if r.candidacy == 0 {
		return
	}
	if r.candidacy--; r.candidacy > 0 {
		return
	}
	if status := node.BasicStatus(); status.Lead == raft.None && status.RaftState == raft.StateFollower {
		_ = node.Campaign() // without a candidacy it waits for the silence
	}
}
