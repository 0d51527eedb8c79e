package coord

// MemberAction is what an operator wants of the members of the group.
type MemberAction string

// Actions of a MemberChange.
const (
	AddMember          MemberAction = "add"      // make a peer that offers itself a learner, and keep it
	RemoveMember       MemberAction = "remove"   // remove a member, and do not add it again
	PromoteMember      MemberAction = "promote"  // make a learner a voter
	ReplaceMember      MemberAction = "replace"  // swap a voter with a learner, in one joint change
	TransferLeadership MemberAction = "transfer" // make another voter the leader
	LeaveGroup         MemberAction = "leave"    // remove the answering peer
)

// MemberChange is an operator's order to the group.
type MemberChange struct {
	Action MemberAction `json:"action"`
	Peer   string       `json:"peer_id"`
	With   string       `json:"with"`    // of ReplaceMember: the learner that takes the vote
	DryRun bool         `json:"dry_run"` // only say what would happen
	Force  bool         `json:"force"`   // even if no majority remains, or the new voter is behind
	By     string       `json:"-"`       // who orders it, for the log; set by the accepting peer
	Via    string       `json:"-"`       // peer that passed it on; set by the member that receives it
}

// MemberOutcome is the result of a MemberChange.
type MemberOutcome struct {
	Done  bool     `json:"done"`  // false after a dry run
	Steps []string `json:"steps"` // sentences; empty if only the decision on the peer was kept
	// Before and After say how many failures of voters are survived around the steps: "3 of 3 voters: 1 failure".
	Before string `json:"before"`
	After  string `json:"after"`
	// Standing is the decision on the peer that the group keeps; empty: none.
	Standing Standing `json:"standing,omitempty"`
}

// Standing is an operator's lasting decision on a peer: the value of a key under MembersPrefix.
type Standing string

// Values of a Standing.
const (
	Wanted Standing = "wanted" // stays a member, also a superfluous one
	Barred Standing = "barred" // does not become a member
)

// MembersPrefix is the prefix of the keys with standing decisions, followed by the peer id. Only members write them.
const MembersPrefix = "blackhole/members/"

// LedgersPrefix is the prefix of the keys with what peers granted of their offers, followed by the peer id. Each peer writes its own alone.
const LedgersPrefix = "blackhole/trade/"
