package membership

// Report is a member's hash of its state after one log entry; empty: not known.
type Report struct {
	Member uint64
	Voter  bool
	Hash   string
}

// Agreement is the result of a comparison of states.
type Agreement struct {
	Hash    string   // that a majority of the voters has; empty: no majority
	Odd     []uint64 // members with another hash than the majority
	Split   bool     // several hashes without a majority: the right one is unknown
	Missing int      // members without a report
}

// Agree compares the reports of all members.
func Agree(reports []Report) (a Agreement) {
	voters, votes, seen := 0, map[string]int{}, map[string]bool{}
	for _, r := range reports {
		if r.Voter {
			voters++
		}
		switch {
		case r.Hash == "":
			a.Missing++
			continue
		case r.Voter:
			votes[r.Hash]++
		}
		seen[r.Hash] = true
	}
	for hash, n := range votes {
		if n > voters/2 { // at most one
			a.Hash = hash
		}
	}
	a.Split = a.Hash == "" && len(seen) > 1
	for _, r := range reports {
		if a.Hash != "" && r.Hash != "" && r.Hash != a.Hash {
			a.Odd = append(a.Odd, r.Member)
		}
	}
	return a
}
